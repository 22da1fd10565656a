//! Requests become commands of the bridge, and what comes back becomes replies.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex as AsyncMutex, Notify, broadcast, mpsc, oneshot};
use ucake::io::driver::{Bridge, Command};
use ucake::io::pool::FrameBuf;
use ucake_cli::egress::{self, Egress};
use ucake_cli::protocol::{
    Class, Event, Kind, Order, PortLine, Refusal, Reply, Request, Shown, State, Supervision, Verb,
};
use ucake_cli::words;

/// Statistics are asked of the bridge no more often than this, however many clients want them.
const FRESH: Duration = Duration::from_millis(10);
/// Changes that wait for a watcher that does not read; then it is dropped.
const CHANGES_KEPT: usize = 64;
/// The handles that are given out on our own, as a kernel gives them.
const OWN_HANDLES: std::ops::RangeInclusive<u16> = 0x8001..=0xffff;

type Egresses = Bridge<Egress<FrameBuf>>;

/// A port by its names.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// Such as `tap:wan0`.
    pub(crate) port: String,
    /// Such as `wan0`.
    pub(crate) device: String,
}

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
    /// The one on the side of the hosts, then the one on the side of the bottleneck.
    ports: [Named; 2],
    changes: broadcast::Sender<Reply>,
    bridge: AsyncMutex<Line>,
}

/// The way to the bridge, which one request at a time may go.
struct Line {
    commands: mpsc::Sender<Command<Egress<FrameBuf>>>,
    next_handle: u16,
    whose: Whose,
    /// What both disciplines were, and when; without and with queues.
    shown: [Option<(Instant, Vec<Shown>)>; 2],
}

impl Desk {
    /// For the bridge that obeys `commands`; its disciplines have the handles before `next_handle`.
    pub(crate) fn new(
        whose: Whose,
        ports: [Named; 2],
        commands: mpsc::Sender<Command<Egress<FrameBuf>>>,
        next_handle: u16,
    ) -> Self {
        let (changes, _) = broadcast::channel(CHANGES_KEPT);
        let line = Line { commands, next_handle, whose: whose.clone(), shown: [None, None] };
        Self { whose, ports, changes, bridge: AsyncMutex::new(line) }
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
        let shown = self.bridge.lock().await.shown(&self.ports, false).await?;
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
        let mut disciplines = self.bridge.lock().await.shown(&self.ports, queues).await?;
        if let Some(index) = wanted {
            disciplines = disciplines.into_iter().skip(index).take(1).collect();
        }
        Ok(Reply::Shown { disciplines })
    }

    /// The number of a port, by either of its names.
    fn find(&self, name: &str) -> Result<usize, Refusal> {
        let known = |port: &Named| port.port == name || port.device == name;
        self.ports.iter().position(known).ok_or_else(|| {
            let [lan, wan] = self.ports.each_ref().map(|port| &port.port);
            let message =
                format!("Cannot find device \"{name}\"\n  the ports here are {lan} and {wan}");
            Refusal::new(Class::NoPort, message)
        })
    }

    async fn apply(&self, order: &Order) -> Result<Reply, Refusal> {
        let index = self.find(&order.port)?;
        let words = if order.verb == Verb::Del { "" } else { &order.words };
        let change = words::parse_line(words)
            .map_err(|error| Refusal::new(Class::Words, error.to_string()))?;
        let mut line = self.bridge.lock().await;
        let next_handle = line.next_handle;
        let command = egress::Command {
            verb: order.verb,
            handle: order.handle,
            next_handle,
            change,
            entropy: crate::secret(),
        };
        let (event, [before, after]) = line.apply(index, command, &self.ports).await?;
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
    /// Both disciplines, as they were a moment ago at most.
    async fn shown(&mut self, ports: &[Named; 2], queues: bool) -> Result<Vec<Shown>, Refusal> {
        let [without, with] = &mut self.shown;
        let kept = if queues { with } else { without };
        if let Some((_, shown)) = kept.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(shown.clone());
        }
        let states = ask(&self.commands, move |bridge| {
            let now = bridge.now();
            [0, 1].map(|index| {
                let egress = leaving(bridge, index);
                (egress.handle(), egress.state(queues, now))
            })
        });
        let shown: Vec<Shown> = ports
            .iter()
            .zip(states.await?)
            .map(|(port, (handle, state))| port.shown(self.whose.supervision(), handle, state))
            .collect();
        *kept = Some((Instant::now(), shown.clone()));
        Ok(shown)
    }

    /// Obeys; what was done, and the discipline before and after it.
    async fn apply(
        &mut self,
        index: usize,
        command: egress::Command,
        ports: &[Named; 2],
    ) -> Result<(Event, [Shown; 2]), Refusal> {
        self.shown = [None, None];
        let outcome = ask(&self.commands, move |bridge| {
            let now = bridge.now();
            let egress = leaving(bridge, index);
            let state = |egress: &Egress<FrameBuf>| (egress.handle(), egress.state(false, now));
            let before = state(egress);
            let event = egress.apply(&command)?;
            Ok::<_, egress::StateError>((event, [before, state(egress)]))
        });
        let (event, states) =
            outcome.await?.map_err(|error| Refusal::new(Class::State, error.to_string()))?;
        let port = ports.get(index).expect("the index is one of theirs");
        let supervision = self.whose.supervision();
        Ok((event, states.map(|(handle, state)| port.shown(supervision, handle, state))))
    }
}

impl Named {
    /// What is known of its discipline.
    pub(crate) fn shown(
        &self,
        supervision: Option<Supervision>,
        handle: u16,
        state: State,
    ) -> Shown {
        let Self { port, device } = self.clone();
        Shown { port, device, handle, supervision, state }
    }
}

/// What leaves through the port of this number: what is read of the other.
fn leaving(bridge: &mut Egresses, index: usize) -> &mut Egress<FrameBuf> {
    if index == 0 { bridge.down() } else { bridge.up() }
}

/// Has the bridge do something between two batches, and waits for what comes of it.
async fn ask<T: Send + 'static>(
    commands: &mpsc::Sender<Command<Egress<FrameBuf>>>,
    question: impl FnOnce(&mut Egresses) -> T + Send + 'static,
) -> Result<T, Refusal> {
    let (reply, answer) = oneshot::channel();
    let action = move |bridge: &mut Egresses| {
        // Whoever asked may have given up.
        let _ = reply.send(question(bridge));
    };
    let stopped = || Refusal::new(Class::Busy, "the bridge has stopped");
    commands.send(Command::With(Box::new(action))).await.map_err(|_| stopped())?;
    answer.await.map_err(|_| stopped())
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
