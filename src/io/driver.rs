//! The loop: read, feed, drain, send, sleep.
//!
//! Problem: two directions share a thread; neither may starve, no frame may wait for anything but
//! its discipline, and an idle bridge must cost nothing.
//! Source: the contract on the crate page.
//! Law: [`Bridge::turn`] does a bounded share of all work at one instant and says when it wants to
//! be called again; [`run`] does the waiting. Frames that arrive while we work wait in the device,
//! so each path is read before it is drained.
//! What a port's device holds is limited by `dql`; the doorbell rings once per batch.
//! Left out: more than two ports.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

use tokio::sync::{mpsc, oneshot};

use super::batch::{Batch, Coalescing};
use super::clock;
use super::conntrack::Translator;
use super::lateness::Lateness;
use super::pool::{FrameBuf, Pool, Received};
use super::port::{Counters, Port, PortError, Recv, Sent};
use super::timer::Timer;
use crate::dql::{Dql, DqlStats};
use crate::packet::{Direction, RttTable};
use crate::qdisc::{Departure, Dequeue, Discipline, Wake, Why};
use crate::time::{Instant, Span};
use crate::units::FrameLen;

/// Most frames read of one port per turn; more than are sent, for a queue is to stand in the discipline and not
/// before it, …
const READ_FRAMES: u32 = 32;
/// … and most bytes: four superpackets or so stay in a second-level cache until they are written.
const READ_BYTES: u32 = 256 * 1024;
/// Most frames or segments drained of one discipline per turn.
const SENT_FRAMES: u32 = 1024;
/// Most runs sent per turn. A write takes microseconds, and what waits in a device meanwhile waits without
/// any discipline: reading must keep ahead of sending.
const SENT_RUNS: u64 = 16;
/// A device that is not done with what it has, or had no room, is looked at again after this: at 1 Gbit/s it
/// sends eight full frames in the meantime.
const COMPLETION_POLL: Span = Span::from_micros(100);
/// The same where nothing moves: a network card that is held up by its peer, say.
const LONGEST_POLL: Span = Span::from_millis(5);
/// Most connections asked for per turn and direction: each takes some 30 µs, in which nothing else is done.
const MOST_ASKED: u32 = 8;
/// A device holds little while no more than one part in so many of its limit is in flight.
const QUIET_SHARE: u64 = 8;

/// Two ports and what stands between them.
pub struct Bridge<D> {
    pool: Pool,
    ports: [Box<dyn Port>; 2],
    /// `paths[i]` leads from `ports[i]` to the other.
    paths: [Path<D>; 2],
    /// What is known of the connections that cross, while a discipline wants to know.
    round_trips: Option<RttTable>,
    /// Where connections are asked for, if they can be.
    translator: Option<Translator>,
    hash_key: (u64, u64),
    now: Instant,
    counters: BridgeCounters,
}

/// One direction.
struct Path<D> {
    ingress: usize,
    egress: usize,
    discipline: D,
    /// What has left the discipline and not yet been sent.
    batch: Batch,
    dql: Dql,
    doorbell: Doorbell,
    rings: u64,
    runs_sent: u64,
    look: Look,
    /// When its discipline wanted to be asked again, if nothing else holds it up.
    due: Option<Instant>,
    late: Lateness,
}

/// What a path needs to know of the bridge it is part of.
struct Surroundings<'a> {
    pool: &'a Pool,
    watch: Option<&'a mut RttTable>,
    translator: Option<&'a Translator>,
    now: Instant,
}

/// When to look at a device again that holds as much as it may.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Option<Instant>,
    gap: Span,
}

impl Default for Look {
    fn default() -> Self {
        Self { at: None, gap: COMPLETION_POLL }
    }
}

impl Look {
    /// `now` and a gap that doubles with each look that showed nothing.
    fn again(&mut self, now: Instant) -> Instant {
        match self.at {
            Some(at) if now < at => at,
            seen => {
                if seen.is_some() {
                    self.gap = (self.gap * 2).min(LONGEST_POLL);
                }
                *self.at.insert(now + self.gap)
            }
        }
    }
}

/// When a port is to send what it was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doorbell {
    /// Once for all that is due while the device holds little, else run by run.
    #[default]
    Batch,
    /// Run by run.
    Packet,
}

/// What the bridge itself counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeCounters {
    /// Turns taken.
    pub turns: u64,
    /// Times the clock ran backwards and was held.
    pub clock_backwards: u64,
}

/// When to call [`Bridge::turn`] again; an arrival is always a reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// At this instant; `None`: not before the next arrival.
    pub wake: Option<Instant>,
    /// At once: this turn did its share and left work.
    pub more: bool,
}

/// Statistics at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The instant of the last turn.
    pub at: Instant,
    /// The bridge's own.
    pub bridge: BridgeCounters,
    /// Per port.
    pub ports: [PortSnapshot; 2],
}

/// Statistics of a port and of what queues to leave through it.
#[derive(Clone, Debug)]
pub struct PortSnapshot {
    /// Its name.
    pub name: String,
    /// What went through.
    pub counters: Counters,
    /// What its device lost before we read it ([`Port::lost_before_reading`]).
    pub lost_before_reading: Option<u64>,
    /// Bytes queued to leave through it.
    pub backlog: FrameLen,
    /// Its byte limit.
    pub dql: DqlStats,
    /// Times the doorbell was rung.
    pub rings: u64,
    /// How long after the time it had asked for what queues to leave through it was asked again.
    pub late: Lateness,
}

/// Why a bridge stopped.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// A port stopped working.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The timer stopped working.
    #[error("the pacing timer failed: {0}")]
    Timer(#[source] io::Error),
}

/// Something to do to a bridge between two turns.
pub type Action<D> = Box<dyn FnOnce(&mut Bridge<D>) + Send>;

/// What a running bridge can be told, between two turns.
pub enum Command<D> {
    /// Stop; frames still queued are dropped.
    Stop,
    /// Send back statistics.
    Snapshot(oneshot::Sender<Snapshot>),
    /// Do this; how a configuration is changed.
    With(Action<D>),
}

impl<D: Discipline<FrameBuf>> Bridge<D> {
    /// A bridge between two ports. `up` queues what is read of `lan` and leaves through `wan`,
    /// `down` the other way.
    #[must_use]
    pub fn new(lan: Box<dyn Port>, wan: Box<dyn Port>, up: D, down: D) -> Self {
        let path = |ingress, egress, discipline| Path {
            ingress,
            egress,
            discipline,
            batch: Batch::new(Coalescing::default()),
            dql: Dql::new(),
            doorbell: Doorbell::default(),
            rings: 0,
            runs_sent: 0,
            look: Look::default(),
            due: None,
            late: Lateness::default(),
        };
        Self {
            pool: Pool::new(),
            ports: [lan, wan],
            paths: [path(0, 1, up), path(1, 0, down)],
            round_trips: None,
            translator: None,
            hash_key: (0, 0),
            now: Instant::ZERO,
            counters: BridgeCounters::default(),
        }
    }

    /// The same bridge, with its frames in `pool`, which other bridges of this thread may share: what is kept for the
    /// next frames is then kept once.
    #[must_use]
    pub fn with_pool(mut self, pool: &Pool) -> Self {
        self.pool = pool.clone();
        self
    }

    /// The same bridge, which looks through address translation where a discipline wants it to.
    #[must_use]
    pub fn with_translator(mut self, translator: Option<Translator>) -> Self {
        self.translator = translator;
        self
    }

    /// The same bridge, telling connections apart by this key; secret where strangers open them.
    #[must_use]
    pub fn with_hash_key(mut self, key: (u64, u64)) -> Self {
        (self.round_trips, self.hash_key) = (None, key);
        self
    }

    /// The same bridge, joining on the way out what `coalescing` says.
    #[must_use]
    pub fn with_coalescing(mut self, coalescing: Coalescing) -> Self {
        for path in &mut self.paths {
            path.batch = Batch::new(coalescing);
        }
        self
    }

    /// Rings as `doorbell` says from now on.
    pub fn set_doorbell(&mut self, doorbell: Doorbell) {
        for path in &mut self.paths {
            path.doorbell = doorbell;
        }
    }

    /// Does what is to be done at `now`, and no more than a bounded share of it.
    ///
    /// # Errors
    /// A port stopped working. The error names it.
    pub fn turn(&mut self, now: Instant) -> Result<Next, BridgeError> {
        let now = self.hold(now);
        self.counters.turns += 1;
        for port in &mut self.ports {
            port.advance(now)?;
        }
        let mut next = Next::default();
        let watches = self.paths.iter().any(|path| path.discipline.wants_min_rtt());
        let table = || RttTable::new(self.hash_key);
        let mut known = Surroundings {
            pool: &self.pool,
            watch: watches.then(|| self.round_trips.get_or_insert_with(table)),
            translator: self.translator.as_ref(),
            now,
        };
        for path in &mut self.paths {
            let from = self.ports[path.ingress].as_mut();
            next.more |= path.feed(from, &mut known)?;
            path.drain(self.ports[path.egress].as_mut(), now, &mut next)?;
        }
        for port in &self.ports {
            next.sleep_until(port.next_due());
        }
        Ok(next)
    }

    /// Time never runs backwards here.
    fn hold(&mut self, now: Instant) -> Instant {
        if now < self.now {
            self.counters.clock_backwards += 1;
        }
        self.now = self.now.max(now);
        self.now
    }

    /// The discipline of what leaves through the second port.
    pub fn up(&mut self) -> &mut D {
        &mut self.paths[0].discipline
    }

    /// The discipline of what leaves through the first port.
    pub fn down(&mut self) -> &mut D {
        &mut self.paths[1].discipline
    }

    /// The instant of the last turn; what to call a discipline's methods with.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Statistics.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.counts();
        for (port, snapshot) in self.ports.iter().zip(&mut snapshot.ports) {
            snapshot.lost_before_reading = port.lost_before_reading();
        }
        snapshot
    }

    /// Statistics without what the system has to be asked for: nothing is known of what was lost before reading.
    #[must_use]
    pub fn counts(&self) -> Snapshot {
        let port = |path: &Path<D>| PortSnapshot {
            name: self.ports[path.egress].name().into(),
            counters: self.ports[path.egress].counters(),
            lost_before_reading: None,
            backlog: path.discipline.backlog(),
            dql: path.dql.stats(),
            rings: path.rings,
            late: path.late.clone(),
        };
        let [up, down] = &self.paths;
        Snapshot { at: self.now, bridge: self.counters, ports: [port(down), port(up)] }
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), PortError>> {
        for port in &self.ports {
            if let Poll::Ready(outcome) = port.poll_readable(cx) {
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    }
}

impl<D: Discipline<FrameBuf>> Path<D> {
    const fn direction(&self) -> Direction {
        if self.ingress == 0 { Direction::Up } else { Direction::Down }
    }

    /// Reads and enqueues until there is nothing to read or the share is used up; true if it was.
    fn feed(
        &mut self,
        port: &mut dyn Port,
        known: &mut Surroundings<'_>,
    ) -> Result<bool, PortError> {
        let (mut bytes, mut asks, now) = (0, MOST_ASKED, known.now);
        let direction = self.direction();
        let translator = known.translator.filter(|_| self.discipline.wants_nat());
        for _ in 0..READ_FRAMES {
            match port.try_recv(known.pool)? {
                Recv::Frame(Received { frame, mut meta }) => {
                    bytes += meta.len.bytes();
                    if let Some(table) = &mut known.watch {
                        let seen = frame.sighting();
                        meta.min_rtt = seen.and_then(|seen| table.observe(direction, &seen, now));
                    }
                    if let Some(translator) = translator
                        && let Some(passing) = frame.passing(direction == Direction::Up)
                    {
                        translator.translate(&passing, &mut meta.flow, now, &mut asks);
                    }
                    self.discipline.enqueue(frame, &meta, now);
                }
                Recv::Skipped => {}
                Recv::Empty => return Ok(false),
            }
            if bytes >= READ_BYTES {
                break;
            }
        }
        Ok(true)
    }

    /// Sends what is due until there is nothing more, no room for more, or the share is used up.
    fn drain(
        &mut self,
        port: &mut dyn Port,
        now: Instant,
        next: &mut Next,
    ) -> Result<(), PortError> {
        self.note_lateness(now);
        self.settle(port, now)?;
        let begun = self.runs_sent;
        for _ in 0..SENT_FRAMES {
            if self.runs_sent - begun + self.batch.len() as u64 >= SENT_RUNS {
                break;
            }
            if self.batch.bytes() >= self.dql.available() {
                if self.discipline.backlog() == FrameLen::ZERO {
                    return self.finish(port, now, next);
                }
                self.dql.hold_back(now);
                self.ring(usize::MAX, port, now)?;
                if !self.batch.is_empty() || self.dql.available() == 0 {
                    self.look_again(now, next);
                    return Ok(());
                }
            }
            match self.discipline.dequeue(now) {
                Dequeue::Send(Departure { frame, queue, .. }) => self.batch.push(frame, queue),
                Dequeue::Wait(Wake { why: Why::WorkBound, .. }) => break,
                Dequeue::Wait(Wake { at, .. }) => {
                    next.sleep_until(Some(at));
                    self.due = Some(at);
                    return self.finish(port, now, next);
                }
                Dequeue::Idle => return self.finish(port, now, next),
            }
            if self.batch.len() > 1 && !self.rings_once() {
                self.ring(1, port, now)?;
            }
        }
        next.more = true;
        self.finish(port, now, next)
    }

    /// Asked before its time, because something arrived, a discipline says nothing of how late it is woken.
    fn note_lateness(&mut self, now: Instant) {
        if let Some(due) = self.due.take().filter(|&due| due <= now) {
            self.late.record(now - due);
        }
    }

    /// Whether what is due is to leave with one ring of the doorbell rather than run by run.
    fn rings_once(&self) -> bool {
        self.doorbell == Doorbell::Batch && self.dql.in_flight() <= self.dql.limit() / QUIET_SHARE
    }

    /// Sends what is left of the batch; if not all of it goes, the rest is tried again soon.
    fn finish(
        &mut self,
        port: &mut dyn Port,
        now: Instant,
        next: &mut Next,
    ) -> Result<(), PortError> {
        while !self.batch.is_empty() {
            let most = if self.rings_once() { usize::MAX } else { 1 };
            if self.ring(most, port, now)? == 0 {
                self.look_again(now, next);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Hands up to `most` runs to the port; how many it took.
    fn ring(&mut self, most: usize, port: &mut dyn Port, now: Instant) -> Result<usize, PortError> {
        if self.batch.is_empty() {
            return Ok(0);
        }
        self.rings += 1;
        let Sent { runs, congested, lost } = port.send(self.batch.offer(most))?;
        self.dql.sent(self.batch.forget(runs));
        self.runs_sent += runs as u64;
        if lost {
            self.dql.forget_hold();
        }
        self.settle(port, now)?;
        if congested {
            self.dql.shrink();
        }
        Ok(runs)
    }

    /// Learns what the device is done with.
    fn settle(&mut self, port: &mut dyn Port, now: Instant) -> Result<(), PortError> {
        let before = self.dql.in_flight();
        if before == 0 {
            return Ok(());
        }
        self.dql.complete(port.in_flight()?, now);
        if self.dql.in_flight() < before {
            self.look = Look::default();
        }
        Ok(())
    }

    /// The device holds as much as it may: it is looked at again soon, and less soon while nothing moves.
    fn look_again(&mut self, now: Instant, next: &mut Next) {
        // That nobody asks it now is not for being late.
        self.discipline.held_up();
        self.due = None;
        next.sleep_until(Some(self.look.again(now)));
    }
}

impl Next {
    /// Not past `at`.
    fn sleep_until(&mut self, at: Option<Instant>) {
        self.wake = [self.wake, at].into_iter().flatten().min();
    }
}

/// Runs a bridge until it is told to stop, or every sender of commands is gone. Call on a
/// current-thread tokio runtime; other tasks of it run while the bridge sleeps and once between
/// turns.
///
/// # Errors
/// A port stopped working. The error names it.
pub async fn run<D: Discipline<FrameBuf>>(
    bridge: &mut Bridge<D>,
    timer: &mut Timer,
    commands: &mut mpsc::Receiver<Command<D>>,
) -> Result<(), BridgeError> {
    loop {
        let next = bridge.turn(clock::now())?;
        let event = if next.more {
            // Lets the runtime look at its descriptors, or new readiness would never be seen.
            tokio::task::yield_now().await;
            Event::pending(commands)
        } else {
            timer.set(next.wake).map_err(BridgeError::Timer)?;
            poll_fn(|cx| Event::poll(bridge, timer, commands, cx)).await?
        };
        match event {
            Event::Turn => {}
            Event::Command(Command::With(action)) => action(bridge),
            // Whoever asked may have given up.
            Event::Command(Command::Snapshot(reply)) => drop(reply.send(bridge.snapshot())),
            Event::Command(Command::Stop) | Event::Abandoned => return Ok(()),
        }
    }
}

/// What ends a sleep.
enum Event<D> {
    /// The time has come, or something has arrived.
    Turn,
    Command(Command<D>),
    /// Nobody can send commands any more.
    Abandoned,
}

impl<D: Discipline<FrameBuf>> Event<D> {
    fn poll(
        bridge: &Bridge<D>,
        timer: &mut Timer,
        commands: &mut mpsc::Receiver<Command<D>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Self, BridgeError>> {
        if let Poll::Ready(command) = commands.poll_recv(cx) {
            return Poll::Ready(Ok(command.map_or(Self::Abandoned, Self::Command)));
        }
        if let Poll::Ready(outcome) = timer.poll_fired(cx) {
            return Poll::Ready(outcome.map(|()| Self::Turn).map_err(BridgeError::Timer));
        }
        bridge.poll_readable(cx).map(|outcome| Ok(outcome.map(|()| Self::Turn)?))
    }

    fn pending(commands: &mut mpsc::Receiver<Command<D>>) -> Self {
        match commands.try_recv() {
            Ok(command) => Self::Command(command),
            Err(mpsc::error::TryRecvError::Empty) => Self::Turn,
            Err(mpsc::error::TryRecvError::Disconnected) => Self::Abandoned,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::VecDeque;
    use std::rc::Rc;

    use super::*;
    use crate::io::delayed::Delayed;
    use crate::io::pair::{PairPort, pair};
    use crate::io::pool::tests::{TRAIN_PAYLOAD, plain_frame, train};
    use crate::packet::vnet::VnetHeader;
    use crate::packet::{Frame, Meta, Refused};
    use crate::qdisc::Enqueued;
    use crate::units::WireLen;

    /// Lets a frame go every `gap`; splits superpackets if told to.
    struct Metronome {
        queue: VecDeque<(FrameBuf, FrameLen)>,
        gap: Span,
        next: Instant,
        split: bool,
    }

    impl Metronome {
        fn new(gap: Span, split: bool) -> Self {
            Self { queue: VecDeque::new(), gap, next: Instant::ZERO, split }
        }
    }

    impl Discipline<FrameBuf> for Metronome {
        fn enqueue(&mut self, frame: FrameBuf, meta: &Meta, _now: Instant) -> Enqueued {
            if self.split {
                let segments = 0..meta.segments.count;
                self.queue.extend(segments.map(|i| (frame.segment(i), meta.segment_len(i))));
            } else {
                self.queue.push_back((frame, meta.len));
            }
            Enqueued::Queued
        }

        fn dequeue(&mut self, now: Instant) -> Dequeue<FrameBuf> {
            if self.queue.is_empty() {
                return Dequeue::Idle;
            }
            if now < self.next {
                return Dequeue::Wait(Wake { at: self.next, why: Why::Shaper });
            }
            self.next = now + self.gap;
            let (frame, len) = self.queue.pop_front().expect("not empty");
            Dequeue::Send(Departure {
                frame,
                len,
                wire_len: WireLen(len.bytes()),
                sojourn: Span::ZERO,
                queue: (0, 0),
            })
        }

        fn backlog(&self) -> FrameLen {
            self.queue.iter().map(|(_, len)| *len).sum()
        }
    }

    fn bridge(gap: Span, split: bool) -> (PairPort, Bridge<Metronome>, PairPort) {
        let (client, lan) = pair("client", "lan");
        let (wan, server) = pair("wan", "server");
        let [up, down] = [(); 2].map(|()| Metronome::new(gap, split));
        (client, Bridge::new(Box::new(lan), Box::new(wan), up, down), server)
    }

    #[test]
    fn a_frame_crosses_unchanged_in_either_direction() {
        let (mut client, mut bridge, mut server) = bridge(Span::ZERO, false);
        client.inject(&VnetHeader::PLAIN, &plain_frame(60));
        server.inject(&VnetHeader::PLAIN, &plain_frame(900));
        assert_eq!(bridge.turn(Instant::ZERO).expect("turn"), Next::default());
        assert_eq!(server.eject(), Some((VnetHeader::PLAIN, plain_frame(60))));
        assert_eq!(client.eject(), Some((VnetHeader::PLAIN, plain_frame(900))));
    }

    #[test]
    fn what_is_not_due_waits_for_its_wake() {
        let gap = Span::from_millis(3);
        let (mut client, mut bridge, mut server) = bridge(gap, false);
        for _ in 0..2 {
            client.inject(&VnetHeader::PLAIN, &plain_frame(100));
        }
        let next = bridge.turn(Instant::ZERO).expect("turn");
        assert_eq!(next, Next { wake: Some(Instant::ZERO + gap), more: false });
        assert!(server.eject().is_some() && server.eject().is_none());
        assert_eq!(bridge.snapshot().ports[1].backlog, FrameLen(100));

        bridge.turn(Instant::ZERO + gap - Span::from_nanos(1)).expect("turn");
        assert!(server.eject().is_none(), "too early");
        bridge.turn(Instant::ZERO + gap).expect("turn");
        assert!(server.eject().is_some(), "its time has come");
    }

    #[test]
    fn a_superpacket_leaves_segment_by_segment_if_nothing_is_joined() {
        let (mut client, bridge, mut server) = bridge(Span::ZERO, true);
        let mut bridge = bridge.with_coalescing(Coalescing::Off);
        let (vnet, frame) = train(3);
        client.inject(&vnet, &frame);
        bridge.turn(Instant::ZERO).expect("turn");
        for index in 0..3 {
            let (vnet, segment) = server.eject().expect("a segment");
            assert_eq!((vnet.gso_type, vnet.gso_size), (0, 0));
            assert_eq!(segment.len(), 54 + TRAIN_PAYLOAD);
            let byte = u8::try_from(index).expect("small");
            assert!(segment[54..].iter().all(|found| *found == byte), "payload {index}");
        }
        assert!(server.eject().is_none());
    }

    #[test]
    fn a_superpacket_whose_segments_leave_together_leaves_as_it_came() {
        let (mut client, mut bridge, mut server) = bridge(Span::ZERO, true);
        let (vnet, frame) = train(3);
        client.inject(&vnet, &frame);
        bridge.turn(Instant::ZERO).expect("turn");
        assert_eq!(server.eject(), Some((vnet, frame)));
        let Counters { segments_out, frames_out, .. } = bridge.snapshot().ports[1].counters;
        assert_eq!((segments_out, frames_out), (3, 1));
    }

    #[test]
    fn segments_that_leave_one_by_one_are_not_waited_for() {
        let gap = Span::from_millis(1);
        let (mut client, mut bridge, mut server) = bridge(gap, true);
        let (vnet, frame) = train(3);
        client.inject(&vnet, &frame);
        for turn in 0..3 {
            bridge.turn(Instant::ZERO + gap * turn).expect("turn");
            assert_eq!(server.eject().expect("one each").1.len(), 54 + TRAIN_PAYLOAD);
        }
    }

    #[test]
    fn how_late_each_direction_is_asked_again_is_counted_but_not_that_it_is_asked_early() {
        let gap = Span::from_millis(1);
        let (mut client, mut bridge, mut server) = bridge(gap, true);
        let (vnet, frame) = train(3);
        client.inject(&vnet, &frame);
        let late = |bridge: &Bridge<Metronome>| {
            bridge
                .snapshot()
                .ports
                .map(|port| port.late.stats())
                .map(|late| (late.wake_ups, late.max))
        };
        let micros = Span::from_micros;
        for (at, counted) in [
            (Span::ZERO, (0, Span::ZERO)),
            // Something else arrived.
            (micros(400), (0, Span::ZERO)),
            (micros(1_050), (1, micros(50))),
            // On time.
            (micros(2_050), (2, micros(50))),
            // Nothing was waited for.
            (micros(9_000), (2, micros(50))),
        ] {
            bridge.turn(Instant::ZERO + at).expect("turn");
            assert_eq!(late(&bridge), [(0, Span::ZERO), counted], "{at:?}");
        }
        assert_eq!(std::iter::from_fn(|| server.eject()).count(), 3);
    }

    /// A port whose device is done with nothing until it is told to be, and may have no room.
    struct Slow {
        inner: PairPort,
        state: Rc<Cell<Device>>,
    }

    #[derive(Clone, Copy, Default)]
    struct Device {
        in_flight: u64,
        calls: u32,
        full: bool,
    }

    impl Port for Slow {
        fn name(&self) -> &str {
            self.inner.name()
        }

        fn try_recv(&mut self, pool: &Pool) -> Result<Recv, PortError> {
            self.inner.try_recv(pool)
        }

        fn send(&mut self, batch: &Batch) -> Result<Sent, PortError> {
            let mut state = self.state.get();
            state.calls += 1;
            self.state.set(state);
            if state.full {
                return Ok(Sent { congested: true, ..Sent::default() });
            }
            state.in_flight += batch.runs().map(|run| run.bytes()).sum::<u64>();
            self.state.set(state);
            self.inner.send(batch)
        }

        fn in_flight(&mut self) -> Result<u64, PortError> {
            Ok(self.state.get().in_flight)
        }

        fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), PortError>> {
            self.inner.poll_readable(cx)
        }

        fn counters(&self) -> Counters {
            self.inner.counters()
        }
    }

    /// A bridge that leads to a slow device, and `frames` of a thousand bytes on their way to it.
    fn slow_bridge(frames: usize) -> (Bridge<Metronome>, Rc<Cell<Device>>, [PairPort; 2]) {
        let (mut client, lan) = pair("client", "lan");
        let (wan, server) = pair("wan", "server");
        let state = Rc::new(Cell::new(Device::default()));
        let wan = Slow { inner: wan, state: Rc::clone(&state) };
        let [up, down] = [(); 2].map(|()| Metronome::new(Span::ZERO, false));
        for _ in 0..frames {
            client.inject(&VnetHeader::PLAIN, &plain_frame(1000));
        }
        (Bridge::new(Box::new(lan), Box::new(wan), up, down), state, [client, server])
    }

    /// Turns at `now` for as long as there is more to do.
    fn turns(bridge: &mut Bridge<Metronome>, now: Instant) -> Next {
        loop {
            let next = bridge.turn(now).expect("turn");
            if !next.more {
                return next;
            }
        }
    }

    #[test]
    fn a_device_is_handed_no_more_than_its_limit_while_it_is_done_with_nothing() {
        let (mut bridge, state, _ends) = slow_bridge(30);
        let next = turns(&mut bridge, Instant::ZERO);
        assert_eq!(next.wake, Some(Instant::ZERO + COMPLETION_POLL), "it is looked at again soon");
        let wan = &bridge.snapshot().ports[1];
        assert!(wan.dql.in_flight >= wan.dql.limit && wan.dql.in_flight < wan.dql.limit + 1000);
        assert_eq!(wan.dql.in_flight, state.get().in_flight);
        assert_eq!(wan.backlog, FrameLen(30_000 - u32::try_from(wan.dql.in_flight).expect("few")));
        let limit = wan.dql.limit;

        state.set(Device::default());
        let later = Instant::ZERO + COMPLETION_POLL;
        turns(&mut bridge, later);
        let wan = &bridge.snapshot().ports[1];
        assert!(wan.dql.limit > limit, "it ran dry although something was held back");
        assert_eq!((wan.backlog, wan.dql.stopped), (FrameLen::ZERO, COMPLETION_POLL));
        assert_eq!(wan.counters.frames_out, 30, "nothing is lost");
    }

    #[test]
    fn a_device_that_stands_still_is_looked_at_less_and_less_often() {
        let (mut bridge, _state, _ends) = slow_bridge(30);
        let (mut now, mut gaps) = (Instant::ZERO, Vec::new());
        for _ in 0..9 {
            let wake = turns(&mut bridge, now).wake.expect("soon");
            gaps.push((wake - now).micros());
            now = wake;
        }
        assert_eq!(gaps, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
    }

    #[test]
    fn a_device_that_is_full_with_nothing_behind_it_is_not_looked_at() {
        let (mut bridge, state, [mut client, _server]) = slow_bridge(0);
        let limit = usize::try_from(Dql::new().limit()).expect("small");
        client.inject(&VnetHeader::PLAIN, &plain_frame(limit));
        assert_eq!(bridge.turn(Instant::ZERO).expect("turn"), Next::default());
        assert_eq!(bridge.turn(Instant::from_nanos(1)).expect("turn"), Next::default());
        assert_eq!(state.get().in_flight, limit.try_into().expect("small"));
        assert_eq!(bridge.snapshot().ports[1].dql.stops, 0);
    }

    #[test]
    fn what_a_port_has_no_room_for_is_offered_again_and_the_limit_shrinks() {
        let (mut bridge, state, _ends) = slow_bridge(3);
        state.set(Device { full: true, ..Device::default() });
        let next = turns(&mut bridge, Instant::ZERO);
        assert_eq!(next.wake, Some(Instant::ZERO + COMPLETION_POLL));
        assert_eq!(bridge.snapshot().ports[1].counters.frames_out, 0);
        let limit = bridge.snapshot().ports[1].dql.limit;

        state.set(Device::default());
        bridge.turn(next.wake.expect("soon")).expect("turn");
        assert_eq!(bridge.snapshot().ports[1].counters.frames_out, 3);
        assert!(limit < Dql::new().limit());
    }

    #[test]
    fn the_doorbell_rings_once_for_all_that_is_due_or_once_for_each_run() {
        for (doorbell, calls) in [(Doorbell::Batch, 1), (Doorbell::Packet, 10)] {
            let (mut bridge, state, _ends) = slow_bridge(10);
            bridge.set_doorbell(doorbell);
            bridge.turn(Instant::ZERO).expect("turn");
            assert_eq!(
                (state.get().calls, bridge.snapshot().ports[1].rings),
                (calls, calls.into())
            );
        }
    }

    #[test]
    fn a_device_that_holds_much_is_rung_for_each_run() {
        let (mut bridge, state, [mut client, _server]) = slow_bridge(10);
        bridge.turn(Instant::ZERO).expect("turn");
        assert_eq!(state.get().calls, 1);
        for _ in 0..5 {
            client.inject(&VnetHeader::PLAIN, &plain_frame(1000));
        }
        bridge.turn(Instant::ZERO).expect("turn");
        assert_eq!(state.get().calls, 1 + 5);
    }

    #[test]
    fn frames_that_make_no_sense_are_counted_and_the_bridge_goes_on() {
        let (mut client, bridge, mut server) = bridge(Span::ZERO, true);
        let mut bridge = bridge.with_coalescing(Coalescing::Off);
        let (good, frame) = train(3);
        let bad = [
            (VnetHeader { gso_size: 0, ..good }, &frame[..], Refused::ZeroSegment),
            (VnetHeader { gso_type: 99, ..good }, &frame[..], Refused::GsoUnknown),
            (VnetHeader { gso_type: VnetHeader::GSO_TCPV6, ..good }, &frame, Refused::GsoMismatch),
            (VnetHeader { csum_start: 9000, ..good }, &frame[..], Refused::ChecksumOutside),
            (VnetHeader { csum_offset: 6, ..good }, &frame[..], Refused::ChecksumElsewhere),
            (good, &frame[..52], Refused::HeadersCut),
        ];
        for (vnet, bytes, _) in &bad {
            client.inject(vnet, bytes);
        }
        // A claim too large is none: one segment. A claim about headers is not believed at all.
        client.inject(&VnetHeader { gso_size: u16::MAX, ..good }, &frame);
        client.inject(&VnetHeader { hdr_len: u16::MAX, ..good }, &frame);
        client.inject(&good, &frame[..13]);
        client.inject(&VnetHeader::PLAIN, &vec![0; 70_000]);
        bridge.turn(Instant::ZERO).expect("turn");
        let [Counters { refused, truncated, runts, .. }, _] =
            bridge.snapshot().ports.map(|port| port.counters);
        for (vnet, _, reason) in &bad {
            let count = refused.iter().find(|(seen, _)| seen == reason).map(|(_, count)| *count);
            assert_eq!(count, Some(1), "{reason}: {vnet:?}");
        }
        assert_eq!((truncated, runts), (1, 1));
        let lens = core::iter::from_fn(|| server.eject()).map(|(_, frame)| frame.len());
        let single = 54 + TRAIN_PAYLOAD;
        assert_eq!(lens.collect::<Vec<_>>(), [frame.len(), single, single, single]);
    }

    #[test]
    fn a_turn_reads_a_bounded_share_of_each_port() {
        let (mut client, mut bridge, mut server) = bridge(Span::ZERO, false);
        for _ in 0..100 {
            client.inject(&VnetHeader::PLAIN, &plain_frame(60));
            server.inject(&VnetHeader::PLAIN, &plain_frame(60));
        }
        assert!(bridge.turn(Instant::ZERO).expect("turn").more);
        let [lan, wan] = bridge.snapshot().ports;
        let share = u64::from(READ_FRAMES);
        assert_eq!((lan.counters.frames_in, wan.counters.frames_in), (share, share));
        while bridge.turn(Instant::ZERO).expect("turn").more {}
        assert_eq!(bridge.snapshot().ports[1].counters.frames_out, 100);
    }

    #[test]
    fn a_clock_that_runs_backwards_is_held_and_counted() {
        let (_client, mut bridge, _server) = bridge(Span::ZERO, false);
        bridge.turn(Instant::from_nanos(50)).expect("turn");
        bridge.turn(Instant::from_nanos(20)).expect("turn");
        assert_eq!(bridge.now(), Instant::from_nanos(50));
        assert_eq!(bridge.snapshot().bridge.clock_backwards, 1);
    }

    #[test]
    fn a_port_that_is_gone_ends_the_bridge_by_name() {
        let (mut client, mut bridge, server) = bridge(Span::ZERO, false);
        drop(server);
        client.inject(&VnetHeader::PLAIN, &plain_frame(60));
        let error = bridge.turn(Instant::ZERO).expect_err("wan has no other end");
        assert_eq!(error.to_string(), "wan is gone: the device was removed");
    }

    #[test]
    fn a_long_wire_delivers_late_in_order_and_within_its_cap() {
        let (mut client, lan) = pair("client", "lan");
        let (wan, mut server) = pair("wan", "server");
        let delay = Span::from_millis(20);
        let wan = Delayed::new(wan, delay, FrameLen(250));
        let [up, down] = [(); 2].map(|()| Metronome::new(Span::ZERO, false));
        let mut bridge = Bridge::new(Box::new(lan), Box::new(wan), up, down);
        for len in [100, 101, 102] {
            client.inject(&VnetHeader::PLAIN, &plain_frame(len));
        }
        let start = Instant::from_nanos(7);
        assert_eq!(bridge.turn(start).expect("turn").wake, Some(start + delay));
        assert!(server.eject().is_none(), "still on the wire");
        assert_eq!(bridge.turn(start + delay).expect("turn").wake, None);
        let lens = core::iter::from_fn(|| server.eject()).map(|(_, frame)| frame.len());
        assert_eq!(lens.collect::<Vec<_>>(), [100, 101], "the third did not fit on the wire");
        assert_eq!(bridge.snapshot().ports[1].counters.write_errors.full, 1);
    }

    #[test]
    fn a_running_bridge_answers_and_stops() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime.expect("a runtime").block_on(async {
            let (mut client, mut bridge, mut server) = bridge(Span::from_micros(200), false);
            let mut timer = Timer::new().expect("a timer");
            let (sender, mut receiver) = mpsc::channel(4);
            let story = async {
                for _ in 0..5 {
                    client.inject(&VnetHeader::PLAIN, &plain_frame(60));
                }
                let mut seen = 0;
                while seen < 5 {
                    seen += u32::from(server.eject().is_some());
                    tokio::task::yield_now().await;
                }
                let (reply, answer) = oneshot::channel();
                let asked = sender.send(Command::Snapshot(reply)).await;
                assert!(asked.is_ok(), "the bridge listens");
                let snapshot = answer.await.expect("the bridge answers");
                assert_eq!(snapshot.ports[1].counters.frames_out, 5);
                assert!(sender.send(Command::Stop).await.is_ok(), "the bridge listens");
            };
            let (outcome, ()) = tokio::join!(run(&mut bridge, &mut timer, &mut receiver), story);
            outcome.expect("a clean stop");
        });
    }
}
