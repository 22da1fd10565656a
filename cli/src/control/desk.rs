//! Requests become commands of the bridge that has the port, and what comes back becomes replies.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as AsyncMutex, Notify, broadcast};
use ucake::io::pool::FrameBuf;
use ucake_cli::egress::{self, Egress};
use ucake_cli::protocol::{
    Class, Event, Kind, Order, PortLine, Refusal, Reply, Request, Shown, State, Supervision, Verb,
};
use ucake_cli::words;

use crate::work::{Member, Roster, leaving};

/// Statistics are asked of the bridge no more often than this, however many clients want them.
const FRESH: Duration = Duration::from_millis(10);
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
    pub(crate) supervision: Option<Arc<Mutex<Supervision>>>,
    /// Told of each change that was made.
    pub(crate) changed: Arc<Notify>,
}

impl Whose {
    /// `supervision` is asked for with [`Self::supervision`], if there is a supervisor.
    pub(crate) fn new(pid: u32, supervised: bool) -> Self {
        let supervision = supervised.then(Arc::default);
        Self { pid, supervision, changed: Arc::default() }
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
    changes: broadcast::Sender<Reply>,
    line: AsyncMutex<Line>,
    /// Whether anything can be known about connections.
    conntrack: bool,
}

/// The way to the bridges, which one request at a time may go.
struct Line {
    roster: Roster,
    next_handle: u16,
    whose: Whose,
    /// What all disciplines were, and when; without and with queues.
    shown: [Option<(Instant, Vec<Shown>)>; 2],
}

impl Desk {
    /// For the bridges of `roster`; their disciplines have the handles before `next_handle`. `nat` is refused without
    /// `conntrack`.
    pub(crate) fn new(whose: Whose, roster: Roster, next_handle: u16, conntrack: bool) -> Self {
        let (changes, _) = broadcast::channel(CHANGES_KEPT);
        let shown = [None, None];
        let line = Line { roster: roster.clone(), next_handle, whose: whose.clone(), shown };
        Self { whose, roster, changes, line: AsyncMutex::new(line), conntrack }
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
        self.changes.subscribe()
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
        if change.nat == Some(true) && !self.conntrack {
            let error = egress::StateError::NoConntrack;
            return Err(Refusal::new(Class::State, error.to_string()));
        }
        let mut line = self.line.lock().await;
        let next_handle = line.next_handle;
        let command = egress::Command {
            verb: order.verb,
            handle: order.handle,
            next_handle,
            change,
            entropy: crate::secret(),
        };
        let (event, [before, after]) = line.apply(&member, number, command).await?;
        if after.handle == next_handle && event == Event::Added {
            line.next_handle = following(next_handle);
        }
        self.whose.changed.notify_one();
        let happened = match event {
            Event::Changed => vec![(Event::Changed, after)],
            Event::Deleted => vec![(Event::Deleted, before)],
            // What is made takes the place of something.
            Event::Added => vec![(Event::Deleted, before), (Event::Added, after)],
        };
        for (event, discipline) in happened {
            // There may be no watchers.
            let _ = self.changes.send(Reply::Changed { event, discipline });
        }
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
        let [without, with] = &mut self.shown;
        let kept = if queues { with } else { without };
        if let Some((_, shown)) = kept.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(shown.clone());
        }
        let supervision = self.whose.supervision();
        let mut shown = Vec::new();
        for member in self.roster.members() {
            let states = member.ask(move |bridge| {
                let now = bridge.now();
                [0, 1].map(|number| {
                    let egress = leaving(bridge, number);
                    (egress.handle(), egress.state(queues, now))
                })
            });
            // One that has just ended is not there any more.
            let ports = member.ports.iter().zip(states.await.into_iter().flatten());
            shown.extend(
                ports.map(|(port, (handle, state))| port.shown(supervision, handle, state)),
            );
        }
        if shown.is_empty() {
            return Err(stopped());
        }
        *kept = Some((Instant::now(), shown.clone()));
        Ok(shown)
    }

    /// Obeys; what was done, and the discipline before and after it.
    async fn apply(
        &mut self,
        member: &Member,
        number: usize,
        command: egress::Command,
    ) -> Result<(Event, [Shown; 2]), Refusal> {
        self.shown = [None, None];
        let outcome = member.ask(move |bridge| {
            let now = bridge.now();
            let egress = leaving(bridge, number);
            let state = |egress: &Egress<FrameBuf>| (egress.handle(), egress.state(false, now));
            let before = state(egress);
            let event = egress.apply(&command)?;
            Ok::<_, egress::StateError>((event, [before, state(egress)]))
        });
        let (event, states) = outcome
            .await
            .ok_or_else(stopped)?
            .map_err(|error| Refusal::new(Class::State, error.to_string()))?;
        let (port, supervision) = (&member.ports[number], self.whose.supervision());
        Ok((event, states.map(|(handle, state)| port.shown(supervision, handle, state))))
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
