//! Requests become commands of the bridge that has the port, and what comes back becomes replies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as AsyncMutex, Notify, broadcast};
use ucake::qdisc::Change;
use ucake_cli::egress;
use ucake_cli::protocol::{
    self, Class, Event, Kind, Order, PortLine, Refusal, Reply, Request, Shown, State, Supervision,
    Verb,
};
use ucake_cli::words;

use crate::supervise::state::BridgeId;
use crate::work::{Lost, Member, Roster, Told, leaving};

/// Statistics are asked of the bridge no more often than this, however many clients want them.
const FRESH: Duration = Duration::from_millis(10);
/// What was lost before reading is asked of the system no more often than this, where nobody tells it.
const LOOK: Duration = Duration::from_secs(1);
/// Changes that wait for a watcher that does not read; then it is dropped.
const CHANGES_KEPT: usize = 64;
/// The handles that are given out on our own, as a kernel gives them.
const OWN_HANDLES: std::ops::RangeInclusive<u16> = 0x8001..=0xffff;

/// Whose requests are dealt with.
#[derive(Clone, Debug)]
pub(crate) struct Whose {
    /// The process to send signals to.
    pub(crate) pid: u32,
    /// What is known of those that handled frames, where there is a supervisor.
    supervision: Option<Arc<Mutex<Supervision>>>,
    /// What each port's device lost before it was read, when last heard of.
    lost: Arc<Mutex<Lost>>,
    /// Told of each change that was made.
    changed: Arc<Notify>,
    /// How many those were.
    made: Arc<AtomicU64>,
    /// Those who watch are told what they were.
    watchers: broadcast::Sender<Reply>,
}

impl Whose {
    /// `supervision` is asked for with [`Self::supervision`], if there is a supervisor.
    pub(crate) fn new(pid: u32, supervised: bool) -> Self {
        let supervision = supervised.then(Arc::default);
        let (watchers, _) = broadcast::channel(CHANGES_KEPT);
        let (lost, changed, made) = (Arc::default(), Arc::default(), Arc::default());
        Self { pid, supervision, lost, changed, made, watchers }
    }

    /// What the device of a port lost before it was read, if that is known.
    pub(crate) fn lost(&self, bridge: BridgeId, port: usize) -> Option<u64> {
        let known = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        *known.get(&bridge)?.get(port)?
    }

    /// It is this from now on.
    pub(crate) fn set_lost(&self, lost: Lost) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = lost;
    }

    /// Waits for a change that somebody makes.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Something was done to a discipline: tells all who want to know. It was the first before and is the second now.
    pub(crate) fn tell_change(&self, event: Event, [before, after]: [Shown; 2]) {
        match event {
            Event::Changed => self.tell(Event::Changed, after),
            Event::Deleted => self.tell(Event::Deleted, before),
            // What is made takes the place of something.
            Event::Added => {
                self.tell(Event::Deleted, before);
                self.tell(Event::Added, after);
            }
        }
    }

    /// A discipline was made or taken away, with its port perhaps: tells all who want to know.
    pub(crate) fn tell(&self, event: Event, discipline: Shown) {
        self.made.fetch_add(1, Ordering::Release);
        self.changed.notify_one();
        // There may be no watchers.
        let _ = self.watchers.send(Reply::Changed { event, discipline });
    }

    /// What is known now.
    pub(crate) fn supervision(&self) -> Option<Supervision> {
        let known = self.supervision.as_ref()?;
        Some(*known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// It is this from now on.
    pub(crate) fn set_supervision(&self, supervision: Supervision) {
        if let Some(known) = &self.supervision {
            *known.lock().unwrap_or_else(PoisonError::into_inner) = supervision;
        }
    }
}

/// Where requests are dealt with.
pub(crate) struct Desk {
    whose: Whose,
    roster: Roster,
    line: AsyncMutex<Line>,
    /// Whether anything can be known about connections.
    conntrack: bool,
}

/// The way to the bridges, which one request at a time may go.
struct Line {
    roster: Roster,
    next_handle: u16,
    whose: Whose,
    /// What all disciplines were; without and with queues.
    seen: [Option<Seen>; 2],
    /// When the system was asked what was lost before reading.
    looked: Option<Instant>,
}

/// What all disciplines were.
struct Seen {
    at: Instant,
    /// How many changes had been made before.
    made: u64,
    shown: Vec<Shown>,
    /// What was said of it so far, of one port or of all: however many ask, it is written once.
    lines: BTreeMap<Option<String>, Arc<str>>,
}

impl Desk {
    /// For the bridges of `roster`; their disciplines have the handles before `next_handle`. `nat` is refused without
    /// `conntrack`.
    pub(crate) fn new(whose: Whose, roster: Roster, next_handle: u16, conntrack: bool) -> Self {
        let (seen, looked) = ([None, None], None);
        let line = Line { roster: roster.clone(), next_handle, whose: whose.clone(), seen, looked };
        Self { whose, roster, line: AsyncMutex::new(line), conntrack }
    }

    fn hello(&self) -> Reply {
        Reply::Hello {
            program: "ucake".to_owned(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            pid: self.whose.pid,
            supervision: self.whose.supervision(),
        }
    }

    /// Changes from now on.
    pub(super) fn changes(&self) -> broadcast::Receiver<Reply> {
        self.whose.watchers.subscribe()
    }

    /// What to say to a request: a line.
    pub(super) async fn answer(&self, request: Request) -> Arc<str> {
        let answer = match request {
            Request::Show { port, queues } => match self.show(port.as_deref(), queues).await {
                Ok(line) => return line,
                Err(refusal) => Err(refusal),
            },
            Request::Hello => Ok(self.hello()),
            Request::Ports => self.list().await,
            Request::Apply(order) => self.apply(&order).await,
            Request::Watch => Ok(Reply::Watching),
        };
        protocol::write_reply(&answer.unwrap_or_else(Reply::Refused)).into()
    }

    async fn list(&self) -> Result<Reply, Refusal> {
        let mut line = self.line.lock().await;
        let shown = &line.see(false).await?.shown;
        let line = |Shown { port, device, state, .. }: &Shown| {
            let kind = match state {
                State::Cake { .. } => Kind::Cake,
                State::Pfifo { .. } => Kind::Pfifo,
            };
            PortLine { port: port.clone(), device: device.clone(), kind }
        };
        Ok(Reply::Ports { ports: shown.iter().map(line).collect() })
    }

    async fn show(&self, port: Option<&str>, queues: bool) -> Result<Arc<str>, Refusal> {
        let wanted = port.map(|port| self.find(port)).transpose()?;
        let wanted = wanted.map(|(member, number)| member.ports[number].port.clone());
        Ok(self.line.lock().await.see(queues).await?.line(wanted))
    }

    /// The bridge of a port, by either of its names, and the number of the port.
    fn find(&self, name: &str) -> Result<(Member, usize), Refusal> {
        self.roster.find(name).ok_or_else(|| {
            let members = self.roster.members();
            let names: Vec<_> =
                members.iter().flat_map(|member| &member.ports).map(|port| &*port.port).collect();
            let ports = match &names[..] {
                [] => "there are no ports here".to_owned(),
                [most @ .., last] => format!("the ports here are {} and {last}", most.join(", ")),
            };
            Refusal::new(Class::NoPort, format!("Cannot find device \"{name}\"\n  {ports}"))
        })
    }

    async fn apply(&self, order: &Order) -> Result<Reply, Refusal> {
        let (member, number) = self.find(&order.port)?;
        let words = if order.verb == Verb::Del { "" } else { &order.words };
        let change = words::parse_line(words)
            .map_err(|error| Refusal::new(Class::Words, error.to_string()))?;
        refuse_nat(&change, self.conntrack)?;
        let mut line = self.line.lock().await;
        let used: Vec<u16> = line.see(false).await?.shown.iter().map(|one| one.handle).collect();
        let next_handle = free(line.next_handle, &used);
        let command = egress::Command {
            verb: order.verb,
            handle: order.handle,
            next_handle,
            change,
            entropy: crate::secret(),
        };
        let (event, shown) = line.apply(&member, number, command).await?;
        if shown[1].handle == next_handle && event == Event::Added {
            line.next_handle = following(next_handle);
        }
        self.whose.tell_change(event, shown);
        Ok(Reply::Done)
    }
}

/// Refuses what takes conntrack where there is none.
fn refuse_nat(change: &Change, conntrack: bool) -> Result<(), Refusal> {
    if change.nat == Some(true) && !conntrack {
        return Err(Refusal::new(Class::State, egress::StateError::NoConntrack.to_string()));
    }
    Ok(())
}

/// The first handle from `first` on that is not among those in use: a file that is read again gives some out as well.
fn free(first: u16, used: &[u16]) -> u16 {
    let all = std::iter::successors(Some(first), |handle| Some(following(*handle)));
    all.take(OWN_HANDLES.len()).find(|handle| !used.contains(handle)).unwrap_or(first)
}

/// The handle to give out after `handle`.
pub(crate) fn following(handle: u16) -> u16 {
    handle.checked_add(1).filter(|next| OWN_HANDLES.contains(next)).unwrap_or(*OWN_HANDLES.start())
}

impl Line {
    /// All disciplines, as they were a moment ago at most.
    async fn see(&mut self, queues: bool) -> Result<&mut Seen, Refusal> {
        let made = self.whose.made.load(Ordering::Acquire);
        let is_fresh = |seen: &Seen| seen.made == made && seen.at.elapsed() < FRESH;
        let kept = usize::from(queues);
        if !self.seen[kept].as_ref().is_some_and(is_fresh) {
            let shown = self.look(queues).await;
            let (at, lines) = (Instant::now(), BTreeMap::new());
            self.seen[kept] = (!shown.is_empty()).then_some(Seen { at, made, shown, lines });
        }
        self.seen[kept].as_mut().ok_or_else(stopped)
    }

    /// All disciplines, as they are.
    async fn look(&mut self, queues: bool) -> Vec<Shown> {
        let look = self.is_to_look();
        let (mut shown, mut lost) = (Vec::new(), Lost::new());
        for member in self.roster.members() {
            let Some(told) = member.ask(move |bridge| Told::by(bridge, queues, look)).await else {
                // One that has just ended is not there any more.
                continue;
            };
            lost.insert(member.id, told.each_ref().map(|told| told.port.lost_before_reading));
            let told = (0..).zip(told);
            shown.extend(told.map(|(number, told)| member.shown(number, told, &self.whose)));
        }
        if look {
            self.whose.set_lost(lost);
        }
        shown
    }

    /// Whether it is time to ask the system what was lost before reading: without a supervisor nobody tells it.
    fn is_to_look(&mut self) -> bool {
        let due = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK);
        let look = self.whose.supervision.is_none() && due;
        if look {
            self.looked = Some(Instant::now());
        }
        look
    }

    /// Obeys; what was done, and the discipline before and after it.
    async fn apply(
        &mut self,
        member: &Member,
        number: usize,
        command: egress::Command,
    ) -> Result<(Event, [Shown; 2]), Refusal> {
        let outcome = member.ask(move |bridge| {
            let before = Told::of(bridge, number);
            let event = leaving(bridge, number).apply(&command)?;
            Ok::<_, egress::StateError>((event, [before, Told::of(bridge, number)]))
        });
        let (event, told) = outcome
            .await
            .ok_or_else(stopped)?
            .map_err(|error| Refusal::new(Class::State, error.to_string()))?;
        Ok((event, told.map(|told| member.shown(number, told, &self.whose))))
    }
}

impl Seen {
    /// What is to be said of a port, or of all.
    fn line(&mut self, port: Option<String>) -> Arc<str> {
        if let Some(line) = self.lines.get(&port) {
            return Arc::clone(line);
        }
        let is_wanted = |shown: &&Shown| port.as_ref().is_none_or(|port| shown.port == *port);
        let disciplines = self.shown.iter().filter(is_wanted).cloned().collect();
        let line: Arc<str> = protocol::write_reply(&Reply::Shown { disciplines }).into();
        self.lines.insert(port, Arc::clone(&line));
        line
    }
}

fn stopped() -> Refusal {
    Refusal::new(Class::Busy, "the bridge has stopped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nat_is_refused_without_conntrack_and_its_opposite_is_not() {
        let change = |line| words::parse_line(line).expect("words of cake");
        let refusal = refuse_nat(&change("bandwidth 5mbit nat"), false).expect_err("no conntrack");
        assert!(refusal.message.starts_with("Error: No conntrack support in kernel."));
        assert!(refuse_nat(&change("nat"), true).is_ok());
        assert!(refuse_nat(&change("nonat"), false).is_ok());
        assert!(refuse_nat(&change("nat nonat"), false).is_ok());
    }

    #[test]
    fn handles_go_round_among_those_of_our_own() {
        assert_eq!(following(0x8003), 0x8004);
        assert_eq!(following(0xffff), 0x8001);
        assert_eq!(free(0x8003, &[0x8001, 0x8002]), 0x8003);
        assert_eq!(free(0xfffe, &[0xffff, 0xfffe, 0x8001]), 0x8002);
    }
}
