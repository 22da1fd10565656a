//! What a device does for its host, and what the host does for itself: turned on and off.
//!
//! Problem: a frame with an unfinished checksum, or a superpacket, looks the same to us whether the device
//! finishes it or the kernel does just before; a laboratory wants to see both.
//! Source: ethtool, "offload". Law: what is off is done by the kernel.
//! Left out: offloads that have no command of their own, and asking what is on.

use std::io;

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
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sys::device_switch(socket, name, offload as u32, on)
}
