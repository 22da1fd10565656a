//! The bridges that run, and how to reach each of them.
//!
//! Problem: the control socket, the supervisor's orders and signals all want to look at bridges and change them, on
//! other threads too, while bridges come and go.
//! Law: a bridge is touched only by itself, between two of its turns; everybody else hands it what to do and waits for
//! the answer. One that has ended gives none, and is no reason to fail for those who asked others too.
//! Left out: what is asked ([`super::Handle`], [`crate::control`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};
use ucake::io::driver::{Bridge, Command, PortSnapshot};
use ucake::io::pool::FrameBuf;
use ucake_cli::egress::Egress;
use ucake_cli::protocol::{PortCounts, Shown, State};

use crate::control::Whose;
use crate::supervise::state::{BridgeId, KeptCounts};

/// Commands that wait for a bridge to take a turn.
pub(super) const MOST_COMMANDS: usize = 4;

/// Two ports with what leaves through them.
pub(crate) type Egresses = Bridge<Egress<FrameBuf>>;
pub(super) type Commands = mpsc::Sender<Command<Egress<FrameBuf>>>;

/// A port by its names.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// Such as `tap:wan0`.
    pub(crate) port: String,
    /// Such as `wan0`.
    pub(crate) device: String,
}

impl Named {
    /// Whether this is one of its names.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.port == name || self.device == name
    }
}

/// What a bridge itself knows of a port, and of what queues to leave through it.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) handle: u16,
    pub(crate) state: State,
    pub(crate) port: PortSnapshot,
}

impl Told {
    /// Of both ports; of each queue only if `queues`, what was lost before reading only if `lost`, for the system has
    /// to be asked.
    pub(crate) fn by(bridge: &mut Egresses, queues: bool, lost: bool) -> [Self; 2] {
        let now = bridge.now();
        let snapshot = if lost { bridge.snapshot() } else { bridge.counts() };
        let [lan, wan] = snapshot.ports;
        [(0, lan), (1, wan)].map(|(number, port)| {
            let egress = leaving(bridge, number);
            Self { handle: egress.handle(), state: egress.state(queues, now), port }
        })
    }

    /// Of one of them, as [`Self::by`] without queues and losses.
    pub(crate) fn of(bridge: &mut Egresses, number: usize) -> Self {
        let [lan, wan] = Self::by(bridge, false, false);
        if number == 0 { lan } else { wan }
    }
}

/// A bridge that runs.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Which one it is, for as long as the supervisor lives.
    pub(crate) id: BridgeId,
    /// The one on the side of the hosts, then the one on the side of the bottleneck.
    pub(crate) ports: [Named; 2],
    /// What the ports counted in other processes before.
    pub(super) before: Arc<[KeptCounts; 2]>,
    pub(super) commands: Commands,
}

impl Member {
    /// Has the bridge do something between two turns, and waits for what comes of it; `None` if it has stopped.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Egresses) -> T + Send + 'static,
    ) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        let action = move |bridge: &mut Egresses| {
            // Whoever asked may have given up.
            let _ = reply.send(question(bridge));
        };
        self.commands.send(Command::With(Box::new(action))).await.ok()?;
        answer.await.ok()
    }

    /// What a port counted, with what it counted in other processes before.
    pub(super) fn all_counts(&self, number: usize, port: PortSnapshot) -> PortSnapshot {
        self.before[number].added_to(port)
    }

    /// Everything that is known of one of its ports.
    pub(crate) fn shown(&self, number: usize, told: Told, whose: &Whose) -> Shown {
        let Told { handle, state, port } = told;
        let PortSnapshot { counters, lost_before_reading, dql, rings, late, .. } =
            self.all_counts(number, port);
        let counts = PortCounts {
            counters,
            lost_before_reading: lost_before_reading.or_else(|| whose.lost(self.id, number)),
            byte_limit: dql,
            rings,
            late: late.stats(),
        };
        let Named { port, device } = self.ports[number].clone();
        let (supervision, counts) = (whose.supervision(), Some(Box::new(counts)));
        Shown { port, device, handle, supervision, counts, state }
    }

    /// Tells it to stop; what is queued in it is dropped.
    pub(super) async fn stop(&self) {
        // It may have stopped already.
        let _ = self.commands.send(Command::Stop).await;
    }
}

/// What leaves through the port of this number: what is read of the other.
pub(crate) fn leaving(bridge: &mut Egresses, number: usize) -> &mut Egress<FrameBuf> {
    if number == 0 { bridge.down() } else { bridge.up() }
}

/// All bridges that run, in the order they came.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roster(Arc<Mutex<Vec<Member>>>);

impl Roster {
    fn lock(&self) -> MutexGuard<'_, Vec<Member>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that run now.
    pub(crate) fn members(&self) -> Vec<Member> {
        self.lock().clone()
    }

    /// The one of this number.
    pub(super) fn member(&self, id: BridgeId) -> Option<Member> {
        self.lock().iter().find(|member| member.id == id).cloned()
    }

    /// The bridge that a port of this name belongs to, and the number of the port in it.
    pub(crate) fn find(&self, name: &str) -> Option<(Member, usize)> {
        self.lock().iter().find_map(|member| {
            let number = member.ports.iter().position(|port| port.is(name))?;
            Some((member.clone(), number))
        })
    }

    pub(super) fn enter(&self, member: Member) {
        self.lock().push(member);
    }

    pub(super) fn leave(&self, id: BridgeId) -> Option<Member> {
        let mut members = self.lock();
        let index = members.iter().position(|member| member.id == id)?;
        Some(members.remove(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: BridgeId, lan: &str, wan: &str) -> Member {
        let named = |device: &str| Named { port: format!("tap:{device}"), device: device.into() };
        let (commands, _) = mpsc::channel(MOST_COMMANDS);
        Member { id, ports: [named(lan), named(wan)], before: Arc::default(), commands }
    }

    #[test]
    fn a_port_is_found_by_either_of_its_names_in_the_bridge_that_has_it() {
        let roster = Roster::default();
        roster.enter(member(3, "a", "b"));
        roster.enter(member(1, "c", "d"));
        let found = |name| roster.find(name).map(|(member, number)| (member.id, number));
        assert_eq!(found("b"), Some((3, 1)));
        assert_eq!(found("tap:c"), Some((1, 0)));
        assert_eq!((found("tap:"), found("packet:c")), (None, None));
        assert_eq!(roster.leave(3).map(|member| member.id), Some(3));
        assert_eq!((found("a"), found("d")), (None, Some((1, 1))));
        assert!(roster.leave(3).is_none());
    }
}
