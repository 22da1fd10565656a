//! The line between the supervisor and the data process.
//!
//! Problem: the one that handles frames must be able to tell how it is without ever waiting for anybody, and
//! whatever it says must be harmless to the one that keeps the ports open.
//! Source: unix(7), `SOCK_SEQPACKET`: a message arrives whole or not at all, and the end of one side is seen by the
//! other.
//! Law: a message is JSON of a bounded length. Telling never waits: what there is no room for is told later.
//! Descriptors come with the first message of all ([`super::handover`]) and from the supervisor only.
//! Left out: what is said ([`super::state`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// Longest message: the statistics of a CAKE with eight tins have a tenth of it.
const LONGEST: usize = 64 * 1024;

/// One end, at work on a tokio runtime.
#[derive(Debug)]
pub(crate) struct Link {
    /// A socket of messages, which is read and written as one of bytes is.
    socket: UnixStream,
}

/// Both ends, not yet at work.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

impl Link {
    /// Puts an end to work. Call within a tokio runtime.
    pub(crate) fn new(end: OwnedFd) -> io::Result<Self> {
        let socket = StdStream::from(end);
        socket.set_nonblocking(true)?;
        Ok(Self { socket: UnixStream::from_std(socket)? })
    }

    /// The next message; `None` when the other side has ended.
    ///
    /// # Errors
    /// What came is no message, or the system refuses.
    pub(crate) async fn next<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        let mut message = vec![0; LONGEST];
        loop {
            self.socket.readable().await?;
            let read = || Ok(recv(&self.socket, &mut message[..], RecvFlags::empty())?.0);
            match self.socket.try_io(Interest::READABLE, read) {
                Ok(0) => return Ok(None),
                Ok(len) => {
                    let message = message.get(..len).unwrap_or_default();
                    return Ok(Some(serde_json::from_slice(message)?));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                    // It ended with something unread.
                    io::ErrorKind::ConnectionReset => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Tells, if there is room.
    ///
    /// # Errors
    /// `WouldBlock` if there is none now; anything else if there will be none any more.
    pub(crate) fn tell(&self, message: &impl Serialize) -> io::Result<()> {
        self.tell_line(&serde_json::to_string(message)?)
    }

    /// The same for a message that is JSON already.
    ///
    /// # Errors
    /// As [`Self::tell`].
    pub(crate) fn tell_line(&self, message: &str) -> io::Result<()> {
        // Without `NOSIGNAL` the other's end could become ours.
        send(&self.socket, message.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_a_runtime(test: impl Future<Output = io::Result<()>>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime.and_then(|runtime| runtime.block_on(test)).expect("sockets work here");
    }

    #[test]
    fn messages_arrive_whole_and_in_order_and_then_the_end() {
        on_a_runtime(async {
            let (near, far) = pair()?;
            let (near, far) = (Link::new(near)?, Link::new(far)?);
            near.tell(&"one")?;
            near.tell(&vec!["x".repeat(1000); 30])?;
            drop(near);
            assert_eq!(far.next::<String>().await?.as_deref(), Some("one"));
            assert_eq!(far.next::<Vec<String>>().await?.map(|list| list.len()), Some(30));
            assert_eq!(far.next::<String>().await?, None);
            Ok(())
        });
    }

    #[test]
    fn telling_one_that_does_not_listen_never_waits() {
        on_a_runtime(async {
            let (near, _far) = pair()?;
            let near = Link::new(near)?;
            let refusal = (0..100_000).find_map(|number| near.tell(&number).err());
            assert_eq!(refusal.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
            Ok(())
        });
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        on_a_runtime(async {
            let (near, far) = pair()?;
            let (near, far) = (Link::new(near)?, Link::new(far)?);
            near.tell_line("{\"half\":")?;
            assert!(far.next::<serde_json::Value>().await.is_err());
            Ok(())
        });
    }
}
