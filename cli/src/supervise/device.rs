//! What happens to a device, and when to open another one in its place.
//!
//! Problem: devices are taken down and up, renamed, resized, moved, removed and made again, once in a year or a hundred
//! times a second, and each of these is to be handled, counted and told once.
//! Law: what is seen now is compared with what was seen before; who was gone is opened again as soon as that can be, but
//! one that goes again and again less and less often.
//! Left out: clocks, descriptors and the kernel ([`super::devices`]).

use std::time::{Duration, Instant};

use ucake::io::device::{Device, State};
use ucake_cli::protocol::DeviceEvents;

/// One that is gone again is opened again after this; it doubles …
const PAUSE: Duration = Duration::from_millis(100);
/// … up to this …
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// … until the device was there for so long.
const CALM: Duration = Duration::from_secs(10);

/// A device under watch.
#[derive(Debug)]
pub(super) struct Watched {
    /// What was seen last.
    name: String,
    namespace: Option<u64>,
    state: Option<State>,
    was_up: bool,
    /// Set while it is gone.
    away: Option<Away>,
    pause: Duration,
    /// When it was last gone, or opened again.
    unrest: Option<Instant>,
}

#[derive(Debug)]
struct Away {
    /// Not before this it is opened again.
    try_at: Instant,
    /// Why it could not be, last time.
    reason: Option<String>,
}

/// What happened to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Gone,
    /// It has another name; the one before.
    Renamed(String),
    /// It has another MTU.
    Resized {
        before: u32,
        now: u32,
    },
    /// It is in another network namespace.
    Moved,
    Down,
    /// It was down before, or never seen up.
    Up {
        again: bool,
    },
    /// What its offloads are by now.
    Offloads(String),
}

impl Watched {
    /// A device of this name, of which no more is known.
    pub(super) fn new(name: &str) -> Self {
        let (namespace, state, away, unrest) = (None, None, None, None);
        let (name, was_up, pause) = (name.to_owned(), false, Duration::ZERO);
        Self { name, namespace, state, was_up, away, pause, unrest }
    }

    /// This was seen, or that there is none any more. What that is next to what was seen before.
    pub(super) fn see(&mut self, seen: Option<Device>, now: Instant) -> Vec<Event> {
        match (seen, &self.away) {
            // Until another one is opened its place is taken by nobody.
            (_, Some(_)) => Vec::new(),
            (None, None) => {
                self.go(now);
                vec![Event::Gone]
            }
            (Some(device), None) => self.compare(device),
        }
    }

    fn go(&mut self, now: Instant) {
        let calm = self.unrest.is_none_or(|at| now.saturating_duration_since(at) >= CALM);
        self.pause = if calm { Duration::ZERO } else { longer(self.pause) };
        self.unrest = Some(now);
        self.away = Some(Away { try_at: now + self.pause, reason: None });
    }

    fn compare(&mut self, device: Device) -> Vec<Event> {
        let mut events = Vec::new();
        let Device { name, namespace, state } = device;
        if name != self.name {
            events.push(Event::Renamed(std::mem::replace(&mut self.name, name)));
        }
        if self.namespace.zip(namespace).is_some_and(|(before, now)| before != now) {
            events.push(Event::Moved);
        }
        self.namespace = namespace.or(self.namespace);
        match (self.state, state) {
            (Some(before), Some(now)) => self.compare_states(before, now, &mut events),
            (None, Some(State { up: true, .. })) => events.push(Event::Up { again: false }),
            _ => {}
        }
        self.state = state.or(self.state);
        self.was_up |= self.state.is_some_and(|state| state.up);
        events
    }

    fn compare_states(&self, before: State, now: State, events: &mut Vec<Event>) {
        if before.mtu != now.mtu {
            events.push(Event::Resized { before: before.mtu, now: now.mtu });
        }
        match (before.up, now.up) {
            (true, false) => events.push(Event::Down),
            (false, true) => events.push(Event::Up { again: self.was_up }),
            _ => {}
        }
        if before.offloads != now.offloads {
            events.push(Event::Offloads(now.offloads.since(before.offloads)));
        }
    }

    /// Whether it is time to open another one.
    pub(super) fn wants_another(&self, now: Instant) -> bool {
        self.away.as_ref().is_some_and(|away| away.try_at <= now)
    }

    /// When that time comes, if it is known.
    pub(super) fn try_at(&self) -> Option<Instant> {
        Some(self.away.as_ref()?.try_at)
    }

    /// Another one was opened.
    pub(super) fn back(&mut self, name: &str, now: Instant) {
        *self = Self { pause: self.pause, unrest: Some(now), ..Self::new(name) };
    }

    /// There is none to open yet: it is looked for whenever something changes.
    pub(super) fn missing(&mut self, next: Instant) {
        if let Some(away) = &mut self.away {
            away.try_at = next;
        }
    }

    /// None could be opened. Whether that is new.
    pub(super) fn failed(&mut self, reason: &str, now: Instant) -> bool {
        self.pause = longer(self.pause);
        let Some(away) = &mut self.away else { return false };
        away.try_at = now + self.pause;
        let is_new = away.reason.as_deref() != Some(reason);
        away.reason = Some(reason.to_owned());
        is_new
    }
}

fn longer(pause: Duration) -> Duration {
    (2 * pause).clamp(PAUSE, LONGEST_PAUSE)
}

impl Event {
    /// Counts it.
    pub(super) fn count(&self, counts: &mut DeviceEvents) {
        match self {
            Self::Gone => counts.gone += 1,
            Self::Renamed(_) => counts.renamed += 1,
            Self::Resized { .. } => counts.resized += 1,
            Self::Moved => counts.moved += 1,
            Self::Down => counts.down += 1,
            Self::Up { .. } => {}
            Self::Offloads(_) => counts.offloads += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use ucake::io::device::Offloads;

    use super::*;

    fn device(name: &str, mtu: u32, up: bool) -> Option<Device> {
        let state = Some(State { mtu, up, offloads: Offloads::default() });
        Some(Device { name: name.into(), namespace: Some(1), state })
    }

    #[test]
    fn what_is_seen_first_is_nothing_new_and_what_changes_is_told_once() {
        let (mut watched, now) = (Watched::new("eth0"), Instant::now());
        assert_eq!(watched.see(device("eth0", 1500, false), now), []);
        assert_eq!(watched.see(device("eth0", 1500, true), now), [Event::Up { again: false }]);
        let all = watched.see(device("wan", 1400, false), now);
        let expected = [
            Event::Renamed("eth0".into()),
            Event::Resized { before: 1500, now: 1400 },
            Event::Down,
        ];
        assert_eq!(all, expected);
        assert_eq!(watched.see(device("wan", 1400, false), now), []);
        assert_eq!(watched.see(device("wan", 1400, true), now), [Event::Up { again: true }]);
        let elsewhere = Device { name: "wan".into(), namespace: Some(2), state: None };
        assert_eq!(watched.see(Some(elsewhere.clone()), now), [Event::Moved]);
        assert_eq!(watched.see(Some(elsewhere), now), [], "what is not known has not changed");
    }

    #[test]
    fn one_that_is_gone_is_opened_at_once_and_one_that_goes_again_and_again_is_not() {
        let (mut watched, mut now) = (Watched::new("tap0"), Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert_eq!(watched.see(None, now), [Event::Gone]);
            assert_eq!(watched.see(None, now), [], "told once");
            let try_at = watched.try_at().expect("it is away");
            pauses.push(try_at.saturating_duration_since(now).as_millis());
            now = try_at;
            assert!(watched.wants_another(now));
            watched.back("tap0", now);
            assert!(!watched.wants_another(now));
            now += Duration::from_millis(1);
        }
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1600, 3200, 5000]);
        now += CALM;
        watched.see(None, now);
        assert!(watched.wants_another(now), "that was long ago");
    }

    #[test]
    fn a_reason_that_stays_the_same_is_told_once_and_tried_less_often() {
        let (mut watched, now) = (Watched::new("tap0"), Instant::now());
        watched.see(None, now);
        assert!(watched.failed("busy", now) && !watched.failed("busy", now));
        assert!(watched.failed("not permitted", now));
        assert!(!watched.wants_another(now + PAUSE));
        assert!(watched.wants_another(now + LONGEST_PAUSE));
        watched.missing(now + PAUSE);
        assert!(watched.wants_another(now + PAUSE), "there is none to try in vain");
    }
}
