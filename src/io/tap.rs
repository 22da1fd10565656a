//! A tap: a network device whose wire is this program.
//!
//! Problem: one read or write per 1500-byte frame costs more than everything else together.
//! Source: the kernel's tun driver; measured, a superpacket costs a tenth per segment.
//! Law: the tap has a vnet header and every offload the kernel knows, so that superpackets are read
//! and written whole, with checksums left unfinished.
//! Left out: several queues; big TCP, which a tap does not give (its superpackets end at 64 kB).

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;

use super::batch::{Batch, Run, Slices};
use super::netlink::{self, LinkOptions, NetlinkError};
use super::pool::{Fill, Pool, Scratch};
use super::port::{
    Counters, NoRuns, Port, PortError, Recv, Sent, WriteErrors, WriteRuns, refuses_runs,
};
use super::sys::{self, IFF_NO_PI, IFF_TAP, IFF_VNET_HDR, offload};
use crate::packet::split::Checksums;
use crate::packet::vnet::VnetHeader;

const TUN: &str = "/dev/net/tun";

/// What to ask of a tap, best first; an older kernel knows less.
const OFFLOADS: [u32; 5] = [
    offload::CHECKSUM | offload::TCP | offload::TCP_ECN | offload::UDP,
    offload::CHECKSUM | offload::TCP | offload::TCP_ECN,
    offload::CHECKSUM | offload::TCP,
    offload::CHECKSUM,
    0,
];

/// What a tap shall be like; `None` leaves a thing as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapOptions {
    /// Largest frame without its Ethernet header.
    pub mtu: Option<u32>,
    /// Frames, superpackets counting as one, that wait in the device for us to read them; what
    /// comes on top is lost before any discipline sees it.
    pub queue_len: Option<u32>,
}

/// An open tap. It belongs to the network namespace of the thread that opened it and can be used
/// from any; unless it was made persistent it goes when this value does.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    name: String,
    offloads: u32,
}

/// Why a tap could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Not the name of a device.
    #[error(
        "\"{name}\" cannot name a tap: give 1 to 15 bytes without \"/\", \":\" and spaces, \
         and not \".\" or \"..\""
    )]
    Name {
        /// The port.
        name: String,
    },
    /// No tun driver.
    #[error(
        "cannot open {name}: there is no /dev/net/tun; load the module with \"modprobe tun\", \
         or pass the device into the container"
    )]
    NoTun {
        /// The port.
        name: String,
    },
    /// The driver is out of reach.
    #[error(
        "cannot open {name}: this user may not open /dev/net/tun; run as root, \
         or have it opened up with \"chmod 666 /dev/net/tun\""
    )]
    NoAccess {
        /// The port.
        name: String,
    },
    /// Not allowed.
    #[error("cannot open {name}: not permitted; run as root or with CAP_NET_ADMIN")]
    NotPermitted {
        /// The port.
        name: String,
    },
    /// Somebody has it.
    #[error("cannot open {name}: another program holds it; stop that one, or choose another name")]
    Busy {
        /// The port.
        name: String,
    },
    /// There is such a device, but it is something else.
    #[error(
        "cannot open {name}: there is a device of that name and it is not a tap with one queue; \
         choose another name"
    )]
    NotATap {
        /// The port.
        name: String,
    },
    /// No superpackets.
    #[error("cannot open {name}: this system's taps have no vnet header (IFF_VNET_HDR)")]
    NoVnetHeader {
        /// The port.
        name: String,
    },
    /// It was opened, but not as asked.
    #[error("cannot set up {name}: {source}")]
    Options {
        /// The port.
        name: String,
        /// What was refused.
        source: NetlinkError,
    },
    /// Anything else.
    #[error("cannot open {name}: {source}")]
    System {
        /// The port.
        name: String,
        /// What the system said.
        source: io::Error,
    },
}

impl Tap {
    /// Opens the tap `name`, creating it if there is none, in the calling thread's network
    /// namespace. A
    /// `%d` in the name stands for the first free number.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(name: &str, options: &TapOptions) -> Result<Self, OpenError> {
        check_name(name)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(TUN, flags, Mode::empty()).map_err(|errno| open_error(name, errno))?;
        let existed = rustix::net::netdevice::name_to_index(&fd_for_names(name)?, name).is_ok();
        let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
        let name = sys::tun_attach(&fd, name, flags)
            .map_err(|error| attach_error(name, existed, &fd, error))?;
        sys::tun_set_vnet_header_len(&fd, VnetHeader::LEN)
            .map_err(|source| OpenError::System { name: name.clone(), source })?;
        let offloads = best_offloads(&fd)
            .map_err(|source| OpenError::System { name: name.clone(), source })?;
        set_up(&name, options)?;
        Ok(Self { fd, name, offloads })
    }

    /// The tap that `fd` is already, opened by [`Tap::open`] in another process, which says what came of it.
    #[must_use]
    pub const fn from_fd(fd: OwnedFd, name: String, offloads: u32) -> Self {
        Self { fd, name, offloads }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the kernel leaves to us, as `TUN_F_*` bits: 0x6f is all there is.
    #[must_use]
    pub const fn offloads(&self) -> u32 {
        self.offloads
    }

    /// Whether the device stays when this value goes, for the next one to attach to. A new tap does
    /// not.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn keep(&self, keep: bool) -> io::Result<()> {
        sys::tun_set_persistent(&self.fd, keep)
    }
}

/// Gives a device what is asked for.
pub(super) fn set_up(name: &str, options: &TapOptions) -> Result<(), OpenError> {
    let TapOptions { mtu, queue_len } = *options;
    if mtu.is_none() && queue_len.is_none() {
        return Ok(());
    }
    let options = LinkOptions { mtu, queue_len, ..LinkOptions::default() };
    netlink::configure(name, &options)
        .map_err(|source| OpenError::Options { name: name.into(), source })
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(super) fn check_name(name: &str) -> Result<(), OpenError> {
    let wrong = name.is_empty()
        || name.len() >= sys::NAME_SIZE
        || name == "."
        || name == ".."
        || name.contains(|c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace());
    if wrong { Err(OpenError::Name { name: name.into() }) } else { Ok(()) }
}

/// A socket, which is what names of devices are asked of.
fn fd_for_names(name: &str) -> Result<OwnedFd, OpenError> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| OpenError::System { name: name.into(), source: errno.into() })
}

fn open_error(name: &str, errno: Errno) -> OpenError {
    let name = name.to_owned();
    match errno {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => OpenError::NoTun { name },
        Errno::ACCESS => OpenError::NoAccess { name },
        Errno::PERM => OpenError::NotPermitted { name },
        _ => OpenError::System { name, source: errno.into() },
    }
}

/// The kernel says `EINVAL` both of a device of another kind and of flags it does not know.
fn attach_error(name: &str, existed: bool, tun: &OwnedFd, source: io::Error) -> OpenError {
    let name = name.to_owned();
    match Errno::from_io_error(&source) {
        Some(Errno::PERM | Errno::ACCESS) => OpenError::NotPermitted { name },
        Some(Errno::BUSY) => OpenError::Busy { name },
        Some(Errno::INVAL) if !knows_vnet_headers(tun) => OpenError::NoVnetHeader { name },
        Some(Errno::INVAL | Errno::EXIST) if existed => OpenError::NotATap { name },
        _ => OpenError::System { name, source },
    }
}

/// What a plain tap could not be opened for: opening the driver and attaching are one there.
pub(super) fn plain_error(name: &str, source: io::Error) -> OpenError {
    let name = name.to_owned();
    match Errno::from_io_error(&source) {
        Some(Errno::NOENT | Errno::NXIO | Errno::NODEV) => OpenError::NoTun { name },
        Some(Errno::ACCESS) => OpenError::NoAccess { name },
        Some(Errno::PERM) => OpenError::NotPermitted { name },
        Some(Errno::BUSY) => OpenError::Busy { name },
        Some(Errno::INVAL | Errno::EXIST) => OpenError::NotATap { name },
        _ => OpenError::System { name, source },
    }
}

fn knows_vnet_headers(tun: &OwnedFd) -> bool {
    sys::tun_features(tun).is_ok_and(|features| features & u32::from(IFF_VNET_HDR) != 0)
}

/// Sets the most offloads the kernel takes. They belong to the device, not to us: one that was used
/// before may come with others set, so the last try, none at all, has to succeed.
fn best_offloads(tap: &OwnedFd) -> io::Result<u32> {
    let mut refusal = io::Error::from(io::ErrorKind::Unsupported);
    for offloads in OFFLOADS {
        match sys::tun_set_offload(tap, offloads) {
            Ok(()) => return Ok(offloads),
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

/// A tap at work.
pub struct TapPort {
    name: String,
    fd: AsyncFd<OwnedFd>,
    scratch: Scratch,
    no_runs: NoRuns,
    counters: Counters,
}

impl TapPort {
    /// Puts a tap to work. Call within a tokio runtime.
    ///
    /// # Errors
    /// The system is out of resources.
    pub fn new(tap: Tap) -> Result<Self, PortError> {
        let Tap { fd, name, .. } = tap;
        match sys::register(fd) {
            Ok(fd) => Ok(Self {
                name,
                fd,
                scratch: Scratch::new(),
                no_runs: NoRuns::default(),
                counters: Counters::default(),
            }),
            Err(source) => Err(PortError::Refused { port: name, doing: "watch", source }),
        }
    }
}

impl TapPort {
    /// Writes a run; segment by segment if the kernel does not take it.
    fn send_run(&mut self, run: Run<'_>) -> Result<(), PortError> {
        let Some(kind) = run.kind() else {
            return self.write(run).or_else(|errno| self.lost(errno, 1).map(drop));
        };
        if !self.no_runs.has(kind) {
            match self.write(run) {
                Ok(()) => return Ok(()),
                Err(errno) if refuses_runs(errno) => self.counters.runs_refused += 1,
                Err(errno) => return self.lost(errno, run.segments()).map(drop),
            }
        }
        self.write_singly(run, kind, 0).map(drop)
    }
}

impl WriteRuns for TapPort {
    fn write(&mut self, run: Run<'_>) -> Result<(), Errno> {
        let Some(Slices { parts, frame_len }) = run.slices(Checksums::Partial, &mut self.scratch)
        else {
            return Err(Errno::INVAL);
        };
        let tap = self.fd.get_ref();
        let outcome = rustix::io::retry_on_intr(|| match &parts[..] {
            [all] => rustix::io::write(tap, all),
            parts => rustix::io::writev(tap, parts),
        });
        if outcome.is_ok() {
            self.counters.count_sent(run.segments(), frame_len);
        }
        outcome.map(drop)
    }

    /// Never breaks: a tap has room, or drops by itself.
    fn lost(&mut self, errno: Errno, segments: u16) -> Result<ControlFlow<()>, PortError> {
        count_lost(&self.name, &mut self.counters.write_errors, errno, segments)?;
        Ok(ControlFlow::Continue(()))
    }

    fn no_runs(&mut self) -> &mut NoRuns {
        &mut self.no_runs
    }
}

impl Port for TapPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn try_recv(&mut self, pool: &Pool) -> Result<Recv, PortError> {
        let fd = &self.fd;
        let fill = pool.fill(|buffer| {
            fd.try_io(tokio::io::Interest::READABLE, |fd| Ok(rustix::io::read(fd, buffer)?))
        });
        received(&self.name, &mut self.counters, fill)
    }

    fn send(&mut self, batch: &Batch) -> Result<Sent, PortError> {
        let before = self.counters.write_errors;
        let mut runs = 0;
        for run in batch.runs() {
            self.send_run(run)?;
            runs += 1;
        }
        Ok(Sent::all(runs, &before, &self.counters.write_errors))
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), PortError>> {
        poll_readable(&self.name, &self.fd, cx)
    }

    fn lost_before_reading(&self) -> Option<u64> {
        lost_before_reading(&self.name, self.fd.get_ref().as_fd())
    }

    fn counters(&self) -> Counters {
        self.counters.clone()
    }
}

/// What became of a read.
pub(super) fn received(
    name: &str,
    counters: &mut Counters,
    fill: io::Result<Fill>,
) -> Result<Recv, PortError> {
    match fill {
        Ok(fill) => Ok(counters.count_fill(fill)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::INTR) => Ok(Recv::Skipped),
            _ if error.kind() == io::ErrorKind::WouldBlock => Ok(Recv::Empty),
            _ => Err(port_error(name, "read", error)),
        },
    }
}

/// Counts segments that the kernel did not take; an error if it takes none any more.
pub(super) fn count_lost(
    name: &str,
    errors: &mut WriteErrors,
    errno: Errno,
    segments: u16,
) -> Result<(), PortError> {
    let count = match errno {
        Errno::INVAL => &mut errors.invalid,
        Errno::IO => &mut errors.down,
        Errno::NOBUFS | Errno::NOMEM => &mut errors.no_buffers,
        Errno::AGAIN => &mut errors.full,
        Errno::MSGSIZE => &mut errors.too_long,
        _ => return Err(port_error(name, "write", errno.into())),
    };
    *count += u64::from(segments);
    Ok(())
}

/// Ready when there is something to read, or when the device was removed.
pub(super) fn poll_readable(
    name: &str,
    fd: &AsyncFd<OwnedFd>,
    cx: &mut Context<'_>,
) -> Poll<Result<(), PortError>> {
    if hung_up(fd, cx) {
        return Poll::Ready(Err(PortError::Gone { port: name.into() }));
    }
    let readable = ready!(fd.poll_read_ready(cx)).map(drop);
    Poll::Ready(readable.map_err(|error| port_error(name, "watch", error)))
}

/// Whether the device was removed. Of that epoll says `EPOLLERR` and nothing else, which tokio does not count
/// as readable: looking at the read side alone would sleep for ever.
fn hung_up(fd: &AsyncFd<OwnedFd>, cx: &mut Context<'_>) -> bool {
    // Watched for reading only, the write side becomes ready for one reason: an error.
    matches!(fd.poll_write_ready(cx), Poll::Ready(_))
}

/// What the own queue of the device `name` lost, `tap` being a descriptor of it: for whoever has it and does not
/// read it. `None` if that is not to be had; needs `CAP_NET_ADMIN`.
pub fn lost_before_reading(name: &str, tap: BorrowedFd<'_>) -> Option<u64> {
    // The device may have been moved since it was opened.
    let namespace = sys::tun_namespace(tap).ok()?;
    let link = netlink::link_in(namespace.as_fd(), name).ok()?;
    Some(link.stats.tx_dropped)
}

/// A tap whose device was removed is no tap any more: `EBADFD`.
fn port_error(name: &str, doing: &'static str, source: io::Error) -> PortError {
    let port = name.to_owned();
    match Errno::from_io_error(&source) {
        Some(Errno::BADFD | Errno::NODEV | Errno::NXIO) => PortError::Gone { port },
        _ => PortError::Refused { port, doing, source },
    }
}
