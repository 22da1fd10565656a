//! Any line is a request, a reply, or refused; what was understood is written and read again as it was.

use ucake_cli::protocol::{self, Refusal, Reply, Request};
use ucake_cli::words;

/// Bytes of one line.
pub fn protocol(data: &[u8]) {
    match protocol::read_request(data) {
        Ok(request) => {
            let line = protocol::write_request(&request);
            assert_eq!(line.lines().count(), 1, "{line}");
            assert_eq!(protocol::read_request(line.as_bytes()), Ok(request.clone()), "{line}");
            if let Request::Apply(order) = request {
                // What a running ucake does with it next.
                let _ = words::parse_line(&order.words).map_err(|error| error.to_string());
            }
        }
        Err(refusal) => refused(&refusal),
    }
    match protocol::read_reply(data) {
        Ok(reply) => {
            let line = protocol::write_reply(&reply);
            assert_eq!(line.lines().count(), 1, "{line}");
            assert_eq!(protocol::read_reply(line.as_bytes()), Ok(reply), "{line}");
        }
        Err(message) => assert!(!message.is_empty()),
    }
}

/// It can be sent as it is.
fn refused(refusal: &Refusal) {
    assert!(!refusal.message.is_empty());
    let line = protocol::write_reply(&Reply::Refused(refusal.clone()));
    assert_eq!(line.lines().count(), 1, "{line}");
}
