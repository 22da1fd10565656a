//! The line between the supervisor and the data process.
//!
//! Problem: the one that handles frames must be able to tell how it is without ever waiting for anybody, and
//! whatever it says must be harmless to the one that keeps the ports open.
//! Source: unix(7), `SOCK_SEQPACKET`: a message arrives whole or not at all, and the end of one side is seen by the
//! other.
//! Law: a message is JSON of a bounded length. Telling never waits: what there is no room for is told later.
//! Descriptors come from the supervisor only: with the first message of all ([`super::handover`]), and the ports of a
//! bridge with the order to begin it.
//! Left out: what is said ([`super::state`]).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::handover;

/// Longest message: the statistics of a CAKE with eight tins have a tenth of it.
const LONGEST: usize = 64 * 1024;
/// Most descriptors with one: the ports of a bridge.
const MOST: usize = 2;

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

    /// The next message; `None` when the other side has ended. Descriptors that come along are closed.
    ///
    /// # Errors
    /// What came is no message, or the system refuses.
    pub(crate) async fn next<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        Ok(self.next_with().await?.map(|(message, _)| message))
    }

    /// The next message with its descriptors; `None` when the other side has ended.
    ///
    /// # Errors
    /// What came is no message, or the system refuses.
    pub(crate) async fn next_with<T: DeserializeOwned>(
        &self,
    ) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut message = vec![0; LONGEST];
        loop {
            self.socket.readable().await?;
            let read = || receive(&self.socket, &mut message);
            match self.socket.try_io(Interest::READABLE, read) {
                Ok((0, _)) => return Ok(None),
                Ok((len, fds)) => {
                    let message = message.get(..len).unwrap_or_default();
                    return Ok(Some((serde_json::from_slice(message)?, fds)));
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

    /// Tells, with descriptors.
    ///
    /// # Errors
    /// As [`Self::tell`].
    pub(crate) fn tell_with(
        &self,
        message: &impl Serialize,
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let text = serde_json::to_string(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.socket, &[IoSlice::new(text.as_bytes())], &mut control, flags)?;
        Ok(())
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

/// Bytes of a message and what came along.
fn receive(socket: impl AsFd, message: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(message)], &mut control, flags)?;
    Ok((received.bytes, handover::descriptors(&mut control)))
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
