//! Requests become commands of the bridge that has the port, and what comes back becomes replies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as AsyncMutex, Notify, broadcast};
use ucake_cli::egress;
use ucake_cli::protocol::{
    Class, Event, Kind, Order, PortLine, Refusal, Reply, Request, Shown, State, Supervision, Verb,
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
}

impl Desk {
    /// For the bridges of `roster`; their disciplines have the handles before `next_handle`.
    pub(crate) fn new(whose: Whose, roster: Roster, next_handle: u16) -> Self {
        let (seen, looked) = ([None, None], None);
        let line = Line { roster: roster.clone(), next_handle, whose: whose.clone(), seen, looked };
        Self { whose, roster, line: AsyncMutex::new(line) }
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

    /// What to say to a request.
    pub(super) async fn answer(&self, request: Request) -> Reply {
        let answer = match request {
            Request::Hello => Ok(self.hello()),
            Request::Ports => self.list().await,
            Request::Show { port, queues } => self.show(port.as_deref(), queues).await,
            Request::Apply(order) => self.apply(&order).await,
            Request::Watch => Ok(Reply::Watching),
        };
        answer.unwrap_or_else(Reply::Refused)
    }

    async fn list(&self) -> Result<Reply, Refusal> {
        let shown = self.line.lock().await.shown(false).await?;
        let line = |Shown { port, device, state, .. }: Shown| {
            let kind = match state {
                State::Cake { .. } => Kind::Cake,
                State::Pfifo { .. } => Kind::Pfifo,
            };
            PortLine { port, device, kind }
        };
        Ok(Reply::Ports { ports: shown.into_iter().map(line).collect() })
    }

    async fn show(&self, port: Option<&str>, queues: bool) -> Result<Reply, Refusal> {
        let wanted = port.map(|port| self.find(port)).transpose()?;
        let mut disciplines = self.line.lock().await.shown(queues).await?;
        if let Some((member, number)) = wanted {
            disciplines.retain(|shown| shown.port == member.ports[number].port);
        }
        Ok(Reply::Shown { disciplines })
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
        let mut line = self.line.lock().await;
        let next_handle = line.next_handle;
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

/// The handle to give out after `handle`.
pub(crate) fn following(handle: u16) -> u16 {
    handle.checked_add(1).filter(|next| OWN_HANDLES.contains(next)).unwrap_or(*OWN_HANDLES.start())
}

impl Line {
    /// All disciplines, as they were a moment ago at most.
    async fn shown(&mut self, queues: bool) -> Result<Vec<Shown>, Refusal> {
        let made = self.whose.made.load(Ordering::Acquire);
        let is_fresh = |seen: &&Seen| seen.made == made && seen.at.elapsed() < FRESH;
        if let Some(seen) = self.seen[usize::from(queues)].as_ref().filter(is_fresh) {
            return Ok(seen.shown.clone());
        }
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
        if shown.is_empty() {
            return Err(stopped());
        }
        let seen = Seen { at: Instant::now(), made, shown: shown.clone() };
        self.seen[usize::from(queues)] = Some(seen);
        Ok(shown)
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

fn stopped() -> Refusal {
    Refusal::new(Class::Busy, "the bridge has stopped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_go_round_among_those_of_our_own() {
        assert_eq!(following(0x8003), 0x8004);
        assert_eq!(following(0xffff), 0x8001);
    }
}
