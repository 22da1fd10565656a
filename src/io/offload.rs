//! What a device does for its host, and what the host does for itself: turned on and off.
//!
//! Problem: a frame with an unfinished checksum, or a superpacket, looks the same to us whether the device
//! finishes it or the kernel does just before; a laboratory wants to see both.
//! Source: ethtool, "offload". Law: what is off is done by the kernel.
//! Left out: offloads that have no command of their own, but for one: joining frames on arrival in a way that cannot
//! be undone (LRO), which whoever passes frames on must not have.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::sys;

/// What can be turned on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Offload {
    /// Finishing checksums of frames that leave. Off, no superpacket is cut up by the device either.
    TransmitChecksum = 0x17,
    /// Cutting up TCP superpackets that leave.
    TcpSegmentation = 0x1f,
    /// Joining frames that arrive.
    ReceiveJoining = 0x2c,
}

/// Turns an offload of the device `name` on or off; in the network namespace of the calling thread.
///
/// # Errors
/// There is no such device, it cannot do that, or this is not permitted.
pub fn set(name: &str, offload: Offload, on: bool) -> io::Result<()> {
    sys::device_ethtool(socket()?, name, offload as u32, u32::from(on)).map(drop)
}

/// `ETHTOOL_GFLAGS`, `ETHTOOL_SFLAGS` and the one of these flags that is meant here.
const READ_FLAGS: u32 = 0x25;
const WRITE_FLAGS: u32 = 0x26;
const LARGE_RECEIVE: u32 = 1 << 15;

/// Whether the device `name` joins frames that arrive for good (LRO): what it hands over was never sent.
///
/// # Errors
/// There is no such device.
pub fn joins_for_good(name: &str) -> io::Result<bool> {
    Ok(flags(name)? & LARGE_RECEIVE != 0)
}

/// Turns that on or off; in the network namespace of the calling thread.
///
/// # Errors
/// There is no such device, it cannot do that, or this is not permitted.
pub fn set_joins_for_good(name: &str, on: bool) -> io::Result<()> {
    let flags = flags(name)?;
    let flags = if on { flags | LARGE_RECEIVE } else { flags & !LARGE_RECEIVE };
    sys::device_ethtool(socket()?, name, WRITE_FLAGS, flags).map(drop)
}

fn flags(name: &str) -> io::Result<u32> {
    sys::device_ethtool(socket()?, name, READ_FLAGS, 0)
}

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}
