//! What has become of the device behind a descriptor.
//!
//! Problem: devices are renamed, moved to other namespaces, taken down, removed and made again under the same name; a
//! descriptor that was opened long ago does not tell of it by itself.
//! Source: packet(7), netdevice(7), `TUNGETIFF`; the kernel's tun driver.
//! Law: the descriptor is asked, not the name: it knows which device it belongs to, and whether that is still there. A
//! packet socket whose device went away is bound to none, even if the device is back with its old number.
//! Left out: when to look ([`super::netlink::LinkWatch`] tells when something has changed).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use rustix::io::Errno;
use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::sys;

/// A device that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name now.
    pub name: String,
    /// A number for the network namespace it is in, where that is known.
    pub namespace: Option<u64>,
    /// More, where that is to be had: a namespace may not be ours to look into.
    pub state: Option<State>,
}

/// What a device is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Largest packet, without Ethernet header.
    pub mtu: u32,
    /// Whether it is up, with a link.
    pub up: bool,
    /// What it does for its host.
    pub offloads: Offloads,
}

/// Which of the usual offloads of a device are on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads(u16);

/// By the name that ethtool has for it, the command that asks for it, and its bits in the answer.
const OFFLOADS: [(&str, u32, u32); 8] = [
    ("rx-checksumming", 0x14, 1),
    ("tx-checksumming", 0x16, 1),
    ("tcp-segmentation-offload", 0x1e, 1),
    ("generic-segmentation-offload", 0x23, 1),
    ("generic-receive-offload", 0x2b, 1),
    ("large-receive-offload", 0x25, 1 << 15),
    ("tx-vlan-offload", 0x25, 1 << 7),
    ("rx-vlan-offload", 0x25, 1 << 8),
];

impl Offloads {
    fn of(socket: impl AsFd, name: &str) -> Self {
        let is_on = |command, bits| {
            sys::device_ethtool(&socket, name, command, 0).is_ok_and(|value| value & bits != 0)
        };
        let bits = OFFLOADS.iter().enumerate();
        Self(bits.fold(0, |sum, (place, &(_, command, bits))| {
            sum | u16::from(is_on(command, bits)) << place
        }))
    }

    /// What is otherwise than `before`, as one would tell it to ethtool: `generic-receive-offload off`.
    #[must_use]
    pub fn since(self, before: Self) -> String {
        let new = OFFLOADS.iter().enumerate().filter_map(|(place, (name, ..))| {
            let on = |offloads: Self| offloads.0 >> place & 1 == 1;
            let word = if on(self) { "on" } else { "off" };
            (on(self) != on(before)).then(|| format!("{name} {word}"))
        });
        new.collect::<Vec<_>>().join(", ")
    }
}

/// The device that a tap is; `None` if it was removed.
///
/// # Errors
/// It changed while it was looked at, or the system refuses.
pub fn behind_tap(tap: BorrowedFd<'_>) -> io::Result<Option<Device>> {
    let name = match sys::tun_name(tap) {
        Ok(name) => name,
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BADFD) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(namespace) = sys::tun_namespace(tap) else {
        return Ok(Some(Device { name, namespace: None, state: None }));
    };
    let number = rustix::fs::fstat(&namespace)?.st_ino;
    let state = match socket_in(&namespace, number) {
        Ok(socket) => Some(state(&socket, &name)?),
        Err(_) => None,
    };
    Ok(Some(Device { name, namespace: Some(number), state }))
}

/// The device that a packet socket hears; `None` if it was removed or moved away.
///
/// # Errors
/// It changed while it was looked at, or the system refuses.
pub fn behind_packet_socket(socket: BorrowedFd<'_>) -> io::Result<Option<Device>> {
    let Some(index) = sys::packet_bound_to(socket)? else { return Ok(None) };
    let name = match index_to_name(socket, index) {
        Ok(name) => name,
        Err(Errno::NODEV | Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let state = Some(state(socket, &name)?);
    Ok(Some(Device { name, namespace: None, state }))
}

fn state(socket: impl AsFd, name: &str) -> io::Result<State> {
    let mtu = sys::device_mtu(&socket, name)?;
    let up = sys::device_is_running(&socket, name)?;
    Ok(State { mtu, up, offloads: Offloads::of(&socket, name) })
}

/// A socket that looks up names in a namespace.
fn socket_in(namespace: &OwnedFd, number: u64) -> io::Result<OwnedFd> {
    let here = std::fs::metadata("/proc/thread-self/ns/net").is_ok_and(|it| it.ino() == number);
    if here {
        return any_socket();
    }
    let enter = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        any_socket()
    };
    // A thread of its own, which ends there.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, enter)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn any_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_of_offloads_is_told_in_the_words_of_ethtool() {
        let before = Offloads(0b0001_0100);
        assert_eq!(before.since(before), "");
        let told = Offloads(0b0000_1100).since(before);
        assert_eq!(told, "generic-segmentation-offload on, generic-receive-offload off");
    }
}
