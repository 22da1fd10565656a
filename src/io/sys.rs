//! System calls that no safe wrapper covers. All `unsafe` code of the crate is in this file.
//!
//! Each function is safe to call: whatever its system call asks for is checked or built here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::ioctl::{Getter, IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};
use rustix::thread::UnshareFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The offloads of a tap (`TUN_F_*`): whoever reads the frames takes upon itself what they name.
pub(super) mod offload {
    /// Frames may come with their transport checksum unfinished.
    pub(in crate::io) const CHECKSUM: u32 = libc::TUN_F_CSUM;
    /// TCP superpackets, over IPv4 and IPv6.
    pub(in crate::io) const TCP: u32 = libc::TUN_F_TSO4 | libc::TUN_F_TSO6;
    /// TCP superpackets that carry CWR.
    pub(in crate::io) const TCP_ECN: u32 = libc::TUN_F_TSO_ECN;
    /// UDP superpackets; the kernel takes both families or neither.
    pub(in crate::io) const UDP: u32 = libc::TUN_F_USO4 | libc::TUN_F_USO6;
}

/// Ethernet frames rather than IP packets.
pub(super) const IFF_TAP: u16 = 0x0002;
/// No protocol field before each frame.
pub(super) const IFF_NO_PI: u16 = 0x1000;
/// A vnet header before each frame.
pub(super) const IFF_VNET_HDR: u16 = 0x4000;

/// Longest device name, its terminating zero included.
pub(super) const NAME_SIZE: usize = libc::IFNAMSIZ;

/// `struct ifreq` as the tun ioctls use it: a name and flags.
#[repr(C)]
#[derive(Clone, Copy)]
struct Ifreq {
    name: [u8; NAME_SIZE],
    flags: u16,
    unused: [u8; 22],
}

const _: () = assert!(size_of::<Ifreq>() == size_of::<libc::ifreq>());

// The opcodes say `int` although TUNSETIFF passes a `struct ifreq`: so the kernel's headers have
// it.
const TUNSETIFF: Opcode = opcode::write::<libc::c_int>(b'T', 202);
const TUNSETPERSIST: Opcode = opcode::write::<libc::c_int>(b'T', 203);
const TUNGETFEATURES: Opcode = opcode::read::<libc::c_uint>(b'T', 207);
const TUNSETOFFLOAD: Opcode = opcode::write::<libc::c_uint>(b'T', 208);
const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;
const TUNSETVNETHDRSZ: Opcode = opcode::write::<libc::c_int>(b'T', 216);

/// Makes the open `/dev/net/tun` the device `name`, creating it if there is none. Returns the name
/// the kernel settled on, which differs where `name` holds a `%d`.
pub(super) fn tun_attach(tun: impl AsFd, name: &str, flags: u16) -> io::Result<String> {
    let mut request = Ifreq { name: [0; NAME_SIZE], flags, unused: [0; 22] };
    if name.len() >= NAME_SIZE {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // JUSTIFICATION: no crate we use wraps the tun ioctls.
    // SAFETY: the kernel reads and writes back one `struct ifreq`; `Ifreq` has its size and layout
    // (asserted above) and any bit pattern the kernel leaves in it is valid.
    unsafe { ioctl(tun, Updater::<TUNSETIFF, Ifreq>::new(&mut request)) }?;
    let end = request.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_SIZE);
    Ok(String::from_utf8_lossy(&request.name[..end]).into_owned())
}

/// Makes a tap outlive its last handle, or no longer.
pub(super) fn tun_set_persistent(tun: impl AsFd, persistent: bool) -> io::Result<()> {
    // JUSTIFICATION: no crate we use wraps the tun ioctls.
    // SAFETY: the argument is an integer, passed by value; any value will do.
    Ok(unsafe { ioctl(tun, IntegerSetter::<TUNSETPERSIST>::new_usize(usize::from(persistent))) }?)
}

/// What this kernel's tun driver can do, as `IFF_*` bits.
pub(super) fn tun_features(tun: impl AsFd) -> io::Result<u32> {
    // JUSTIFICATION: no crate we use wraps the tun ioctls.
    // SAFETY: the kernel writes one `unsigned int`.
    Ok(unsafe { ioctl(tun, Getter::<TUNGETFEATURES, libc::c_uint>::new()) }?)
}

/// The network namespace the device is in now, wherever it was opened.
pub(super) fn tun_namespace(tun: impl AsFd) -> io::Result<OwnedFd> {
    // JUSTIFICATION: no crate we use wraps the tun ioctls.
    // SAFETY: the call takes no argument, and touches no memory of ours.
    let fd = unsafe { libc::ioctl(tun.as_fd().as_raw_fd(), TUNGETDEVNETNS) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // JUSTIFICATION: the descriptor comes as a number. SAFETY: the kernel has just opened it for us, and
    // nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets the offloads of a tap. `EINVAL` for a combination this kernel does not know.
pub(super) fn tun_set_offload(tun: impl AsFd, offloads: u32) -> io::Result<()> {
    let value = usize::try_from(offloads).map_err(|_| io::ErrorKind::InvalidInput)?;
    // JUSTIFICATION: no crate we use wraps the tun ioctls.
    // SAFETY: the argument is an integer, passed by value; the kernel checks every bit of it.
    Ok(unsafe { ioctl(tun, IntegerSetter::<TUNSETOFFLOAD>::new_usize(value)) }?)
}

/// Sets the length of the vnet header of a tap.
pub(super) fn tun_set_vnet_header_len(tun: impl AsFd, len: usize) -> io::Result<()> {
    let len = libc::c_int::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // JUSTIFICATION: no crate we use wraps the tun ioctls.
    // SAFETY: the kernel reads one `int` and checks its value.
    Ok(unsafe { ioctl(tun, Setter::<TUNSETVNETHDRSZ, libc::c_int>::new(len)) }?)
}

/// The descriptor that something owned, ours from now on.
pub(super) fn into_owned_fd(owner: impl IntoRawFd) -> OwnedFd {
    // JUSTIFICATION: crates older than `OwnedFd` hand their descriptor over as a number. SAFETY: by the
    // contract of `IntoRawFd` whoever asks becomes its only owner.
    unsafe { OwnedFd::from_raw_fd(owner.into_raw_fd()) }
}

/// Puts a descriptor under tokio's eye for reading. Call within a tokio runtime.
pub(super) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // JUSTIFICATION: tokio calls its safe constructor unsound, because an `AsRawFd` may name a
    // descriptor it does not own. SAFETY: an `OwnedFd` owns an open descriptor, names the same one
    // each time, and closes it only when dropped; nothing here exchanges the one inside the
    // `AsyncFd`.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// Moves the calling thread into a network namespace of its own.
pub(super) fn unshare_network() -> io::Result<()> {
    // JUSTIFICATION: rustix marks `unshare` unsafe for the sake of one flag, `FILES`.
    // SAFETY: that flag is not given, so every thread keeps seeing the same descriptors.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Moves the process into a user namespace and a network namespace of its own. `EINVAL` if it has
/// more than one thread.
pub(super) fn unshare_user_and_network() -> io::Result<()> {
    let flags = UnshareFlags::NEWUSER | UnshareFlags::NEWNET;
    // JUSTIFICATION: rustix marks `unshare` unsafe for the sake of one flag, `FILES`.
    // SAFETY: that flag is not given, so every thread keeps seeing the same descriptors.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}
