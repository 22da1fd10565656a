//! The work itself: bridges between ports that are open already, until told to stop.
//!
//! Problem: the same work is done by a data process with a supervisor, by the supervisor in its last resort, and by
//! a process that has none.
//! Law: whoever does it starts from a [`Kept`] and from descriptors, and opens nothing.
//! Left out: who says when to stop ([`crate::run`], [`crate::supervise`]).

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::mpsc;
use ucake::dql::DqlStats;
use ucake::io::driver::{self, Bridge, Command, PortSnapshot};
use ucake::io::packet_socket::{self, PacketPort, PacketSocket};
use ucake::io::plain_tap::{AnyTap, PlainTap};
use ucake::io::pool::FrameBuf;
use ucake::io::port::{Counters, Port};
use ucake::io::tap::{self, Tap};
use ucake::io::timer::Timer;
use ucake::units::FrameLen;
use ucake_cli::egress::Egress;
use ucake_cli::protocol::{State, Supervision};
use ucake_cli::value;

use crate::args::PortName;
use crate::control::{self, Control, Desk, Named, Whose};
use crate::supervise::state::{Kept, KeptBridge, KeptPort, News, PortCounts, PortKind, PortNews};
use crate::verbs;

/// The first handle that is given out on our own, as `tc` numbers them.
pub(crate) const FIRST_HANDLE: u16 = 0x8001;
/// Commands that wait for a bridge to take a turn.
const MOST_COMMANDS: usize = 4;

pub(crate) type Egresses = Bridge<Egress<FrameBuf>>;
pub(crate) type Commands = mpsc::Sender<Command<Egress<FrameBuf>>>;

/// A bridge that is ready to run.
pub(crate) struct Work {
    bridge: Egresses,
    timer: Timer,
    inbox: mpsc::Receiver<Command<Egress<FrameBuf>>>,
    control: Option<Control>,
    /// How to reach it while it runs.
    pub(crate) handle: Handle,
}

/// How to reach a bridge while it runs.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) commands: Commands,
    known: Arc<Known>,
}

/// What does not change while it runs.
struct Known {
    names: [Named; 2],
    before: [PortCounts; 2],
    whose: Whose,
}

impl Work {
    /// Makes ready what `kept` says; `fds` are the listener, if there is one, and both ports. Without CAKE if frames
    /// are to pass through. Call within a tokio runtime.
    ///
    /// # Errors
    /// The system is out of resources.
    pub(crate) fn new(kept: &Kept, fds: Vec<OwnedFd>, whose: Whose) -> anyhow::Result<Self> {
        let mut fds = fds.into_iter();
        let listener = kept.socket.as_ref().and_then(|_| fds.next());
        let [kept_bridge] = &kept.bridges[..] else { anyhow::bail!("one bridge, no more or less") };
        let KeptBridge { ports, coalesce, doorbell } = kept_bridge;
        let [lan, wan] = ports;
        let mut open =
            |port: &KeptPort| put_to_work(port, fds.next().context("a port is missing")?);
        let (lan_port, wan_port) = (open(lan)?, open(wan)?);
        let leaving = |port| egress(port, kept.supervision.passing_through);
        let mut bridge = Bridge::new(lan_port, wan_port, leaving(wan), leaving(lan))
            .with_hash_key(crate::secret().hash_key)
            .with_coalescing((*coalesce).into());
        bridge.set_doorbell((*doorbell).into());
        let timer = Timer::new().context("cannot make a timer")?;
        let (commands, inbox) = mpsc::channel(MOST_COMMANDS);
        let known = Known {
            names: ports.each_ref().map(named),
            before: ports.each_ref().map(|port| port.counts.clone()),
            whose: whose.clone(),
        };
        let desk = Desk::new(whose, known.names.clone(), commands.clone(), next_handle(kept));
        let control = listener.map(|fd| Control::start(fd.into(), desk)).transpose()?;
        let handle = Handle { commands, known: Arc::new(known) };
        Ok(Self { bridge, timer, inbox, control, handle })
    }

    /// Works until told to stop. The statistics are still to be had afterwards.
    ///
    /// # Errors
    /// A port stopped working.
    pub(crate) async fn run(&mut self) -> anyhow::Result<()> {
        let Self { bridge, timer, inbox, .. } = self;
        let outcome = driver::run(bridge, timer, inbox).await;
        self.control = None;
        Ok(outcome?)
    }

    /// Statistics, for people; what was lost before reading is asked for if it is not given.
    pub(crate) fn table(&mut self, lost: Option<&[Option<u64>]>) -> String {
        self.handle.table(&mut self.bridge, lost)
    }

    /// Everything that is to be kept.
    pub(crate) fn news(&mut self) -> [News; 2] {
        self.handle.news(&mut self.bridge)
    }
}

impl Handle {
    /// What became of those before, as the supervisor knows it now.
    pub(crate) fn set_supervision(&self, supervision: Supervision) {
        let pid = std::process::id();
        self.known.whose.set_supervision(Supervision { pid, ..supervision });
    }

    /// Waits for a change that somebody makes.
    pub(crate) async fn changed(&self) {
        self.known.whose.changed.notified().await;
    }

    /// Everything that is to be kept.
    pub(crate) fn news(&self, bridge: &mut Egresses) -> [News; 2] {
        let now = bridge.now();
        let ports = bridge.counts().ports;
        let mut port = |number: usize, snapshot: &PortSnapshot| {
            let egress = leaving(bridge, number);
            let (handle, state) = (egress.handle(), egress.state(false, now));
            let counted = self.known.before[number].added_to(snapshot.clone());
            let counts = PortCounts::of(&counted);
            News::Port(Box::new(PortNews { bridge: 0, port: number, handle, state, counts }))
        };
        let [lan, wan] = &ports;
        [port(0, lan), port(1, wan)]
    }

    /// Statistics of both directions, for people: what leaves through WAN, then what leaves through LAN. What was lost
    /// before reading is asked for if it is not given.
    pub(crate) fn table(&self, bridge: &mut Egresses, lost: Option<&[Option<u64>]>) -> String {
        let Known { names, before, whose } = &*self.known;
        let now = bridge.now();
        let ports = if lost.is_some() { bridge.counts() } else { bridge.snapshot() }.ports;
        let direction = |number: usize, egress: &Egress<FrameBuf>| {
            let state = egress.state(false, now);
            verbs::everything(&names[number].shown(whose.supervision(), egress.handle(), state))
        };
        let up = direction(1, bridge.up());
        let down = direction(0, bridge.down());
        let mut text = up + &down;
        for (number, (snapshot, before)) in ports.into_iter().zip(before).enumerate() {
            let mut snapshot = before.added_to(snapshot);
            if let Some(lost) = lost {
                snapshot.lost_before_reading = lost.get(number).copied().flatten();
            }
            text += &port(&snapshot);
        }
        text + "\n"
    }
}

/// What leaves through the port of this number: what is read of the other.
fn leaving(bridge: &mut Egresses, number: usize) -> &mut Egress<FrameBuf> {
    if number == 0 { bridge.down() } else { bridge.up() }
}

fn named(port: &KeptPort) -> Named {
    Named { port: port.name.to_string(), device: port.name.device().to_owned() }
}

/// The handle after all that are in use.
fn next_handle(kept: &Kept) -> u16 {
    let ports = kept.bridges.iter().flat_map(|bridge| &bridge.ports);
    let last = ports.map(|port| port.handle).filter(|&handle| handle >= FIRST_HANDLE).max();
    last.map_or(FIRST_HANDLE, control::following)
}

fn egress(port: &KeptPort, passing_through: bool) -> Egress<FrameBuf> {
    let mtu = FrameLen(port.largest_frame);
    match &port.state {
        State::Cake { .. } if passing_through => Egress::pass_through(mtu),
        state => Egress::going_on_from(port.handle, state, mtu, crate::secret()),
    }
}

/// The port that `fd` is.
fn put_to_work(port: &KeptPort, fd: OwnedFd) -> anyhow::Result<Box<dyn Port>> {
    let device = port.name.device().to_owned();
    Ok(match port.kind {
        PortKind::Tap { offloads } => {
            AnyTap::Vnet(Tap::from_fd(fd, device, offloads)).into_port()?
        }
        PortKind::PlainTap => AnyTap::Plain(PlainTap::from_fd(fd, device)).into_port()?,
        PortKind::Packet { index, mtu } => {
            Box::new(PacketPort::new(PacketSocket::from_fd(fd, device, index, mtu))?)
        }
    })
}

/// Asks the system what the device behind a port lost before it was read, and keeps it.
pub(crate) fn count_lost(port: &mut KeptPort, fd: BorrowedFd<'_>) {
    match port.name {
        PortName::Tap(_) => {
            port.lost = tap::lost_before_reading(port.name.device(), fd).or(port.lost);
        }
        PortName::Packet(_) => {
            // It tells what is new.
            if let Ok(more) = packet_socket::take_lost_before_reading(fd) {
                *port.lost.get_or_insert(0) += more;
            }
        }
    }
}

/// What the ports themselves counted; of this `tc` knows nothing.
fn port(port: &PortSnapshot) -> String {
    let Counters { frames_in, bytes_in, frames_out, bytes_out, write_errors, truncated, .. } =
        &port.counters;
    let refused: u64 = port.counters.refused.iter().map(|(_, count)| count).sum();
    let lost = port.lost_before_reading.map_or_else(|| "?".to_owned(), |lost| lost.to_string());
    let DqlStats { limit, in_flight, stops, stopped } = port.dql;
    format!(
        "port {}: read {bytes_in} bytes {frames_in} frames (refused {}, lost before reading {lost}), \
         wrote {bytes_out} bytes {frames_out} frames (failed {}, too long {})\n \
         segments {} doorbell {} runs_refused {} byte_limit {limit} in_flight {in_flight} \
         stopped {stops} times {}\n",
        port.name,
        refused + truncated,
        write_errors.total() - write_errors.too_long,
        write_errors.too_long,
        port.counters.segments_out,
        port.rings,
        port.counters.runs_refused,
        value::time(stopped),
    )
}
