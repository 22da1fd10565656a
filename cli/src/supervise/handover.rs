//! Everything that is needed to go on, from one process to the next.
//!
//! Problem: the ports of a line that is in use must not be closed when the process that handles their frames ends,
//! nor when the program is exchanged for a newer one.
//! Source: unix(7), `SCM_RIGHTS`; memfd_create(2).
//! Law: what is known travels as text in a file without a name, since it may be longer than a message; beside it go
//! the descriptors, in an order that the text knows. All of it waits in a socket until somebody reads it, even if
//! whoever wrote it has ended.
//! Left out: what the text says ([`super::state`]).

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Seek as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Most descriptors in a message; the kernel takes 253.
const MOST: usize = 200;
/// Longest text that is read; what is known of a thousand bridges has a fifth of it.
const LONGEST: u64 = 64 << 20;

/// Puts text and descriptors into `socket`, one of messages.
///
/// # Errors
/// The system refuses, or has no room.
pub(crate) fn send(socket: impl AsFd, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut file = File::from(memfd_create("ucake-state", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    let all: Vec<_> = [file.as_fd()].into_iter().chain(fds.iter().copied()).collect();
    let mut left = all.len();
    for group in all.chunks(MOST) {
        left -= group.len();
        // How many are still to come.
        let head = u32::try_from(left).unwrap_or(u32::MAX).to_be_bytes();
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(group));
        let flags = SendFlags::NOSIGNAL;
        retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(&head)], &mut control, flags))?;
    }
    Ok(())
}

/// Takes text and descriptors out of `socket`, which must block.
///
/// # Errors
/// There are none, or the system refuses.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<(String, Vec<OwnedFd>)> {
    let mut fds = Vec::new();
    loop {
        let mut head = [0; 4];
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let message = retry_on_intr(|| {
            recvmsg(&socket, &mut [IoSliceMut::new(&mut head)], &mut control, flags)
        })?;
        fds.extend(descriptors(&mut control));
        if message.bytes != head.len() || message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if u32::from_be_bytes(head) == 0 {
            break;
        }
    }
    if fds.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut file = File::from(fds.remove(0));
    file.rewind()?;
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text)?;
    Ok((text, fds))
}

/// Those that came along with a message.
pub(super) fn descriptors(control: &mut RecvAncillaryBuffer<'_>) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = part {
            fds.extend(more);
        }
    }
    fds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervise::link::pair;

    #[test]
    fn text_of_any_length_and_many_descriptors_outlive_whoever_sent_them() {
        let text = "all that is known ".repeat(50_000);
        let (near, far) = pair().expect("two ends");
        let files: Vec<File> = (0..2 * MOST + 7)
            .map(|number| {
                let fd = memfd_create("one", MemfdFlags::CLOEXEC).expect("a file");
                let mut file = File::from(fd);
                write!(file, "{number}").expect("there is room");
                file
            })
            .collect();
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        send(&near, &text, &fds).expect("there is room");
        drop(fds);
        drop((files, near));
        let (read, fds) = receive(&far).expect("it is all there");
        assert_eq!(read, text);
        let numbers = fds.into_iter().map(|fd| {
            let mut file = File::from(fd);
            file.rewind().expect("a file");
            let mut number = String::new();
            file.read_to_string(&mut number).expect("a number");
            number.parse::<usize>().expect("a number")
        });
        assert!(numbers.eq(0..2 * MOST + 7));
        assert!(receive(&far).is_err(), "there was one only");
    }
}
