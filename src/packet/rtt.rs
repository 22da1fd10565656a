//! The smallest round-trip time of each TCP connection, learned by watching.
//!
//! Problem: how much a flow may send in one go depends on how near its ends are, and nobody tells.
//! Source: RFC 7323 §3 and §4 (timestamps; what is echoed, and when), RFC 9293 §3.5 (the handshake);
//! Karn's algorithm (RFC 6298 §3): what was sent twice is not measured from the second time.
//! Law: both directions pass here, so a round trip has two halves: from here to one end and back, and from
//! here to the other and back. A half takes from the *first* sight of a clock (TSval) to its echo (TSecr)
//! in the other direction; or from SYN to SYN/ACK, and from there to the ACK. The least of each is kept, and
//! their sum is the answer; it includes what frames waited here, which at the least is nothing.
//! Invariants: a half that is measured takes at least as long as the way did, whatever is lost,
//! repeated or held back, unless an end lies: one that echoes clocks that it has not heard yet can seem
//! near, and gains what [`crate::qdisc`] lets a near flow have.
//!
//! Memory is fixed: 1024 buckets of four connections, a cache line each. A new one takes the place of the one
//! that was not seen for longest; one that was not seen for [`IDLE`], or that begins again with a SYN, is
//! learned anew. Who floods the table makes round-trip times unknown, which is no harm but the lost extra.
//!
//! Left out: connections of which one half is known (one direction goes another way): half a truth would
//! make them nearer than they are. Fragments and what is in a tunnel: they are no TCP here.

use super::bytes::{double_word, word};
use super::tcp::{END, NOP, TCP_LEN, TIMESTAMPS, TcpFlags, Timestamps, ipv6_address};
use super::{Layout, Network, Transport};
use crate::time::{Instant, Span};
use siphasher::sip::SipHasher13;

/// Buckets, and connections in each: four thousand connections are more than a line that is worth an
/// extra has within seconds, in a quarter of a megabyte.
const BUCKETS: usize = 1024;
const WAYS: usize = 4;

/// After so long without a frame a connection is another one, or goes another way.
pub const IDLE: Span = Span::from_secs(300);

/// After so long without an echo another clock is waited for: that one was a lie, or is lost.
const PATIENCE: Span = Span::from_secs(10);

/// What precedes an IPv4 address among IPv6 ones (RFC 4291 §2.5.5.2).
const MAPPED: u128 = 0xffff << 32;

/// Which way a frame travels; which is which does not matter, as long as it is always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From LAN to WAN.
    Up,
    /// From WAN to LAN.
    Down,
}

/// A TCP frame seen passing by: what tells of time in its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Address and port of the sender; IPv4 addresses mapped into IPv6.
    pub source: (u128, u16),
    /// Address and port of the receiver.
    pub destination: (u128, u16),
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number; means nothing without the flag.
    pub ack: u32,
    /// Flags.
    pub flags: TcpFlags,
    /// The first timestamps option that is as long as one is.
    pub timestamps: Option<Timestamps>,
}

impl Sighting {
    /// Reads a frame's headers; `None` if it has no TCP header that is complete. Of a superpacket it is the
    /// header of all its segments. `layout` belongs to `frame`, as [`dissect()`](super::dissect()) gave it.
    ///
    /// ```
    /// use ucake::packet::{Layout, Sighting};
    ///
    /// assert_eq!(Sighting::read(&[0; 60], &Layout::default()), None);
    /// ```
    #[must_use]
    pub fn read(frame: &[u8], layout: &Layout) -> Option<Self> {
        let Some((Transport::Tcp, offset)) = layout.transport else { return None };
        let (source, destination) = addresses(frame, layout)?;
        let bytes = frame.get(usize::from(offset)..)?;
        let offset_and_flags = word(bytes, 12)?;
        let header = bytes.get(..usize::from(offset_and_flags >> 12) * 4)?;
        Some(Self {
            source: (source, word(header, 0)?),
            destination: (destination, word(header, 2)?),
            sequence: double_word(header, 4)?,
            ack: double_word(header, 8)?,
            flags: TcpFlags::new(offset_and_flags),
            timestamps: timestamps(header.get(TCP_LEN..)?),
        })
    }

    /// Whether it opens a connection, or agrees to.
    fn is_syn(&self) -> bool {
        self.flags.contains(TcpFlags::SYN)
    }

    fn is_ack(&self) -> bool {
        self.flags.contains(TcpFlags::ACK)
    }
}

/// Source and destination.
fn addresses(frame: &[u8], layout: &Layout) -> Option<(u128, u128)> {
    let packet = frame.get(usize::from(layout.network_offset)..)?;
    let mapped = |at| Some(MAPPED | u128::from(double_word(packet, at)?));
    match layout.network {
        Network::Ipv4 => Some((mapped(12)?, mapped(16)?)),
        Network::Ipv6 => Some((ipv6_address(packet, 8)?, ipv6_address(packet, 24)?)),
        Network::Other => None,
    }
}

/// The first timestamps option in `area`.
fn timestamps(mut area: &[u8]) -> Option<Timestamps> {
    while let &[kind, ref rest @ ..] = area {
        if kind == NOP {
            area = rest;
            continue;
        }
        let len = usize::from(*rest.first()?);
        if kind == END || len < 2 {
            return None;
        }
        if (kind, len) == (TIMESTAMPS, 10) {
            return Some(Timestamps::read(area.get(2..)?.first_chunk()?));
        }
        area = area.get(len..)?;
    }
    None
}

/// The round-trip times of the connections that pass by.
///
/// A driver feeds it with every frame of either direction, before the frame is queued:
/// `meta.min_rtt = Sighting::read(frame, &layout).and_then(|seen| table.observe(direction, &seen, now))`.
/// Only `auto-split-gso` asks for the answer. One table serves both directions; nothing is allocated once it
/// is made.
///
/// ```
/// use ucake::packet::tcp::TcpFlags;
/// use ucake::packet::{Direction, RttTable, Sighting};
/// use ucake::time::{Instant, Span};
///
/// let mut table = RttTable::new((1, 2));
/// let at = |millis: i64| Instant::from_nanos(millis * 1_000_000);
/// let (here, there) = ((1, 50_000), (2, 443));
/// let syn = Sighting {
///     source: here, destination: there, sequence: 100, ack: 0, flags: TcpFlags::SYN, timestamps: None,
/// };
/// let both = TcpFlags::SYN.with(TcpFlags::ACK);
/// let syn_ack = Sighting {
///     source: there, destination: here, sequence: 500, ack: 101, flags: both, timestamps: None,
/// };
/// let ack = Sighting { sequence: 101, ack: 501, flags: TcpFlags::ACK, ..syn };
/// assert_eq!(table.observe(Direction::Up, &syn, at(0)), None);
/// assert_eq!(table.observe(Direction::Down, &syn_ack, at(20)), None, "from here to there and back");
/// assert_eq!(table.observe(Direction::Up, &ack, at(21)), Some(Span::from_millis(21)));
/// ```
#[derive(Clone, Debug)]
pub struct RttTable {
    sip: SipHasher13,
    buckets: Box<[[Entry; WAYS]]>,
}

/// A connection.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Entry {
    /// All of its hash; 0 is none.
    tag: u64,
    seen_at: Instant,
    /// By the direction in which what is measured travels.
    halves: [Half; 2],
}

/// From here to one of the ends, and back.
#[derive(Clone, Copy, Debug)]
struct Half {
    /// The least, in nanoseconds; [`Half::UNKNOWN`] before it was measured.
    least: u32,
    awaited: Awaited,
    /// Whether `newest` is one.
    stamped: bool,
    /// The number whose echo, or acknowledgment, ends what is being measured.
    stamp: u32,
    /// The latest clock seen.
    newest: u32,
    sent_at: Instant,
}

/// What ends a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Nothing,
    /// The acknowledgment of a SYN.
    Ack,
    /// The echo of a clock, or of a later one.
    Echo,
}

impl RttTable {
    /// A table that knows no connection. `key` is that of its hash, secret where strangers choose addresses
    /// and ports.
    #[must_use]
    pub fn new(key: (u64, u64)) -> Self {
        Self {
            sip: SipHasher13::new_with_keys(key.0, key.1),
            buckets: vec![[Entry::new(0); WAYS]; BUCKETS].into_boxed_slice(),
        }
    }

    /// Takes note of a frame that travels in `direction` at `now`. Returns the smallest round-trip time
    /// known of its connection; `None` before both halves of it were measured.
    pub fn observe(&mut self, direction: Direction, seen: &Sighting, now: Instant) -> Option<Span> {
        // What is said at the end of a broken connection need not be true, and nothing follows.
        if seen.flags.contains(TcpFlags::RST) {
            return None;
        }
        let tells = seen.is_syn() || seen.timestamps.is_some();
        let entry = self.entry(self.tag(direction, seen), tells, now)?;
        entry.learn(direction, seen, now);
        entry.round_trip()
    }

    /// The connection with this tag; a new one is only made for what `tells` something.
    fn entry(&mut self, tag: u64, tells: bool, now: Instant) -> Option<&mut Entry> {
        let bucket = self.buckets.get_mut(usize::try_from(tag % BUCKETS as u64).ok()?)?;
        let known = bucket.iter().position(|entry| entry.tag == tag);
        let oldest = || {
            let ages = bucket.iter().enumerate().map(|(way, entry)| (entry.seen_at, way));
            tells.then_some(ages.min()?.1)
        };
        let way = known.or_else(oldest)?;
        let entry = bucket.get_mut(way)?;
        if entry.tag != tag || now - entry.seen_at > IDLE {
            *entry = Entry::new(tag);
        }
        entry.seen_at = now;
        Some(entry)
    }

    /// Alike for both directions of a connection, and for no other; a frame that is sent back the way it came
    /// (by a router with one leg) passes twice, as two connections.
    fn tag(&self, direction: Direction, seen: &Sighting) -> u64 {
        let ascends = seen.source <= seen.destination;
        let (low, high) =
            if ascends { (seen.source, seen.destination) } else { (seen.destination, seen.source) };
        let mut bytes = [0; 37];
        bytes[..16].copy_from_slice(&low.0.to_le_bytes());
        bytes[16..32].copy_from_slice(&high.0.to_le_bytes());
        bytes[32..34].copy_from_slice(&low.1.to_le_bytes());
        bytes[34..36].copy_from_slice(&high.1.to_le_bytes());
        bytes[36] = u8::from(ascends == (direction == Direction::Up));
        self.sip.hash(&bytes).max(1)
    }
}

impl Entry {
    const fn new(tag: u64) -> Self {
        Self { tag, seen_at: Instant::from_nanos(i64::MIN), halves: [Half::new(); 2] }
    }

    fn learn(&mut self, direction: Direction, seen: &Sighting, now: Instant) {
        let opens = seen.is_syn() && !seen.is_ack();
        let anew = opens && !self.halves(direction).0.awaits_ack_of(seen);
        if anew {
            *self = Self { seen_at: self.seen_at, ..Self::new(self.tag) };
        }
        let (there, back) = self.halves(direction);
        // A SYN/ACK that is repeated finds nobody waiting. The ACKs on their way meanwhile answer the first.
        let answers = back.hear(seen, now);
        if seen.is_syn() && (anew || answers) {
            there.begin(Awaited::Ack, seen.sequence.wrapping_add(1), now);
        }
        there.send(seen, now);
    }

    /// The half that begins with what travels in `direction`, and the one that ends with it.
    fn halves(&mut self, direction: Direction) -> (&mut Half, &mut Half) {
        let [up, down] = &mut self.halves;
        match direction {
            Direction::Up => (up, down),
            Direction::Down => (down, up),
        }
    }

    fn round_trip(&self) -> Option<Span> {
        let [up, down] = self.halves.map(Half::least);
        Some(up? + down?)
    }
}

impl Half {
    const UNKNOWN: u32 = u32::MAX;

    const fn new() -> Self {
        Self {
            least: Self::UNKNOWN,
            awaited: Awaited::Nothing,
            stamped: false,
            stamp: 0,
            newest: 0,
            sent_at: Instant::ZERO,
        }
    }

    fn least(self) -> Option<Span> {
        (self.least != Self::UNKNOWN).then(|| Span::from_nanos(self.least.into()))
    }

    /// Whether `seen` is a SYN that was seen before and is not answered yet.
    fn awaits_ack_of(&self, seen: &Sighting) -> bool {
        self.awaited == Awaited::Ack && self.stamp == seen.sequence.wrapping_add(1)
    }

    /// Begins to wait for the echo of a clock that was not seen before.
    fn send(&mut self, seen: &Sighting, now: Instant) {
        let Some(Timestamps { value, .. }) = seen.timestamps else { return };
        // Sent again, or by a clock that has not ticked: not its first sight.
        if self.stamped && !is_after(value, self.newest) {
            return;
        }
        (self.newest, self.stamped) = (value, true);
        let waits = self.awaited == Awaited::Echo && now - self.sent_at < PATIENCE;
        // No echo is told from a clock of 0.
        if !seen.is_syn() && !waits && value != 0 {
            self.begin(Awaited::Echo, value, now);
        }
    }

    fn begin(&mut self, awaited: Awaited, stamp: u32, now: Instant) {
        (self.awaited, self.stamp, self.sent_at) = (awaited, stamp, now);
    }

    /// Ends a measurement, if this is what ends it; says whether.
    fn hear(&mut self, seen: &Sighting, now: Instant) -> bool {
        let heard = match self.awaited {
            Awaited::Nothing => false,
            Awaited::Ack => seen.ack == self.stamp,
            Awaited::Echo => seen.timestamps.is_some_and(|clock| self.is_echo(clock.echo)),
        };
        if !heard || !seen.is_ack() {
            return false;
        }
        self.awaited = Awaited::Nothing;
        // Time that went backwards is not one, and seconds are not near.
        if let Ok(nanos) = u32::try_from((now - self.sent_at).nanos()) {
            self.least = self.least.min(nanos);
        }
        true
    }

    /// Whether the clock waited for, or a later one that was seen, comes back.
    fn is_echo(&self, echo: u32) -> bool {
        echo != 0 && !is_after(self.stamp, echo) && !is_after(echo, self.newest)
    }
}

/// Whether a number that wraps around is after another (RFC 7323 §5.2).
fn is_after(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::packet::testing::{Ip, Packet};
    use crate::packet::{VnetHeader, dissect};
    use crate::units::MemSize;
    use Direction::{Down, Up};
    use proptest::prelude::*;

    const SYN: TcpFlags = TcpFlags::SYN;
    const ACK: TcpFlags = TcpFlags::ACK;
    /// So far from the client, and from the server, and back.
    const NEAR: i64 = 40;
    const FAR: i64 = 900;

    fn at(micros: i64) -> Instant {
        Instant::from_nanos(1_000_000_000_000 + micros * 1_000)
    }

    fn micros(micros: i64) -> Option<Span> {
        Some(Span::from_micros(micros))
    }

    /// What the client of connection `number` sends; the server if `down`.
    fn from(direction: Direction, number: u16) -> Sighting {
        let (client, server) = ((10, number), (20, 443));
        let (source, destination) =
            if direction == Up { (client, server) } else { (server, client) };
        Sighting { source, destination, sequence: 0, ack: 0, flags: ACK, timestamps: None }
    }

    fn stamped(direction: Direction, value: u32, echo: u32) -> Sighting {
        Sighting { timestamps: Some(Timestamps { value, echo }), ..from(direction, 1) }
    }

    fn syn(sequence: u32) -> Sighting {
        Sighting { sequence, flags: SYN, ..from(Up, 1) }
    }

    fn syn_ack(sequence: u32, ack: u32) -> Sighting {
        Sighting { sequence, ack, flags: SYN.with(ACK), ..from(Down, 1) }
    }

    fn acknowledges(ack: u32) -> Sighting {
        Sighting { ack, ..from(Up, 1) }
    }

    fn table() -> RttTable {
        RttTable::new((1, 2))
    }

    /// What each frame is told, and what the last is.
    fn told(frames: &[(Direction, Sighting, i64)]) -> Option<Span> {
        let mut table = table();
        let answers =
            frames.iter().map(|(way, seen, micros)| table.observe(*way, seen, at(*micros)));
        answers.last().flatten()
    }

    #[test]
    fn a_handshake_gives_both_halves() {
        let (begun, agreed) = (syn(u32::MAX), syn_ack(7, 0));
        let frames = [(Up, begun, 0), (Down, agreed, FAR), (Up, acknowledges(8), FAR + NEAR)];
        assert_eq!(told(&frames[..2]), None, "one half is none");
        assert_eq!(told(&frames), micros(FAR + NEAR));
        let wrong = [(Up, begun, 0), (Down, syn_ack(7, 5), FAR), (Up, acknowledges(8), FAR + NEAR)];
        assert_eq!(told(&wrong), None, "it answers something else");
    }

    #[test]
    fn a_handshake_repeated_is_measured_from_the_first_time() {
        let (begun, agreed) = (syn(100), syn_ack(7, 101));
        let lost = [
            (Up, begun, 0),
            (Up, begun, 1_000_000),
            (Down, agreed, 1_000_000 + FAR),
            (Down, agreed, 2_000_000),
            (Up, acknowledges(8), 2_000_000 + NEAR),
        ];
        assert_eq!(told(&lost), micros(2_000_000 + NEAR));
        // The server did not hear of the ACK, and the client's data is on its way.
        let late = [
            (Up, begun, 0),
            (Down, agreed, FAR),
            (Up, acknowledges(8), FAR + NEAR),
            (Down, agreed, 1_000_000),
            (Up, acknowledges(8), 1_000_001),
        ];
        assert_eq!(told(&late), micros(FAR + NEAR), "that ACK did not answer this SYN/ACK");
    }

    #[test]
    fn clocks_and_their_echoes_give_both_halves_and_the_least_of_each_counts() {
        let mut frames = vec![
            (Down, stamped(Down, 700, 5), 0),
            (Up, stamped(Up, 900, 700), 200),
            (Down, stamped(Down, 701, 900), 200 + 5000),
        ];
        assert_eq!(told(&frames), micros(5_200));
        frames.push((Up, stamped(Up, 901, 701), 5_200 + NEAR));
        assert_eq!(told(&frames), micros(5_000 + NEAR));
        frames.push((Down, stamped(Down, 702, 901), 5_200 + NEAR + FAR));
        assert_eq!(told(&frames), micros(FAR + NEAR));
        frames.push((Up, stamped(Up, 902, 702), 1_000_000));
        assert_eq!(told(&frames), micros(FAR + NEAR), "what takes longer changes nothing");
    }

    #[test]
    fn a_clock_that_was_seen_before_does_not_begin_anew() {
        let frames = [
            (Down, stamped(Down, 700, 5), 0),
            // Many segments within a tick, a copy, and one from before.
            (Down, stamped(Down, 700, 5), 10),
            (Down, stamped(Down, 699, 5), 20),
            (Up, stamped(Up, 900, 700), 100),
            (Down, stamped(Down, 700, 5), 120),
            (Up, stamped(Up, 900, 700), 121),
            (Down, stamped(Down, 700, 900), 300),
        ];
        assert_eq!(told(&frames), micros(100 + 200));
    }

    #[test]
    fn a_later_echo_ends_what_a_lost_one_would_have() {
        let frames = [
            (Down, stamped(Down, u32::MAX - 1, 5), 0),
            (Down, stamped(Down, 3, 5), 50),
            (Up, stamped(Up, 900, 3), 100),
            (Down, stamped(Down, 4, 900), 150),
        ];
        assert_eq!(told(&frames), micros(100 + 50), "clocks wrap; the first sight counts");
    }

    #[test]
    fn nonsense_is_no_answer() {
        let begin = (Down, stamped(Down, 700, 5), 0);
        let end = |echo| (Down, stamped(Down, 701, echo), 300);
        let answered = |answer| told(&[begin, (Up, answer, 100), end(900)]);
        assert_eq!(answered(stamped(Up, 900, 700)), micros(300));
        let old = stamped(Up, 900, 699);
        let future = stamped(Up, 900, 701);
        let none = stamped(Up, 900, 0);
        let without_ack = Sighting { flags: TcpFlags::default(), ..stamped(Up, 900, 700) };
        for answer in [old, future, none, without_ack] {
            assert_eq!(answered(answer), None, "{answer:?}");
        }
        let broken = Sighting { flags: ACK.with(TcpFlags::RST), ..stamped(Up, 900, 700) };
        assert_eq!(answered(broken), None);
        let zero = [(Down, stamped(Down, 0, 5), 0), (Up, stamped(Up, 9, 0), 1), end(9)];
        assert_eq!(told(&zero), None, "a clock of 0 has no echo");
    }

    #[test]
    fn time_that_goes_backwards_and_hours_without_an_answer_are_not_measured() {
        let back = [
            (Down, stamped(Down, 700, 5), 0),
            (Up, stamped(Up, 900, 700), -1),
            (Down, stamped(Down, 701, 900), 5),
        ];
        assert_eq!(told(&back), None);
        let hours = [
            (Down, stamped(Down, 700, 5), 0),
            (Up, stamped(Up, 900, 5), 100_000_000),
            (Up, stamped(Up, 901, 700), 200_000_000),
            (Down, stamped(Down, 701, 901), 200_000_005),
        ];
        assert_eq!(told(&hours), None, "more than four seconds are no half to speak of");
    }

    #[test]
    fn a_lie_that_is_never_echoed_does_not_stop_measuring_for_ever() {
        let forged = stamped(Down, 1 << 30, 5);
        let mut frames = vec![(Down, forged, 0), (Up, stamped(Up, 900, 700), 100)];
        frames.push((Down, stamped(Down, (1 << 30) + 1, 900), 20_000_000));
        frames.push((Up, stamped(Up, 901, (1 << 30) + 1), 20_000_000 + NEAR));
        frames.push((Down, stamped(Down, (1 << 30) + 2, 901), 20_000_000 + NEAR + FAR));
        assert_eq!(told(&frames), micros(NEAR + FAR));
    }

    /// The frames that make a connection known.
    fn handshake(table: &mut RttTable, number: u16, begin: i64) -> Option<Span> {
        let numbered = |seen: Sighting| {
            let Sighting { source, destination, .. } = from(Up, number);
            let up = seen.source.1 != 443;
            let (source, destination) =
                if up { (source, destination) } else { (destination, source) };
            Sighting { source, destination, ..seen }
        };
        table.observe(Up, &numbered(syn(100)), at(begin));
        table.observe(Down, &numbered(syn_ack(7, 101)), at(begin + FAR));
        table.observe(Up, &numbered(acknowledges(8)), at(begin + FAR + NEAR))
    }

    fn data(table: &mut RttTable, number: u16, micros: i64) -> Option<Span> {
        table.observe(Down, &from(Down, number), at(micros))
    }

    #[test]
    fn connections_are_told_apart_and_a_flood_makes_them_unknown_at_worst() {
        let mut table = table();
        for number in 1..100 {
            let number = number * 3;
            assert_eq!(handshake(&mut table, number, i64::from(number)), micros(FAR + NEAR));
        }
        assert_eq!(data(&mut table, 3, 10_000), micros(FAR + NEAR));
        assert_eq!(data(&mut table, 4, 10_000), None);
        for number in 1000..20_000 {
            let flood = Sighting { source: (77, number), ..syn(1) };
            assert_eq!(table.observe(Up, &flood, at(20_000 + i64::from(number))), None);
        }
        let known = (1..100).filter(|number| data(&mut table, number * 3, 90_000).is_some());
        assert_eq!(known.count(), 0, "the oldest go");
    }

    #[test]
    fn of_a_bucket_the_one_not_seen_for_longest_goes() {
        let mut table = table();
        let bucket = |table: &RttTable, number| table.tag(Up, &from(Up, number)) % BUCKETS as u64;
        let first = bucket(&table, 1);
        let mut same = (1..u16::MAX).filter(|&number| bucket(&table, number) == first);
        let numbers: Vec<u16> = same.by_ref().take(5).collect();
        for (begin, &number) in (0..4).zip(&numbers) {
            handshake(&mut table, number, begin);
        }
        data(&mut table, numbers[0], 5_000);
        handshake(&mut table, numbers[4], 6_000);
        let known: Vec<bool> =
            numbers.iter().map(|&number| data(&mut table, number, 9_000).is_some()).collect();
        assert_eq!(known, [true, false, true, true, true]);
    }

    #[test]
    fn a_connection_that_rested_for_minutes_or_begins_again_is_learned_anew() {
        let mut table = table();
        handshake(&mut table, 1, 0);
        assert_eq!(data(&mut table, 1, 299_000_000), micros(FAR + NEAR));
        assert_eq!(data(&mut table, 1, 700_000_000), None);
        handshake(&mut table, 1, 800_000_000);
        assert_eq!(table.observe(Up, &syn(5_000), at(800_900_000)), None);
        assert_eq!(data(&mut table, 1, 800_900_001), None);
    }

    #[test]
    fn what_tells_nothing_takes_no_room() {
        let mut table = table();
        assert_eq!(data(&mut table, 1, 0), None);
        assert!(table.buckets.iter().flatten().all(|entry| entry.tag == 0));
        assert_eq!(size_of::<Entry>(), 64, "a cache line");
    }

    #[test]
    fn a_frame_that_comes_back_the_same_way_is_another_connection() {
        // Hairpin: what the client sends passes up, and then down again.
        let mut table = table();
        let clock = stamped(Up, 900, 5);
        table.observe(Up, &clock, at(0));
        table.observe(Down, &clock, at(10));
        let answer = stamped(Down, 77, 900);
        table.observe(Up, &answer, at(30));
        table.observe(Down, &answer, at(50));
        let again = stamped(Up, 901, 77);
        assert_eq!(table.observe(Up, &again, at(90)), micros(50 + 40), "from outside");
        assert_eq!(table.observe(Down, &again, at(100)), micros(20 + 70), "from within");
    }

    #[test]
    fn keys_give_other_places() {
        let tag = |key| RttTable::new(key).tag(Up, &from(Up, 1));
        assert_ne!(tag((1, 2)), tag((3, 4)));
    }

    fn read(frame: &[u8]) -> Option<Sighting> {
        let layout = dissect(frame, &VnetHeader::PLAIN, MemSize(0)).unwrap().layout;
        Sighting::read(frame, &layout)
    }

    #[test]
    fn headers_of_either_family_are_read() {
        let tagged = vec![(0x8100, 7)];
        let v4_options = Ip::V4 { options: vec![1; 8], fragment: 0 };
        let addresses = |first: u128| (first | 1, first | 2);
        let v4 = addresses(MAPPED | 0x0a00_0000);
        let labelled = Ip::V6 { label: 0xabcde, extensions: Vec::new() };
        let v6 = addresses(0xfd << 120);
        for (ip, (source, destination)) in
            [(Ip::v4(), v4), (v4_options, v4), (labelled, v6), (Ip::v6_extended(), v6)]
        {
            let packet = Packet { ip, tags: tagged.clone(), ..Packet::tcp() };
            let expected = Sighting {
                source: (source, Packet::SOURCE_PORT),
                destination: (destination, Packet::DESTINATION_PORT),
                sequence: 0x0102_0304,
                ack: 0x0908_0706,
                flags: ACK,
                timestamps: Some(Timestamps { value: 0x0001_0203, echo: 0x0405_0607 }),
            };
            assert_eq!(read(&packet.bytes()), Some(expected));
        }
    }

    #[test]
    fn what_is_not_a_whole_tcp_header_is_not_read() {
        let later = Packet { ip: Ip::V4 { options: Vec::new(), fragment: 100 }, ..Packet::tcp() };
        for packet in [&Packet::udp(), &later] {
            assert_eq!(read(&packet.bytes()), None, "{packet:?}");
        }
        for ip in [Ip::v4(), Ip::v6()] {
            let packet = Packet { ip, payload: Vec::new(), ..Packet::tcp() };
            let frame = packet.bytes();
            assert!((0..frame.len()).all(|len| read(&frame[..len]).is_none()));
        }
    }

    #[test]
    fn the_first_timestamps_that_are_whole_are_found_among_options() {
        let of = |options: Vec<u8>| timestamps(&options).map(|clock| clock.value);
        let clock = [8, 10, 0, 0, 0, 7, 0, 0, 0, 9];
        assert_eq!(of(clock.to_vec()), Some(7));
        assert_eq!(of([&[1, 1, 2, 4, 5, 0xb4, 4, 2][..], &clock].concat()), Some(7));
        assert_eq!(of([&[8, 3, 0][..], &clock].concat()), Some(7));
        for broken in
            [vec![], vec![0], vec![8], vec![8, 10, 0], vec![5, 0], vec![5, 1], vec![5, 99]]
        {
            let hidden = [broken.clone(), vec![0; 2]].concat();
            assert_eq!((of(broken), of(hidden)), (None, None));
        }
        assert_eq!(of([&[0][..], &clock].concat()), None, "behind the end nothing is read");
    }

    fn sighting() -> impl Strategy<Value = (Direction, Sighting, i64)> {
        let clock = prop::option::of((0..6_u32, 0..6_u32));
        let flags = prop_oneof![4 => Just(0x10), 1 => Just(2), 1 => Just(0x12), 1 => 0..0x1000_u16];
        (any::<bool>(), any::<bool>(), 1..3_u16, (0..4_u32, 0..4_u32), flags, clock, -5..50_i64)
            .prop_map(|(up, turned, number, (sequence, ack), flags, clock, passed)| {
                let way = if up { Up } else { Down };
                let seen = from(if up == turned { Down } else { Up }, number);
                let timestamps = clock.map(|(value, echo)| Timestamps { value, echo });
                let flags = TcpFlags::new(flags);
                (way, Sighting { sequence, ack, flags, timestamps, ..seen }, passed)
            })
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(
            frame in prop::collection::vec(any::<u8>(), 0..120), near in 0..60_u16, far: u16,
        ) {
            for network in [Network::Ipv4, Network::Ipv6, Network::Other] {
                for network_offset in [near, far] {
                    let transport = Some((Transport::Tcp, far % 128));
                    let layout = Layout { network, network_offset, transport, ..Layout::default() };
                    let _ = Sighting::read(&frame, &layout);
                }
            }
        }

        #[test]
        fn no_header_with_odd_bytes_in_it_causes_a_panic(
            at in 0..100_usize, byte: u8, cut in 0..100_usize, six: bool,
        ) {
            let ip = if six { Ip::v6() } else { Ip::v4() };
            let mut frame = Packet { ip, ..Packet::tcp() }.bytes();
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
            read(&frame);
            frame.truncate(cut);
            read(&frame);
        }

        /// Answers only ever fall, until the connection begins anew, and are never below no time.
        #[test]
        fn no_frames_cause_a_panic_or_a_negative_answer(
            frames in prop::collection::vec(sighting(), 0..80), begin in prop_oneof![
                Just(0), Just(i64::MIN), Just(i64::MAX - 1_000),
            ],
        ) {
            let mut table = table();
            let mut now = Instant::from_nanos(begin);
            for (way, seen, passed) in frames {
                now += Span::from_nanos(passed);
                let told = table.observe(way, &seen, now);
                prop_assert!(told.is_none_or(|span| !span.is_negative()));
            }
        }

        /// A sender on either side whose frames are lost, held up and repeated at random.
        #[test]
        fn no_half_is_below_the_way_there_and_back(
            steps in prop::collection::vec(
                (any::<bool>(), prop_oneof![0..30_i64, 0..1_000_i64], 0..5_u8), 1..120,
            ),
        ) {
            let mut table = table();
            let mut now = 0;
            // By side: what it has heard by when.
            let mut heard: [Vec<(i64, u32)>; 2] = [vec![], vec![]];
            for (up, passed, fate) in steps {
                now += passed;
                let (way, side) = if up { (Up, 0) } else { (Down, 1) };
                let (half, other) = if up { (NEAR, FAR) } else { (FAR, NEAR) };
                // What passes was sent half of its half ago, and echoes what had arrived by then.
                let sent = now - half / 2;
                let arrived = heard[side].iter().filter(|(by, _)| *by <= sent);
                let echo = arrived.map(|(_, clock)| *clock).max().unwrap_or(0);
                let clock = u32::try_from((sent + 10_000) / 200).unwrap();
                table.observe(way, &stamped(way, clock, echo), at(now));
                if fate > 0 {
                    heard[1 - side].push((now + other / 2 + i64::from(fate / 4) * 500, clock));
                }
            }
            let known = table.buckets.iter().flatten().find(|entry| entry.tag != 0);
            let least = known.unwrap().halves.map(|half| half.least().unwrap_or(Span::MAX));
            prop_assert!(least[0] >= Span::from_micros(FAR), "there: {:?}", least[0]);
            prop_assert!(least[1] >= Span::from_micros(NEAR), "here: {:?}", least[1]);
        }
    }
}
