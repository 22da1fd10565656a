//! Lines over a stream that does not block, bounded both ways.

use std::io;
use std::time::Duration;

use tokio::net::UnixStream;
use ucake_cli::protocol::{self, Reply};

/// Why there is no next line.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    /// It is longer than allowed.
    #[error("the line is too long")]
    TooLong,
    /// The client does not read what it asked for.
    #[error("the client does not read")]
    NotRead,
    /// The connection is broken.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Bytes that came and are not yet a line that was taken.
pub(super) struct Lines {
    longest: usize,
    pending: Vec<u8>,
    /// No line feed stands before this.
    searched: usize,
}

impl Lines {
    /// None so far. No line may have more than `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        Self { longest, pending: Vec::new(), searched: 0 }
    }

    /// The next line without its line feed, `None` at the end; what stands there without a line feed is no
    /// line. Nothing is lost if this is dropped while it waits.
    pub(super) async fn next(&mut self, stream: &UnixStream) -> Result<Option<Vec<u8>>, LineError> {
        loop {
            if let Some(line) = self.take()? {
                return Ok(Some(line));
            }
            stream.readable().await?;
            let mut chunk = [0; 4096];
            match stream.try_read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(count) => self.pending.extend(chunk.iter().take(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn take(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        let end = self.pending.iter().skip(self.searched).position(|&byte| byte == b'\n');
        let Some(end) = end.map(|end| self.searched + end) else {
            self.searched = self.pending.len();
            return if self.searched < self.longest { Ok(None) } else { Err(LineError::TooLong) };
        };
        if end >= self.longest {
            return Err(LineError::TooLong);
        }
        let rest = self.pending.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.pending, rest);
        line.truncate(end);
        self.searched = 0;
        Ok(Some(line))
    }
}

/// Sends a reply; each `patience` some of it must be taken.
pub(super) async fn send(
    stream: &UnixStream,
    reply: &Reply,
    patience: Duration,
) -> Result<(), LineError> {
    send_line(stream, &protocol::write_reply(reply), patience).await
}

/// The same of one that is a line already.
pub(super) async fn send_line(
    stream: &UnixStream,
    line: &str,
    patience: Duration,
) -> Result<(), LineError> {
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        let writable = tokio::time::timeout(patience, stream.writable()).await;
        writable.map_err(|_| LineError::NotRead)??;
        match stream.try_write(rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(chunks: &[&str], longest: usize) -> (Vec<String>, bool) {
        let mut lines = Lines::new(longest);
        let mut taken = Vec::new();
        for chunk in chunks {
            lines.pending.extend(chunk.bytes());
            loop {
                match lines.take() {
                    Ok(Some(line)) => taken.push(String::from_utf8(line).expect("it was text")),
                    Ok(None) => break,
                    Err(_) => return (taken, true),
                }
            }
        }
        (taken, false)
    }

    #[test]
    fn lines_are_cut_at_line_feeds_however_they_arrive() {
        let expected = vec!["one".to_owned(), String::new(), "two".to_owned()];
        for chunks in
            [&["one\n\ntwo\nthr"][..], &["o", "ne", "\n", "\n", "two\n"], &["one\n\ntwo\n"]]
        {
            assert_eq!(lines_of(chunks, 10), (expected.clone(), false), "{chunks:?}");
        }
    }

    #[test]
    fn a_line_of_the_longest_length_is_taken_and_one_more_byte_is_not() {
        assert_eq!(lines_of(&["1234\n"], 5), (vec!["1234".to_owned()], false));
        assert_eq!(lines_of(&["12345\n"], 5), (Vec::new(), true));
        assert_eq!(lines_of(&["12", "345"], 5), (Vec::new(), true));
    }
}
