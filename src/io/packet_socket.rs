//! A network device as it stands, heard and spoken through by a packet socket.
//!
//! Problem: a link that ends in a device of the system cannot be moved behind a tap.
//! Source: packet(7); the kernel's `af_packet`, as measured.
//! Law: the socket has a vnet header, so that superpackets are read and written whole, with checksums left
//! unfinished, as on a tap. What is due leaves with one call. A frame is in flight until the kernel gives
//! back the memory it was charged.
//! Left out: rings shared with the kernel, several queues, big TCP (superpackets end at 64 kB). The host's
//! own stack hears the same frames: whoever bridges a device takes its addresses away.

use std::cell::Cell;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use arrayvec::ArrayVec;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::netdevice::{index_to_name_inlined, name_to_index};
use rustix::net::{
    AddressFamily, MMsgHdr, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sendmmsg,
    sendmsg, socket_with, sockopt,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::batch::{Batch, Run, RunKind, Slices};
use super::handed::{Handed, Message, charge};
use super::pool::{Fill, Pool, Scratch};
use super::port::{Counters, NoRuns, Port, PortError, Recv, Sent, WriteRuns, refuses_runs};
use super::sys::{self, PacketOption};
use crate::packet::dissect::Refused;
use crate::packet::split::Checksums;
use crate::packet::vnet::VnetHeader;
use crate::time::{Instant, Span};

/// Most runs that leave with one call: as many frames as the driver reads in one turn.
const MOST: usize = 64;
/// Bytes that may wait for us to read them; the kernel counts memory, for which it takes twice as much: some
/// two hundred superpackets, or 15 ms at 10 Gbit/s.
const READ_ROOM: usize = 8 << 20;
/// Bytes that may wait below us, counted likewise. The byte limit of the driver is what keeps that queue
/// short; this only must not be what keeps a fast device waiting: 1 MiB is 0.8 ms at 10 Gbit/s.
const WRITE_ROOM: usize = 512 << 10;
/// Ethernet header without tags.
const ETHERNET: usize = 14;
/// Vnet header and both addresses: what stands before a VLAN tag.
const BEFORE_TAG: usize = VnetHeader::LEN + 12;
/// A VLAN tag.
const TAG: usize = 4;
/// The protocol of a VLAN tag of 802.1Q.
const CUSTOMER: [u8; 2] = [0x81, 0x00];
/// A device that is down is looked at again after this. Of its removal then comes no other sign.
const DOWN_POLL: Span = Span::from_millis(100);

/// An open packet socket on one device. It belongs to the network namespace of the thread that opened it and
/// can be used from any.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    name: String,
    index: u32,
    mtu: usize,
}

/// Why a packet socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Not the name of a device.
    #[error(
        "\"{name}\" cannot be a network device: names have 1 to 15 bytes, without \"/\" and spaces"
    )]
    Name {
        /// The port.
        name: String,
    },
    /// No such device.
    #[error("cannot open {name}: there is no network device of that name here")]
    NoDevice {
        /// The port.
        name: String,
    },
    /// Not allowed.
    #[error("cannot open {name}: not permitted; run as root or with CAP_NET_RAW")]
    NotPermitted {
        /// The port.
        name: String,
    },
    /// Loopback.
    #[error(
        "cannot open {name}: it is loopback, where whatever is sent comes in again at once; \
         choose a device that leads to a link"
    )]
    Loopback {
        /// The port.
        name: String,
    },
    /// Not an Ethernet.
    #[error(
        "cannot open {name}: it is no Ethernet device (its ARPHRD type is {hardware}), and frames of \
         another kind are not understood here"
    )]
    NotEthernet {
        /// The port.
        name: String,
        /// `ARPHRD_*`.
        hardware: u16,
    },
    /// No superpackets.
    #[error(
        "cannot open {name}: this system's packet sockets have no vnet header (PACKET_VNET_HDR)"
    )]
    NoVnetHeader {
        /// The port.
        name: String,
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

impl PacketSocket {
    /// Opens the device `name` of the calling thread's network namespace, and makes it hear frames to
    /// whomever. A device that is down is opened too.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(name: &str) -> Result<Self, OpenError> {
        check_name(name)?;
        let system = |source| OpenError::System { name: name.into(), source };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Without a protocol it hears nothing before it is bound to the one device.
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(|errno| open_error(name, errno))?;
        let index = name_to_index(&fd, name).map_err(|errno| open_error(name, errno))?;
        check_hardware(name, sys::device_hardware(&fd, name).map_err(system)?)?;
        let mtu = sys::device_mtu(&fd, name).map_err(system)?;
        sys::packet_enable(&fd, PacketOption::VnetHeader)
            .map_err(|_| OpenError::NoVnetHeader { name: name.into() })?;
        sys::packet_enable(&fd, PacketOption::AuxData).map_err(system)?;
        // Kernels before 4.20 do not know it; then such frames are told by their type.
        let _ = sys::packet_enable(&fd, PacketOption::IgnoreOutgoing);
        make_room(&fd).map_err(|errno| system(errno.into()))?;
        sys::packet_bind(&fd, index).map_err(system)?;
        sys::packet_promiscuous(&fd, index).map_err(system)?;
        Ok(Self { fd, name: name.into(), index, mtu: mtu as usize })
    }

    /// The socket that `fd` is already, opened by [`PacketSocket::open`] in another process, which says what it
    /// is bound to: the device's name and number, and its MTU then.
    #[must_use]
    pub const fn from_fd(fd: OwnedFd, name: String, index: u32, mtu: usize) -> Self {
        Self { fd, name, index, mtu }
    }

    /// Its device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its device's number.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The largest packet that the device sent when it was opened, without Ethernet header.
    #[must_use]
    pub const fn mtu(&self) -> usize {
        self.mtu
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Frames that found the buffer of a packet socket full since this was last asked, `socket` being a descriptor of it:
/// for whoever has it and does not read it.
///
/// # Errors
/// It is no packet socket.
pub fn take_lost_before_reading(socket: BorrowedFd<'_>) -> io::Result<u64> {
    sys::packet_drops(socket).map(u64::from)
}

fn check_name(name: &str) -> Result<(), OpenError> {
    let wrong = name.is_empty()
        || name.len() >= sys::NAME_SIZE
        || name.contains(|c: char| c == '/' || c == '\0' || c.is_whitespace());
    if wrong { Err(OpenError::Name { name: name.into() }) } else { Ok(()) }
}

fn check_hardware(name: &str, hardware: u16) -> Result<(), OpenError> {
    let name = name.to_owned();
    match hardware {
        libc::ARPHRD_ETHER => Ok(()),
        libc::ARPHRD_LOOPBACK => Err(OpenError::Loopback { name }),
        _ => Err(OpenError::NotEthernet { name, hardware }),
    }
}

fn open_error(name: &str, errno: Errno) -> OpenError {
    let name = name.to_owned();
    match errno {
        Errno::PERM | Errno::ACCESS => OpenError::NotPermitted { name },
        Errno::NODEV | Errno::NXIO => OpenError::NoDevice { name },
        _ => OpenError::System { name, source: errno.into() },
    }
}

/// Room to wait in, as much as is permitted.
fn make_room(fd: &OwnedFd) -> Result<(), Errno> {
    sockopt::set_socket_recv_buffer_size_force(fd, READ_ROOM)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(fd, READ_ROOM))?;
    sockopt::set_socket_send_buffer_size_force(fd, WRITE_ROOM)
        .or_else(|_| sockopt::set_socket_send_buffer_size(fd, WRITE_ROOM))
}

/// A packet socket at work.
pub struct PacketPort {
    device: Device,
    /// The same socket by another number, so that it can be put under tokio's eye anew.
    watch: AsyncFd<OwnedFd>,
    runtime: Handle,
    /// Set when the socket has an error to tell.
    alarm: Cell<bool>,
    /// Whether the frame read last had a tag: the next one is likely to be the same.
    tagged: bool,
    scratches: Box<[Scratch; MOST]>,
    no_runs: NoRuns,
    lost_before_reading: Cell<u64>,
}

/// The device, what it was given and what it said.
struct Device {
    socket: OwnedFd,
    name: String,
    index: u32,
    mtu: usize,
    counters: Counters,
    handed: Handed,
    now: Instant,
    /// Set while the device is down.
    look_at: Option<Instant>,
}

/// How a run is to leave.
enum Way {
    Whole,
    Singly(RunKind),
    /// Not at all: the device does not send anything so long.
    TooLong,
}

/// Why not all runs were handed over.
enum Stop {
    /// No room now.
    Full,
    /// This one may go segment by segment.
    Refused(RunKind),
}

impl PacketPort {
    /// Puts a packet socket to work. Call within a tokio runtime.
    ///
    /// # Errors
    /// The system is out of resources.
    pub fn new(socket: PacketSocket) -> Result<Self, PortError> {
        let PacketSocket { fd, name, index, mtu } = socket;
        let watch = match watch(&fd) {
            Ok(watch) => watch,
            Err(source) => return Err(PortError::Refused { port: name, doing: "watch", source }),
        };
        let device = Device {
            socket: fd,
            name,
            index,
            mtu,
            counters: Counters::default(),
            handed: Handed::new(),
            now: Instant::ZERO,
            look_at: None,
        };
        Ok(Self {
            device,
            watch,
            runtime: Handle::current(),
            alarm: Cell::new(false),
            tagged: false,
            scratches: Box::new([const { Scratch::new() }; MOST]),
            no_runs: NoRuns::default(),
            lost_before_reading: Cell::new(0),
        })
    }

    /// Sends the first of `runs`, as many as there is room for; how many it was done with.
    fn send_group(&mut self, runs: &[Run<'_>]) -> Result<usize, PortError> {
        let mut rest = runs;
        while let Some(&first) = rest.first() {
            let done = match self.way(&first) {
                Way::Whole => self.send_whole(rest)?,
                Way::Singly(kind) => usize::from(self.send_singly(first, kind)?),
                Way::TooLong => {
                    self.device.counters.write_errors.too_long += u64::from(first.segments());
                    1
                }
            };
            if done == 0 {
                break;
            }
            rest = rest.get(done..).unwrap_or_default();
        }
        Ok(runs.len() - rest.len())
    }

    fn way(&mut self, run: &Run<'_>) -> Way {
        if self.device.is_too_long(run) {
            return Way::TooLong;
        }
        match run.kind() {
            Some(kind) if self.no_runs.has(kind) => Way::Singly(kind),
            _ => Way::Whole,
        }
    }

    /// Sends those at the beginning of `runs` that go whole.
    fn send_whole(&mut self, runs: &[Run<'_>]) -> Result<usize, PortError> {
        let whole = runs.iter().take_while(|run| matches!(self.way(run), Way::Whole)).count();
        let (done, stop) = self.hand_over(runs.get(..whole).unwrap_or_default())?;
        match (stop, runs.get(done)) {
            (Some(Stop::Refused(kind)), Some(&refused)) => {
                self.device.counters.runs_refused += 1;
                Ok(done + usize::from(self.send_singly(refused, kind)?))
            }
            _ => Ok(done),
        }
    }

    /// Sends a run segment by segment; false, with nothing sent, if there is no room for the first.
    fn send_singly(&mut self, run: Run<'_>, kind: RunKind) -> Result<bool, PortError> {
        match self.write_singly(run, kind, 0)? {
            ControlFlow::Break(0) => return Ok(false),
            // It cannot be offered again in part.
            ControlFlow::Break(sent) => {
                let left = u64::from(run.segments()).saturating_sub(sent as u64);
                self.device.counters.write_errors.full += left;
            }
            ControlFlow::Continue(()) => {}
        }
        Ok(true)
    }

    /// Hands over runs with one call, and one more behind each that is not taken. How many were dealt with,
    /// and why not all.
    fn hand_over(&mut self, runs: &[Run<'_>]) -> Result<(usize, Option<Stop>), PortError> {
        let Self { device, scratches, .. } = self;
        let slices: ArrayVec<Slices<'_>, MOST> = (runs.iter().zip(scratches.iter_mut()))
            .map_while(|(run, scratch)| run.slices(Checksums::Partial, scratch))
            .collect();
        if slices.is_empty() {
            // The first one has no bytes that could be sent.
            device.counters.write_errors.invalid += 1;
            return Ok((1, None));
        }
        let mut no_control: [_; MOST] = std::array::from_fn(|_| SendAncillaryBuffer::default());
        let mut messages: ArrayVec<_, MOST> = (slices.iter().zip(&mut no_control))
            .map(|(slices, control)| MMsgHdr::new(&slices.parts, control))
            .collect();
        let mut done = 0;
        while let (Some(left @ [_, ..]), Some(run)) = (messages.get_mut(done..), runs.get(done)) {
            match retry_on_intr(|| sendmmsg(&device.socket, left, SendFlags::empty())) {
                Ok(sent) => {
                    let sent = sent.max(1);
                    (runs.iter().zip(&slices).skip(done).take(sent))
                        .for_each(|(run, slices)| device.note_sent(run, slices));
                    done += sent;
                }
                Err(errno) => {
                    if let Some(kind) = run.kind().filter(|_| refuses_runs(errno)) {
                        return Ok((done, Some(Stop::Refused(kind))));
                    }
                    if device.note_lost(errno, run.segments())?.is_break() {
                        return Ok((done, Some(Stop::Full)));
                    }
                    done += 1;
                }
            }
        }
        Ok((done, None))
    }

    /// Hears what error the socket has, and puts it under tokio's eye anew: an error alone counts there as
    /// the end of writing, which is never taken back.
    fn answer_alarm(&mut self) -> Result<(), PortError> {
        if let Ok(Err(errno)) = sockopt::socket_error(&self.device.socket) {
            self.device.note_error(errno)?;
        }
        let _inside = self.runtime.enter();
        self.watch = watch(&self.device.socket)
            .map_err(|source| port_error(&self.device.name, "watch", source))?;
        Ok(())
    }
}

fn watch(socket: &OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    sys::register(socket.try_clone()?)
}

impl WriteRuns for PacketPort {
    fn write(&mut self, run: Run<'_>) -> Result<(), Errno> {
        let [scratch, ..] = &mut *self.scratches;
        let slices = run.slices(Checksums::Partial, scratch).ok_or(Errno::INVAL)?;
        let mut no_control = SendAncillaryBuffer::default();
        retry_on_intr(|| {
            sendmsg(&self.device.socket, &slices.parts, &mut no_control, SendFlags::empty())
        })?;
        self.device.note_sent(&run, &slices);
        Ok(())
    }

    fn lost(&mut self, errno: Errno, segments: u16) -> Result<ControlFlow<()>, PortError> {
        self.device.note_lost(errno, segments)
    }

    fn no_runs(&mut self) -> &mut NoRuns {
        &mut self.no_runs
    }
}

impl Device {
    /// Whether the kernel would not take it as a single frame, or its longest segment, for being above the MTU.
    /// Of a superpacket it does not ask; but if a connection's superpackets passed and its single segments did
    /// not, it would stall instead of learning.
    fn is_too_long(&mut self, run: &Run<'_>) -> bool {
        if run.frame_len() <= self.mtu + ETHERNET {
            return false;
        }
        let frame = run.frames().first().map_or(&[][..], |frame| frame.bytes());
        let len = run.longest_segment().saturating_sub(ETHERNET + spare(frame));
        if len > self.mtu {
            // It may have grown since it was read.
            self.read_mtu();
        }
        len > self.mtu
    }

    fn read_mtu(&mut self) {
        let name = index_to_name_inlined(&self.socket, self.index);
        let mtu = name.map_err(io::Error::from).and_then(|name| {
            // Its name may have changed.
            sys::device_mtu(&self.socket, name.as_str())
        });
        if let Ok(mtu) = mtu {
            self.mtu = mtu as usize;
        }
    }

    fn note_sent(&mut self, run: &Run<'_>, slices: &Slices<'_>) {
        self.counters.count_sent(run.segments(), slices.frame_len);
        let header_len = slices.parts.first().and_then(|head| head.first_chunk());
        let header_len = header_len.map_or(0, |head| VnetHeader::decode(head).hdr_len);
        let bytes = run.bytes();
        if self.handed.is_full() {
            // Nobody asks what is in flight.
            let _ = self.in_flight();
        }
        self.handed.push(Message { charge: charge(slices.frame_len, header_len.into()), bytes });
    }

    fn in_flight(&mut self) -> Result<u64, PortError> {
        let held = sys::outstanding(&self.socket)
            .map_err(|source| port_error(&self.name, "ask", source))?;
        Ok(self.handed.settle(held))
    }

    /// Counts what the kernel did not take. Breaks if it has no room now.
    fn note_lost(&mut self, errno: Errno, segments: u16) -> Result<ControlFlow<()>, PortError> {
        let errors = &mut self.counters.write_errors;
        let count = match errno {
            Errno::AGAIN => return Ok(ControlFlow::Break(())),
            Errno::INVAL => &mut errors.invalid,
            Errno::IO => &mut errors.down,
            Errno::NETDOWN => {
                self.look_at.get_or_insert(self.now);
                &mut errors.down
            }
            // What is below, a qdisc or a driver, had no room and dropped it.
            Errno::NOBUFS | Errno::NOMEM => &mut errors.no_buffers,
            Errno::MSGSIZE => &mut errors.too_long,
            _ => return Err(port_error(&self.name, "write", errno.into())),
        };
        *count += u64::from(segments);
        if errno == Errno::MSGSIZE {
            self.read_mtu();
        }
        Ok(ControlFlow::Continue(()))
    }

    /// What the socket itself has to say.
    fn note_error(&mut self, errno: Errno) -> Result<(), PortError> {
        if errno != Errno::NETDOWN {
            return Err(port_error(&self.name, "read", errno.into()));
        }
        self.counters.times_down += 1;
        self.look_at = Some(self.now);
        Ok(())
    }

    /// Looks whether a device that was down is up again, or gone.
    fn look(&mut self) -> Result<(), PortError> {
        let refused = |source| port_error(&self.name, "find", source);
        let name = index_to_name_inlined(&self.socket, self.index);
        let name = name.map_err(|errno| refused(errno.into()))?;
        // Renamed in between: it is there, and looked at again.
        let up = match sys::device_is_up(&self.socket, name.as_str()) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => false,
            up => up.map_err(refused)?,
        };
        self.look_at = if up { None } else { Some(self.now + DOWN_POLL) };
        Ok(())
    }
}

impl Port for PacketPort {
    fn name(&self) -> &str {
        &self.device.name
    }

    fn try_recv(&mut self, pool: &Pool) -> Result<Recv, PortError> {
        if self.alarm.take() {
            self.answer_alarm()?;
        }
        let Self { device, watch, tagged, .. } = self;
        let read = |buffer: &mut [u8]| {
            watch.try_io(Interest::READABLE, |socket| receive(socket, buffer, tagged))
        };
        let error = match pool.fill(read) {
            Ok(fill) => return Ok(device.counters.count_fill(fill)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Recv::Empty),
            Err(error) => error,
        };
        match Errno::from_io_error(&error) {
            Some(Errno::INTR) => Ok(Recv::Skipped),
            // A superpacket of a kind that vnet headers have no word for.
            Some(Errno::INVAL) => {
                Ok(device.counters.count_fill(Fill::Refused(Refused::GsoUnknown)))
            }
            Some(errno) => device.note_error(errno).map(|()| Recv::Skipped),
            None => Err(port_error(&device.name, "read", error)),
        }
    }

    fn send(&mut self, batch: &Batch) -> Result<Sent, PortError> {
        let before = self.device.counters.write_errors;
        let (mut sent, mut all) = (0, batch.runs());
        let full = loop {
            let group: ArrayVec<Run<'_>, MOST> = all.by_ref().take(MOST).collect();
            if group.is_empty() {
                break false;
            }
            let done = self.send_group(&group)?;
            sent += done;
            if done < group.len() {
                break true;
            }
        };
        let all = Sent::all(sent, &before, &self.device.counters.write_errors);
        Ok(Sent { congested: full || all.congested, ..all })
    }

    /// By the memory the kernel still charges to the socket (`io/handed.rs`).
    fn in_flight(&mut self) -> Result<u64, PortError> {
        self.device.in_flight()
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), PortError>> {
        // Watched for reading only, the write side becomes ready for one reason: an error.
        if self.watch.poll_write_ready(cx).is_ready() {
            self.alarm.set(true);
            return Poll::Ready(Ok(()));
        }
        let readable = self.watch.poll_read_ready(cx).map_ok(drop);
        readable.map_err(|error| port_error(&self.device.name, "watch", error))
    }

    /// While the device is down.
    fn next_due(&self) -> Option<Instant> {
        self.device.look_at
    }

    fn advance(&mut self, now: Instant) -> Result<(), PortError> {
        self.device.now = now;
        if self.device.look_at.is_some_and(|at| at <= now) {
            self.device.look()?;
        }
        Ok(())
    }

    fn lost_before_reading(&self) -> Option<u64> {
        // The kernel forgets what it has told.
        let new = sys::packet_drops(&self.device.socket).ok()?;
        self.lost_before_reading.set(self.lost_before_reading.get() + u64::from(new));
        Some(self.lost_before_reading.get())
    }

    fn set_mtu(&mut self, mtu: u32) {
        self.device.mtu = mtu as usize;
    }

    fn counters(&self) -> Counters {
        self.device.counters.clone()
    }
}

fn port_error(name: &str, doing: &'static str, source: io::Error) -> PortError {
    let port = name.to_owned();
    match Errno::from_io_error(&source) {
        Some(Errno::NODEV | Errno::NXIO) => PortError::Gone { port },
        _ => PortError::Refused { port, doing, source },
    }
}

/// Reads a frame, vnet header first, and puts a tag that the kernel took out back in. `tagged`: whether there
/// was one last time, and then whether there was this time.
fn receive(socket: &OwnedFd, buffer: &mut [u8], tagged: &mut bool) -> io::Result<usize> {
    let room = buffer.len();
    let gap = if *tagged { TAG } else { 0 };
    let (head, rest) = buffer.split_at_mut(BEFORE_TAG.min(room));
    let packet =
        sys::packet_receive(socket.as_fd(), head, rest.get_mut(gap..).unwrap_or_default())?;
    if packet.outgoing {
        return Err(io::ErrorKind::Interrupted.into());
    }
    *tagged = packet.tag.is_some();
    Ok(if packet.truncated { room } else { close_gap(buffer, packet.len, gap, packet.tag) })
}

/// Makes one frame of `len` bytes read with a gap behind the addresses, and the tag that belongs there. The
/// new length.
fn close_gap(buffer: &mut [u8], len: usize, gap: usize, tag: Option<[u16; 2]>) -> usize {
    // What has no more than addresses is refused for being short, whatever stands behind.
    let Some(rest) = len.checked_sub(BEFORE_TAG) else { return len };
    let wanted = if tag.is_some() { TAG } else { 0 };
    if len + wanted > buffer.len() {
        return buffer.len();
    }
    if gap != wanted {
        buffer.copy_within(BEFORE_TAG + gap..BEFORE_TAG + gap + rest, BEFORE_TAG + wanted);
    }
    if let Some([protocol, control]) = tag {
        let bytes = buffer[BEFORE_TAG..].iter_mut();
        let tag = [protocol.to_be_bytes(), control.to_be_bytes()];
        bytes.zip(tag.as_flattened()).for_each(|(byte, tag)| *byte = *tag);
        shift_offsets(buffer);
    }
    len + wanted
}

/// The vnet header was made for the frame without the tag.
fn shift_offsets(buffer: &mut [u8]) {
    let Some(head) = buffer.first_chunk_mut() else { return };
    let mut vnet = VnetHeader::decode(head);
    let shifted = |offset: u16| offset.saturating_add(4);
    if vnet.needs_csum() {
        vnet.csum_start = shifted(vnet.csum_start);
    }
    if vnet.hdr_len > 0 {
        vnet.hdr_len = shifted(vnet.hdr_len);
    }
    *head = vnet.encode();
}

/// By how many bytes the kernel lets a frame be longer than the MTU: for one tag of 802.1Q. A device that is
/// to carry more of them needs a larger MTU.
fn spare(frame: &[u8]) -> usize {
    if frame.get(12..14) == Some(&CUSTOMER) { TAG } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_put_back_whatever_was_expected() {
        let vnet = VnetHeader { flags: 1, csum_start: 34, csum_offset: 16, ..VnetHeader::PLAIN };
        let addresses = [0xaa; 12];
        let rest: Vec<u8> = (0..50).collect();
        for (gap, tag) in
            [(0, None), (4, None), (0, Some([0x8100, 7])), (4, Some([0x88a8, 0x2007]))]
        {
            let mut buffer = vec![0xff; 100];
            buffer[..10].copy_from_slice(&vnet.encode());
            buffer[10..22].copy_from_slice(&addresses);
            buffer[22 + gap..][..50].copy_from_slice(&rest);
            let len = close_gap(&mut buffer, 72, gap, tag);
            let bytes = tag.map(|tag| tag.map(u16::to_be_bytes).concat()).unwrap_or_default();
            assert_eq!(buffer[10..len], [&addresses[..], &bytes, &rest].concat(), "{gap} {tag:?}");
            let start = 34 + u16::try_from(bytes.len()).expect("four");
            let found = VnetHeader::decode(buffer.first_chunk().expect("a header"));
            assert_eq!(found, VnetHeader { csum_start: start, ..vnet });
        }
    }

    #[test]
    fn a_tag_for_which_there_is_no_room_makes_the_frame_too_long() {
        let mut buffer = vec![0; 60];
        for len in [0, 9, 21] {
            assert_eq!(close_gap(&mut buffer, len, 0, Some([0x8100, 7])), len);
        }
        assert_eq!(close_gap(&mut buffer, 56, 0, Some([0x8100, 7])), 60);
        assert_eq!(close_gap(&mut buffer, 57, 0, Some([0x8100, 7])), 60);
        assert_eq!(close_gap(&mut buffer, 60, 0, None), 60);
    }

    #[test]
    fn one_tag_may_come_on_top_of_the_mtu() {
        let frame = |tail: &[u8]| [&[2; 12][..], tail].concat();
        assert_eq!(spare(&frame(&[8, 0, 0x45, 0])), 0);
        assert_eq!(spare(&frame(&[0x81, 0, 0, 7, 0x81, 0, 0, 8])), 4);
        assert_eq!(spare(&frame(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 8, 8, 0])), 0);
        assert_eq!((spare(&frame(&[0x81])), spare(&[])), (0, 0));
    }

    #[test]
    fn names_that_cannot_be_are_refused_before_the_kernel_sees_them() {
        for name in ["", "sixteen-bytes-xx", "a/b", "a b"] {
            let error = PacketSocket::open(name).expect_err(name);
            assert!(matches!(error, OpenError::Name { .. }), "{name}: {error}");
        }
    }
}
