//! Frames through a device's qdisc: a packet socket that sends.
#![allow(unsafe_code, reason = "the system's calls have no safe form for packet sockets")]
#![allow(clippy::cast_possible_truncation, reason = "sizes and numbers of the system's, all small")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use ucake::packet::VnetHeader;

/// Bytes that may wait in queues below the socket.
const ROOM: u32 = 64 << 20;

/// A socket bound to one device.
pub struct PacketSocket {
    fd: OwnedFd,
    with_vnet: bool,
}

impl PacketSocket {
    /// `with_vnet`: frames come with a vnet header in front.
    pub fn open(device: &str, with_vnet: bool) -> io::Result<Self> {
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let socket = Self { fd, with_vnet };
        socket.set(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, ROOM)?;
        if with_vnet {
            socket.set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        }
        let text = std::fs::read_to_string(format!("/sys/class/net/{device}/ifindex"))?;
        socket.bind(text.trim().parse().map_err(io::Error::other)?)?;
        Ok(socket)
    }

    /// Mark and priority of what is sent from now on.
    pub fn label(&self, mark: u32, priority: u32) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, libc::SO_MARK, mark)?;
        self.set(libc::SOL_SOCKET, libc::SO_PRIORITY, priority)
    }

    /// Sends one frame.
    pub fn send(&self, frame: &[u8], vnet: Option<&VnetHeader>) -> io::Result<()> {
        let sent = if self.with_vnet {
            let head = vnet.copied().unwrap_or(VnetHeader::PLAIN).encode();
            rustix::io::write(&self.fd, &[&head, frame].concat())
        } else {
            rustix::io::write(&self.fd, frame)
        };
        Ok(sent.map(|_| ())?)
    }

    fn set(&self, level: i32, name: i32, value: u32) -> io::Result<()> {
        let len = size_of_val(&value) as libc::socklen_t;
        // JUSTIFICATION: these options have no safe wrapper.
        // SAFETY: `value` outlives the call, and `len` is its size.
        let status = unsafe {
            libc::setsockopt(self.fd.as_raw_fd(), level, name, (&raw const value).cast(), len)
        };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn bind(&self, index: i32) -> io::Result<()> {
        // JUSTIFICATION: plain data, for which zero is a value.
        // SAFETY: every field of the structure is an integer or an array of them.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index;
        let len = size_of_val(&address) as libc::socklen_t;
        // JUSTIFICATION: addresses of packet sockets have no safe wrapper.
        // SAFETY: `address` outlives the call, and `len` is its size.
        let status = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) };
        if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
