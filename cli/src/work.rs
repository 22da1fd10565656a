//! The work itself: bridges between ports that are open already, until told to stop.
//!
//! Problem: the same work is done by a data process with a supervisor, by the supervisor in its last resort, and by
//! a process that has none.
//! Law: whoever does it starts from a [`Kept`] and from descriptors, and opens nothing. Each bridge is a task of its
//! own on one thread: one that ends is told of, and the others go on.
//! Left out: who says when to stop ([`crate::run`], [`crate::supervise`]).

mod roster;

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tracing::{info, warn};
use ucake::io::conntrack::Translator;
use ucake::io::driver::{self, Bridge, BridgeError};
use ucake::io::packet_socket::{self, PacketPort, PacketSocket};
use ucake::io::plain_tap::{AnyTap, PlainTap};
use ucake::io::pool::{FrameBuf, Pool};
use ucake::io::port::Port;
use ucake::io::tap::{self, Tap};
use ucake::io::timer::Timer;
use ucake::qdisc::Config;
use ucake::units::FrameLen;
use ucake_cli::egress::Egress;
use ucake_cli::plan::PortName;
use ucake_cli::protocol::{Event, State, Supervision};
use ucake_cli::show;

use crate::control::{self, Control, Desk, Whose};
use crate::supervise::state::{
    BridgeId, Kept, KeptBridge, KeptCounts, KeptPort, News, PortKind, PortNews,
};
use crate::verbs;
pub(crate) use roster::{Egresses, Member, Named, Roster, Told, leaving};

/// The first handle that is given out on our own, as `tc` numbers them.
pub(crate) const FIRST_HANDLE: u16 = 0x8001;

/// How long a bridge that is taken away may take to send what is queued in it.
const DRAIN: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(2);

/// What each port's device lost before it was read, bridge by bridge, where it is known.
pub(crate) type Lost = BTreeMap<BridgeId, [Option<u64>; 2]>;

/// Bridges at work.
pub(crate) struct Work {
    running: JoinSet<Ended>,
    wishes: mpsc::UnboundedReceiver<Wish>,
    control: Option<Control>,
    passing_through: bool,
    /// Those that have ended, for their statistics.
    ended: Vec<(Member, Egresses)>,
    /// Where the frames of all bridges are.
    pool: Pool,
    /// Who knows about connections.
    translator: Option<Translator>,
    /// How to reach those that run.
    pub(crate) handle: Handle,
}

/// A bridge that has ended, and why.
type Ended = (BridgeId, Egresses, Result<(), BridgeError>);

/// What is asked of the work as a whole.
enum Wish {
    Start(Box<KeptBridge>, [OwnedFd; 2]),
    Stop,
}

/// How to reach bridges while they run.
#[derive(Clone)]
pub(crate) struct Handle {
    roster: Roster,
    whose: Whose,
    wishes: mpsc::UnboundedSender<Wish>,
}

impl Work {
    /// Makes ready what `kept` says; `fds` are as it has them. Without CAKE if frames are to pass through. Call on a `LocalSet` of a current-thread tokio runtime.
    ///
    /// # Errors
    /// The system is out of resources.
    pub(crate) fn new(kept: &Kept, mut fds: Vec<OwnedFd>, whose: Whose) -> anyhow::Result<Self> {
        let conntrack = if kept.conntrack { fds.pop() } else { None };
        let hash_key = crate::secret().hash_key;
        let mut fds = fds.into_iter();
        let listener = kept.socket.as_ref().and_then(|_| fds.next());
        let (sender, wishes) = mpsc::unbounded_channel();
        let handle = Handle { roster: Roster::default(), whose, wishes: sender };
        let mut work = Self {
            running: JoinSet::new(),
            wishes,
            control: None,
            passing_through: kept.supervision.passing_through,
            ended: Vec::new(),
            pool: Pool::new(),
            translator: conntrack.map(|fd| Translator::new(fd, hash_key)),
            handle,
        };
        for bridge in &kept.bridges {
            let mut next = || fds.next().context("a port is missing");
            work.start(bridge, [next()?, next()?])?;
        }
        let Handle { roster, whose, .. } = work.handle.clone();
        let desk = Desk::new(whose, roster, next_handle(&kept.bridges), kept.conntrack);
        work.control = listener.map(|fd| Control::start(fd.into(), desk)).transpose()?;
        Ok(work)
    }

    /// Starts a bridge between two ports.
    fn start(
        &mut self,
        kept: &KeptBridge,
        [lan, wan]: [OwnedFd; 2],
    ) -> anyhow::Result<(Member, [Told; 2])> {
        let KeptBridge { id, ports, coalesce, doorbell, .. } = kept;
        let leaving = |port| egress(port, self.passing_through);
        let (lan, wan) = (put_to_work(&ports[0], lan)?, put_to_work(&ports[1], wan)?);
        let mut bridge = Bridge::new(lan, wan, leaving(&ports[1]), leaving(&ports[0]))
            .with_pool(&self.pool)
            .with_translator(self.translator.clone())
            .with_hash_key(crate::secret().hash_key)
            .with_coalescing((*coalesce).into());
        bridge.set_doorbell((*doorbell).into());
        let mut timer = Timer::new().context("cannot make a timer")?;
        let (commands, mut inbox) = mpsc::channel(roster::MOST_COMMANDS);
        let told = Told::by(&mut bridge, false, false);
        let id = *id;
        self.running.spawn_local(async move {
            let outcome = driver::run(&mut bridge, &mut timer, &mut inbox).await;
            (id, bridge, outcome)
        });
        let before = Arc::new(ports.each_ref().map(|port| port.counts.clone()));
        let ports = ports.each_ref().map(named);
        let member = Member { id, ports, before, commands };
        self.handle.roster.enter(member.clone());
        Ok((member, told))
    }

    /// The same while others run.
    fn start_another(&mut self, kept: &KeptBridge, ports: [OwnedFd; 2]) {
        let [lan, wan] = kept.ports.each_ref().map(|port| port.name.clone());
        match self.start(kept, ports) {
            Ok((member, told)) => {
                info!(%lan, %wan, "shaping");
                self.handle.tell_both(Event::Added, &member, told);
            }
            Err(error) => warn!(%lan, %wan, %error, "cannot begin a bridge"),
        }
    }

    /// Works until told to stop. The statistics are still to be had afterwards.
    ///
    /// # Errors
    /// No bridge works any more; why the last one does not.
    pub(crate) async fn run(&mut self) -> anyhow::Result<()> {
        let outcome = self.go_on().await;
        self.control = None;
        outcome
    }

    async fn go_on(&mut self) -> anyhow::Result<()> {
        let mut stopping = false;
        while !(stopping && self.running.is_empty()) {
            tokio::select! {
                Some(ended) = self.running.join_next() => {
                    let outcome = self.note_end(ended, stopping);
                    if self.running.is_empty() {
                        outcome?;
                    }
                }
                Some(wish) = self.wishes.recv() => match wish {
                    Wish::Start(bridge, ports) => self.start_another(&bridge, ports),
                    Wish::Stop => {
                        stopping = true;
                        for member in self.handle.roster.members() {
                            member.stop().await;
                        }
                    }
                },
            }
        }
        Ok(())
    }

    /// One has ended: the others go on.
    fn note_end(&mut self, ended: Result<Ended, JoinError>, stopping: bool) -> anyhow::Result<()> {
        let (id, bridge, outcome) = ended.unwrap_or_else(|error| {
            // As if it had happened here.
            std::panic::resume_unwind(error.into_panic())
        });
        let Some(member) = self.handle.roster.leave(id) else { return Ok(()) };
        let [lan, wan] = member.ports.each_ref().map(|port| port.port.clone());
        if outcome.is_ok() && !stopping {
            // Its ports are closed, for it is not to be there any more.
            info!(%lan, %wan, "no longer shaping");
            return Ok(());
        }
        self.ended.push((member, bridge));
        outcome.inspect_err(|error| warn!(%lan, %wan, %error, "a bridge ended"))?;
        Ok(())
    }

    /// Statistics of those that ended, for people; the system is asked what was lost before reading if `look`.
    pub(crate) fn table(&mut self, look: bool) -> String {
        self.ended.sort_by_key(|(member, _)| member.id);
        let whose = &self.handle.whose;
        let tables = self.ended.iter_mut();
        tables.map(|(member, bridge)| member.table(bridge, whose, look)).collect()
    }

    /// Everything that is to be kept of those that ended.
    pub(crate) fn news(&mut self) -> Vec<News> {
        self.ended.iter_mut().flat_map(|(member, bridge)| member.news(bridge)).collect()
    }
}

impl Handle {
    /// Stops everything.
    pub(crate) fn stop(&self) {
        // It may have stopped already.
        let _ = self.wishes.send(Wish::Stop);
    }

    /// Begins a bridge between two ports; nothing without them.
    pub(crate) fn add(&self, bridge: KeptBridge, ports: Vec<OwnedFd>) {
        if let Ok(ports) = ports.try_into() {
            let _ = self.wishes.send(Wish::Start(Box::new(bridge), ports));
        }
    }

    /// Makes what leaves through a port CAKE of exactly this kind, with this handle if there is none. Nothing where
    /// frames are to pass through.
    pub(crate) async fn configure(&self, id: BridgeId, port: usize, handle: u16, config: Config) {
        let Some(member) = self.roster.member(id) else { return };
        let passing_through =
            self.whose.supervision().is_some_and(|supervision| supervision.passing_through);
        if !passing_through {
            let entropy = crate::secret();
            let configure = move |bridge: &mut Egresses| {
                let before = Told::of(bridge, port);
                let event = leaving(bridge, port).configure(config, handle, entropy);
                (event, [before, Told::of(bridge, port)])
            };
            let Some((event, told)) = member.ask(configure).await else { return };
            let shown = told.map(|told| member.shown(port, told, &self.whose));
            self.whose.tell_change(event, shown);
        }
    }

    /// Tells that what leaves through both ports of a bridge was made or taken away, and they with it.
    fn tell_both(&self, event: Event, member: &Member, told: [Told; 2]) {
        for (number, told) in (0..).zip(told) {
            self.whose.tell(event, member.shown(number, told, &self.whose));
        }
    }

    /// Ends bridges once what is queued in them has left, as fast as their devices take it, and at the latest after
    /// [`DRAIN`].
    pub(crate) async fn remove(&self, bridges: &[BridgeId]) {
        let members: Vec<_> = bridges.iter().filter_map(|&id| self.roster.member(id)).collect();
        for member in &members {
            let let_go = |bridge: &mut Egresses| {
                let told = Told::by(bridge, false, false);
                (0..2).for_each(|number| leaving(bridge, number).let_go());
                told
            };
            if let Some(told) = member.ask(let_go).await {
                self.tell_both(Event::Deleted, member, told);
            }
        }
        let begun = tokio::time::Instant::now();
        for member in &members {
            let queued = |bridge: &mut Egresses| {
                bridge.counts().ports.iter().any(|port| port.backlog != FrameLen::ZERO)
            };
            while begun.elapsed() < DRAIN && member.ask(queued).await == Some(true) {
                tokio::time::sleep(LOOK).await;
            }
            member.stop().await;
        }
        // Whoever gets their ports next is to have them alone.
        let runs = |id: &BridgeId| self.roster.member(*id).is_some();
        while begun.elapsed() < 2 * DRAIN && bridges.iter().any(runs) {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What became of those before, as the supervisor knows it now.
    pub(crate) fn set_supervision(&self, supervision: Supervision) {
        let pid = std::process::id();
        self.whose.set_supervision(Supervision { pid, ..supervision });
    }

    /// What was lost before reading, as the supervisor knows it now.
    pub(crate) fn set_lost(&self, lost: Lost) {
        self.whose.set_lost(lost);
    }

    /// Waits for a change that somebody makes.
    pub(crate) async fn changed(&self) {
        self.whose.changed().await;
    }

    /// Everything that is to be kept, from each bridge between two of its turns.
    pub(crate) async fn news(&self) -> Vec<News> {
        let mut all = Vec::new();
        for member in self.roster.members() {
            let asked = member.clone();
            all.extend(member.ask(move |bridge| asked.news(bridge)).await.into_iter().flatten());
        }
        all
    }

    /// Statistics of all bridges, for people; the system is asked what was lost before reading if `look`.
    pub(crate) async fn table(&self, look: bool) -> String {
        let mut text = String::new();
        for member in self.roster.members() {
            let (asked, whose) = (member.clone(), self.whose.clone());
            let table = move |bridge: &mut Egresses| asked.table(bridge, &whose, look);
            text += &member.ask(table).await.unwrap_or_default();
        }
        text
    }
}

impl Member {
    /// Everything that is to be kept.
    fn news(&self, bridge: &mut Egresses) -> [News; 2] {
        let [lan, wan] = Told::by(bridge, false, false);
        [(0, lan), (1, wan)].map(|(number, told)| {
            let Told { handle, state, port } = told;
            let counts = KeptCounts::of(&self.all_counts(number, port));
            News::Port(Box::new(PortNews { bridge: self.id, port: number, handle, state, counts }))
        })
    }

    /// Statistics of both directions, for people: what leaves through WAN, then what leaves through LAN.
    fn table(&self, bridge: &mut Egresses, whose: &Whose, look: bool) -> String {
        let [lan, wan] = Told::by(bridge, false, look);
        let ports = [(0, lan), (1, wan)].map(|(number, told)| self.shown(number, told, whose));
        let disciplines = ports.iter().rev().map(verbs::everything);
        let counts = ports.iter().filter_map(|shown| {
            shown.counts.as_ref().map(|counts| show::port(&shown.device, counts))
        });
        disciplines.chain(counts).collect::<String>() + "\n"
    }
}

fn named(port: &KeptPort) -> Named {
    Named { port: port.name.to_string(), device: port.name.device().to_owned() }
}

/// The handle after all that are in use.
pub(crate) fn next_handle<'a>(bridges: impl IntoIterator<Item = &'a KeptBridge>) -> u16 {
    let ports = bridges.into_iter().flat_map(|bridge| &bridge.ports);
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
