//! System calls that no safe wrapper covers. All `unsafe` code of the crate is in this file.
//!
//! Each function is safe to call: whatever its system call asks for is checked or built here.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::ptr;

use rustix::ioctl::{Getter, IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};
use rustix::thread::UnshareFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

// Constants of the system have the widest of all types that they are used as.
#[allow(clippy::cast_possible_truncation, reason = "each fits: see its value")]
mod small {
    pub(super) const UP: u16 = libc::IFF_UP as u16;
    pub(super) const RUNNING: u16 = libc::IFF_RUNNING as u16;
    pub(super) const PACKET: u16 = libc::AF_PACKET as u16;
    /// Every protocol, in network byte order.
    pub(super) const EVERY_PROTOCOL: u16 = (libc::ETH_P_ALL as u16).to_be();
    pub(super) const PROMISCUOUS: u16 = libc::PACKET_MR_PROMISC as u16;
    /// 802.1Q.
    pub(super) const CUSTOMER: u16 = libc::ETH_P_8021Q as u16;

    pub(super) const fn size_of_value<T>(_: &T) -> libc::socklen_t {
        const { assert!(size_of::<T>() < 1 << 16) };
        size_of::<T>() as libc::socklen_t
    }
}

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

/// Bytes of `struct ifreq` behind the name.
const VALUE_SIZE: usize = size_of::<libc::ifreq>() - NAME_SIZE;

/// `struct ifreq`: the name of a device, and what is asked or said of it, at the beginning of `value`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Ifreq {
    name: [u8; NAME_SIZE],
    value: [u8; VALUE_SIZE],
}

const _: () = assert!(size_of::<Ifreq>() == size_of::<libc::ifreq>());

impl Ifreq {
    /// `InvalidInput` if the name is too long.
    fn new(name: &str) -> io::Result<Self> {
        let mut request = Self { name: [0; NAME_SIZE], value: [0; VALUE_SIZE] };
        if name.len() >= NAME_SIZE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        Ok(request)
    }

    fn name(&self) -> String {
        let end = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME_SIZE);
        String::from_utf8_lossy(&self.name[..end]).into_owned()
    }

    fn short(&self) -> u16 {
        u16::from_ne_bytes([self.value[0], self.value[1]])
    }
}

// The opcodes say `int` although TUNSETIFF passes a `struct ifreq`: so the kernel's headers have
// it.
const TUNSETIFF: Opcode = opcode::write::<libc::c_int>(b'T', 202);
const TUNSETPERSIST: Opcode = opcode::write::<libc::c_int>(b'T', 203);
const TUNGETFEATURES: Opcode = opcode::read::<libc::c_uint>(b'T', 207);
const TUNGETIFF: Opcode = opcode::read::<libc::c_uint>(b'T', 210);
const TUNSETOFFLOAD: Opcode = opcode::write::<libc::c_uint>(b'T', 208);
const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;
const TUNSETVNETHDRSZ: Opcode = opcode::write::<libc::c_int>(b'T', 216);

/// Makes the open `/dev/net/tun` the device `name`, creating it if there is none. Returns the name
/// the kernel settled on, which differs where `name` holds a `%d`.
pub(super) fn tun_attach(tun: impl AsFd, name: &str, flags: u16) -> io::Result<String> {
    let mut request = Ifreq::new(name)?;
    request.value[..2].copy_from_slice(&flags.to_ne_bytes());
    // JUSTIFICATION: no crate we use wraps the tun ioctls.
    // SAFETY: the kernel reads and writes back one `struct ifreq`; `Ifreq` has its size and layout
    // (asserted above) and any bit pattern the kernel leaves in it is valid.
    unsafe { ioctl(tun, Updater::<TUNSETIFF, Ifreq>::new(&mut request)) }?;
    Ok(request.name())
}

/// The name of the device that `tun` is, by now. `EBADFD` if it was removed.
pub(super) fn tun_name(tun: impl AsFd) -> io::Result<String> {
    let mut request = Ifreq::new("")?;
    // JUSTIFICATION: no crate we use wraps the tun ioctls.
    // SAFETY: the kernel writes one `struct ifreq`; `Ifreq` has its size (asserted above) and any bit pattern is valid
    // in it.
    unsafe { ioctl(tun, Updater::<TUNGETIFF, Ifreq>::new(&mut request)) }?;
    Ok(request.name())
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

/// What a device is, as `ARPHRD_*`. The socket says in which network namespace the name is looked up.
pub(super) fn device_hardware(socket: impl AsFd, name: &str) -> io::Result<u16> {
    const SIOCGIFHWADDR: Opcode = libc::SIOCGIFHWADDR as Opcode;
    let mut request = Ifreq::new(name)?;
    // JUSTIFICATION: no crate we use wraps the ioctls of devices.
    // SAFETY: the kernel reads and writes back one `struct ifreq`; `Ifreq` has its size (asserted above)
    // and any bit pattern is valid in it.
    unsafe { ioctl(socket, Updater::<SIOCGIFHWADDR, Ifreq>::new(&mut request)) }?;
    Ok(request.short())
}

/// Whether a device is up.
pub(super) fn device_is_up(socket: impl AsFd, name: &str) -> io::Result<bool> {
    Ok(device_flags(socket, name)? & small::UP != 0)
}

/// Whether a device is up and its link is, too.
pub(super) fn device_is_running(socket: impl AsFd, name: &str) -> io::Result<bool> {
    const BOTH: u16 = small::UP | small::RUNNING;
    Ok(device_flags(socket, name)? & BOTH == BOTH)
}

fn device_flags(socket: impl AsFd, name: &str) -> io::Result<u16> {
    const SIOCGIFFLAGS: Opcode = libc::SIOCGIFFLAGS as Opcode;
    let mut request = Ifreq::new(name)?;
    // JUSTIFICATION: no crate we use wraps the ioctls of devices.
    // SAFETY: the kernel reads and writes back one `struct ifreq`; `Ifreq` has its size (asserted above)
    // and any bit pattern is valid in it.
    unsafe { ioctl(socket, Updater::<SIOCGIFFLAGS, Ifreq>::new(&mut request)) }?;
    Ok(request.short())
}

/// The largest frame of a device, without its Ethernet header.
pub(super) fn device_mtu(socket: impl AsFd, name: &str) -> io::Result<u32> {
    const SIOCGIFMTU: Opcode = libc::SIOCGIFMTU as Opcode;
    let mut request = Ifreq::new(name)?;
    // JUSTIFICATION: no crate we use wraps the ioctls of devices.
    // SAFETY: the kernel reads and writes back one `struct ifreq`; `Ifreq` has its size (asserted above)
    // and any bit pattern is valid in it.
    unsafe { ioctl(socket, Updater::<SIOCGIFMTU, Ifreq>::new(&mut request)) }?;
    let [a, b, c, d, ..] = request.value;
    Ok(u32::from_ne_bytes([a, b, c, d]))
}

/// Asks or tells a device something that is a number, by an `ETHTOOL_G*` or `ETHTOOL_S*` of that kind: what the number
/// is afterwards.
pub(super) fn device_ethtool(
    socket: impl AsFd,
    name: &str,
    command: u32,
    number: u32,
) -> io::Result<u32> {
    let mut value = [command, number];
    let mut request = Ifreq::new(name)?;
    let address = (&raw mut value).expose_provenance().to_ne_bytes();
    request.value[..address.len()].copy_from_slice(&address);
    let fd = socket.as_fd().as_raw_fd();
    // JUSTIFICATION: no crate we use wraps the ioctls of devices.
    // SAFETY: the kernel reads one `struct ifreq`, whose size `Ifreq` has, and by the pointer in it reads and writes one
    // `struct ethtool_value`, two numbers of 32 bits, which `value` is; both outlive the call, and nobody else
    // uses them.
    let status = unsafe { libc::ioctl(fd, libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
    done(status).map(|()| value[1])
}

/// Bytes of memory that a socket's sent messages still hold below it.
pub(super) fn outstanding(socket: impl AsFd) -> io::Result<u64> {
    const SIOCOUTQ: Opcode = libc::TIOCOUTQ as Opcode;
    // JUSTIFICATION: rustix has this ioctl for terminals only.
    // SAFETY: the kernel writes one `int`.
    let bytes = unsafe { ioctl(socket, Getter::<SIOCOUTQ, libc::c_int>::new()) }?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

/// Lets a packet socket hear the device with number `index`, and speak by it.
pub(super) fn packet_bind(socket: impl AsFd, index: u32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: small::PACKET,
        sll_protocol: small::EVERY_PROTOCOL,
        sll_ifindex: device_number(index)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let fd = socket.as_fd().as_raw_fd();
    // JUSTIFICATION: no crate we use makes addresses of packet sockets without unsafe code.
    // SAFETY: `address` outlives the call, and the length is its size.
    let status =
        unsafe { libc::bind(fd, (&raw const address).cast(), small::size_of_value(&address)) };
    done(status)
}

/// The number of the device that a packet socket is bound to; `None` if that device went away, even if it is back.
pub(super) fn packet_bound_to(socket: impl AsFd) -> io::Result<Option<u32>> {
    let mut address = libc::sockaddr_ll {
        sll_family: 0,
        sll_protocol: 0,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let mut len = small::size_of_value(&address);
    let fd = socket.as_fd().as_raw_fd();
    // JUSTIFICATION: no crate we use reads addresses of packet sockets.
    // SAFETY: the kernel writes at most `len` bytes, the size of `address`, in which any bit pattern is valid; both
    // outlive the call.
    let status = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) };
    done(status)?;
    Ok(u32::try_from(address.sll_ifindex).ok().filter(|&index| index > 0))
}

/// Options of a packet socket that are on or off.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(super) enum PacketOption {
    /// A vnet header before each frame.
    VnetHeader = libc::PACKET_VNET_HDR,
    /// What was sent by this machine is not heard.
    IgnoreOutgoing = libc::PACKET_IGNORE_OUTGOING,
    /// VLAN tags come beside the frames they were taken from.
    AuxData = libc::PACKET_AUXDATA,
}

/// Turns an option of a packet socket on. `ENOPROTOOPT` if the kernel does not know it.
pub(super) fn packet_enable(socket: impl AsFd, option: PacketOption) -> io::Result<()> {
    let on: libc::c_int = 1;
    let fd = socket.as_fd().as_raw_fd();
    // JUSTIFICATION: no crate we use has the options of packet sockets.
    // SAFETY: each of these options is an `int`; `on` outlives the call, and the length is its size.
    let status = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_PACKET,
            option as libc::c_int,
            (&raw const on).cast(),
            small::size_of_value(&on),
        )
    };
    done(status)
}

/// Makes a device hear frames to whomever, as long as the socket lives.
pub(super) fn packet_promiscuous(socket: impl AsFd, index: u32) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: device_number(index)?,
        mr_type: small::PROMISCUOUS,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    let fd = socket.as_fd().as_raw_fd();
    // JUSTIFICATION: no crate we use has the options of packet sockets.
    // SAFETY: the option is a `struct packet_mreq`; it outlives the call, and the length is its size.
    let status = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const membership).cast(),
            small::size_of_value(&membership),
        )
    };
    done(status)
}

/// Frames that found a packet socket's buffer full, since it was last asked.
pub(super) fn packet_drops(socket: impl AsFd) -> io::Result<u32> {
    let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = small::size_of_value(&counts);
    let fd = socket.as_fd().as_raw_fd();
    // JUSTIFICATION: no crate we use has the options of packet sockets.
    // SAFETY: the kernel writes at most `len` bytes, the size of `counts`, in which any bit pattern is
    // valid; both outlive the call.
    let status = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut counts).cast(),
            &raw mut len,
        )
    };
    done(status).map(|()| counts.tp_drops)
}

/// What came of reading a packet socket.
pub(super) struct Packet {
    /// Bytes read, vnet header included.
    pub(super) len: usize,
    /// Whether there was more than that.
    pub(super) truncated: bool,
    /// Whether this machine sent it.
    pub(super) outgoing: bool,
    /// The VLAN tag that was taken out of it: protocol and control information.
    pub(super) tag: Option<[u16; 2]>,
}

/// Room for the one control message that is asked for, as aligned as those have to be.
#[repr(C)]
union Control {
    align: libc::cmsghdr,
    bytes: [u8; 64],
}

/// Reads one frame: as much as fits into `head`, the rest into `rest`. The socket must not block.
pub(super) fn packet_receive(
    socket: impl AsFd,
    head: &mut [u8],
    rest: &mut [u8],
) -> io::Result<Packet> {
    let mut from = libc::sockaddr_ll {
        sll_family: 0,
        sll_protocol: 0,
        sll_ifindex: 0,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let mut parts = [head, rest]
        .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
    let mut control = Control { bytes: [0; 64] };
    // JUSTIFICATION: the structure has padding with a name on some systems, so that it cannot be written
    // out. SAFETY: plain data of which zeros are a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = small::size_of_value(&from);
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    // JUSTIFICATION: no crate we use reads this kind of control message.
    // SAFETY: name, parts and control are exclusive, initialised memory of the lengths given, and outlive
    // the call; any bytes are valid in them.
    let len = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, 0) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    Ok(Packet {
        len,
        truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        outgoing: from.sll_pkttype == libc::PACKET_OUTGOING,
        tag: vlan_tag(&message),
    })
}

/// The VLAN tag in the control messages of a frame.
fn vlan_tag(message: &libc::msghdr) -> Option<[u16; 2]> {
    // JUSTIFICATION: the C library knows where the messages stand. SAFETY: the kernel filled in `message`
    // and the control memory it points to, which is as long as it says.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !at.is_null() {
        // JUSTIFICATION: messages come as pointers. SAFETY: neither is null nor beyond the control
        // memory, which is aligned for headers.
        let header = unsafe { ptr::read(at) };
        let wanted = size_of::<libc::cmsghdr>() + size_of::<libc::tpacket_auxdata>();
        if (header.cmsg_level, header.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA)
            && header.cmsg_len as usize >= wanted
        {
            // JUSTIFICATION: messages come as pointers. SAFETY: the message is as long as this structure,
            // in which any bit pattern is valid.
            let aux =
                unsafe { ptr::read_unaligned(libc::CMSG_DATA(at).cast::<libc::tpacket_auxdata>()) };
            return tag_of(&aux);
        }
        // JUSTIFICATION: as for the first. SAFETY: `at` is a header in the memory of `message`.
        at = unsafe { libc::CMSG_NXTHDR(message, at) };
    }
    None
}

fn tag_of(aux: &libc::tpacket_auxdata) -> Option<[u16; 2]> {
    let has = |bit| aux.tp_status & bit != 0;
    // Kernels before 3.14 do not tell which protocol it was.
    let protocol =
        if has(libc::TP_STATUS_VLAN_TPID_VALID) { aux.tp_vlan_tpid } else { small::CUSTOMER };
    has(libc::TP_STATUS_VLAN_VALID).then_some([protocol, aux.tp_vlan_tci])
}

fn device_number(index: u32) -> io::Result<libc::c_int> {
    index.try_into().map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// What a call of the C library says that returns 0 or has set `errno`.
fn done(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Puts a descriptor under tokio's eye for reading. Call within a tokio runtime.
pub(super) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // JUSTIFICATION: tokio calls its safe constructor unsound, because an `AsRawFd` may name a
    // descriptor it does not own. SAFETY: an `OwnedFd` owns an open descriptor, names the same one
    // each time, and closes it only when dropped; nothing here exchanges the one inside the
    // `AsyncFd`.
    Ok(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?)
}

/// Has all descriptors but the standard ones closed when a program is started. `EINVAL` or `ENOSYS` if the kernel
/// cannot.
pub(super) fn close_others_on_exec() -> io::Result<()> {
    let (first, last, flags) = (3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // JUSTIFICATION: no crate we use wraps it. SAFETY: it is given numbers only, and with this flag closes nothing now:
    // every descriptor stays what it is to whoever owns it.
    let status = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
