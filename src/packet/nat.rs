//! Who a frame is from and for behind address translation.
//!
//! Problem: on the far side of a router that masquerades, all hosts have the router's address, and one of them with
//! eight flows gets eight times what another one gets.
//! Source: spec §4.7; what a connection is, and its two tuples, is the kernel's (conntrack).
//! Law: a frame on its way in has the tuple by which the kernel finds its connection, a frame on its way out has the
//! same one reversed. The connection's tuple in the other direction names the ends as the hosts themselves do. Somebody else asks
//! the kernel; what it said is kept here as long as the connection is in use, for both directions.
//! Invariants: memory is fixed, 1024 buckets of four connections. A new connection takes the place of the one that was not seen for longest.
//! Left out: asking (`io::conntrack`); IPv6, which nobody needs to translate; zones other than the first; later fragments, which have no
//! ports; ICMP but for echo: an error is of the router's address, as what it is about is not looked at.

use super::bytes::{double_word, word};
use super::tcp::TcpFlags;
use super::{FlowKey, Layout, Network};
use crate::time::{Instant, Span};
use siphasher::sip::SipHasher13;

/// Buckets, and connections in each.
const BUCKETS: usize = 1024;
const WAYS: usize = 4;

/// After so long without a frame the kernel may have forgotten a connection too, and given its ports to another
/// host: what Linux grants UDP of which no answer was seen.
pub const IDLE: Span = Span::from_secs(30);

/// So long it is believed that a connection is not known, which may change when the kernel has seen its first frame.
pub const UNKNOWN_FOR: Span = Span::from_millis(500);

const ICMP: u8 = 1;
const TCP: u8 = 6;
/// UDP, DCCP, SCTP and UDP-Lite, whose headers begin with ports as well.
const WITH_PORTS: [u8; 5] = [TCP, 17, 33, 132, 136];

/// Echo reply and echo request (RFC 792).
const ECHO_REPLY: u16 = 0;
const ECHO: u16 = 8;

/// One direction of an IPv4 connection, as conntrack names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// IP protocol.
    pub protocol: u8,
    /// Source address.
    pub source: u32,
    /// Destination address.
    pub destination: u32,
    /// Source port; of ICMP echo, its identifier.
    pub source_port: u16,
    /// Destination port; of ICMP echo, its type.
    pub destination_port: u16,
}

impl Tuple {
    /// Bytes of [`Self::to_bytes`].
    pub const LEN: usize = 13;

    /// Whether it is ICMP, whose ports are none.
    #[must_use]
    pub const fn is_icmp(&self) -> bool {
        self.protocol == ICMP
    }

    /// Reads a frame; `None` of what conntrack has no connection for, or this module does not look at. `layout` belongs
    /// to `frame`, as [`dissect()`](super::dissect()) gave it.
    ///
    /// ```
    /// use ucake::packet::{Layout, nat::Tuple};
    /// assert_eq!(Tuple::read(&[0; 60], &Layout::default()), None);
    /// ```
    #[must_use]
    pub fn read(frame: &[u8], layout: &Layout) -> Option<Self> {
        let (tuple, _) = Self::read_with_header(frame, layout)?;
        Some(tuple)
    }

    /// The same, and what follows the IP header.
    fn read_with_header<'a>(frame: &'a [u8], layout: &Layout) -> Option<(Self, &'a [u8])> {
        if layout.network != Network::Ipv4 {
            return None;
        }
        let packet = frame.get(usize::from(layout.network_offset)..)?;
        let is_first = word(packet, 6)? & 0x1fff == 0;
        let header = packet.get(usize::from(packet.first()? & 15) * 4..)?;
        let protocol = *packet.get(9)?;
        let (source_port, destination_port) = match protocol {
            _ if !is_first => return None,
            ICMP => (word(header, 4)?, echo(word(header, 0)?)?),
            _ if WITH_PORTS.contains(&protocol) => (word(header, 0)?, word(header, 2)?),
            _ => return None,
        };
        let [source, destination] = [double_word(packet, 12)?, double_word(packet, 16)?];
        let tuple = Self { protocol, source, destination, source_port, destination_port };
        Some((tuple, header))
    }

    /// The tuple of an answer.
    #[must_use]
    pub const fn reversed(&self) -> Self {
        let Self { protocol, source, destination, source_port, destination_port } = *self;
        let (source_port, destination_port) = match (protocol, destination_port) {
            (ICMP, ECHO) => (source_port, ECHO_REPLY),
            (ICMP, _) => (source_port, ECHO),
            _ => (destination_port, source_port),
        };
        Self { protocol, source: destination, destination: source, source_port, destination_port }
    }

    /// Itself in bytes, for one that asks for others.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.protocol;
        bytes[1..5].copy_from_slice(&self.source.to_be_bytes());
        bytes[5..9].copy_from_slice(&self.destination.to_be_bytes());
        bytes[9..11].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[11..].copy_from_slice(&self.destination_port.to_be_bytes());
        bytes
    }

    /// What [`Self::to_bytes`] wrote; `None` if there are fewer bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            protocol: *bytes.first()?,
            source: double_word(bytes, 1)?,
            destination: double_word(bytes, 5)?,
            source_port: word(bytes, 9)?,
            destination_port: word(bytes, 11)?,
        })
    }

    /// Puts these ends in the place of those of `key`. Ports only where it has ports.
    pub fn substitute(&self, key: &mut FlowKey) {
        (key.source, key.destination) = (self.source.into(), self.destination.into());
        if !self.is_icmp() && (key.source_port, key.destination_port) != (0, 0) {
            (key.source_port, key.destination_port) = (self.source_port, self.destination_port);
        }
    }
}

/// The type of an echo, of which type and code are `both`.
const fn echo(both: u16) -> Option<u16> {
    match both >> 8 {
        kind @ (ECHO | ECHO_REPLY) => Some(kind),
        _ => None,
    }
}

/// A frame that may be translated, seen passing by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passing {
    /// The tuple on the way in, by which the kernel finds the connection.
    pub inward: Tuple,
    /// Whether it is on its way out.
    pub outward: bool,
    /// Whether it opens a connection: what was known of that tuple is of an earlier one.
    pub opens: bool,
}

impl Passing {
    /// Reads a frame on its way out (to where the router's address is seen), or in.
    #[must_use]
    pub fn read(frame: &[u8], layout: &Layout, outward: bool) -> Option<Self> {
        let (tuple, header) = Tuple::read_with_header(frame, layout)?;
        let flags = || word(header, 12).map(TcpFlags::new).unwrap_or_default();
        let opens = tuple.protocol == TCP && {
            let flags = flags();
            flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK)
        };
        Some(Self { inward: if outward { tuple.reversed() } else { tuple }, outward, opens })
    }

    /// The ends of the frame, if the tuple in the other direction than `inward` is `other`.
    #[must_use]
    pub const fn ends(&self, other: &Tuple) -> Tuple {
        if self.outward { *other } else { other.reversed() }
    }
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing: ask.
    No,
    /// It was asked for a moment ago, and there is no answer yet.
    Asked,
    /// The kernel knows no such connection.
    Nowhere,
    /// The tuple in the other direction is this.
    Other(Tuple),
}

/// The connections that are in use.
///
/// ```
/// use ucake::packet::nat::{Known, NatTable, Tuple};
/// use ucake::time::Instant;
/// let mut table = NatTable::new((1, 2));
/// let inward = Tuple { protocol: 17, source: 1, destination: 2, source_port: 53, destination_port: 4000 };
/// assert_eq!(table.find(&inward, false, Instant::ZERO), Known::No);
/// assert_eq!(table.find(&inward, false, Instant::ZERO), Known::Asked);
/// let other = Tuple { source: 0xc0a8_0007, ..inward.reversed() };
/// table.learn(&inward, Some(other), Instant::ZERO);
/// assert_eq!(table.find(&inward, false, Instant::ZERO), Known::Other(other));
/// ```
#[derive(Clone, Debug)]
pub struct NatTable {
    sip: SipHasher13,
    buckets: Box<[[Entry; WAYS]]>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    inward: Tuple,
    known: Known,
    seen_at: Instant,
    told_at: Instant,
}

impl Entry {
    const NONE: Self = Self {
        inward: Tuple {
            protocol: 0,
            source: 0,
            destination: 0,
            source_port: 0,
            destination_port: 0,
        },
        known: Known::No,
        seen_at: Instant::from_nanos(i64::MIN),
        told_at: Instant::from_nanos(i64::MIN),
    };

    /// Whether what is known may still be so.
    fn holds(&self, now: Instant) -> bool {
        match self.known {
            Known::No => false,
            Known::Asked | Known::Nowhere => now - self.told_at <= UNKNOWN_FOR,
            Known::Other(_) => now - self.seen_at <= IDLE,
        }
    }
}

impl NatTable {
    /// A table that knows no connection. `key` is that of its hash, secret where strangers choose addresses and
    /// ports.
    #[must_use]
    pub fn new(key: (u64, u64)) -> Self {
        Self {
            sip: SipHasher13::new_with_keys(key.0, key.1),
            buckets: vec![[Entry::NONE; WAYS]; BUCKETS].into_boxed_slice(),
        }
    }

    /// What is known of the connection with this tuple on the way in, at `now`; nothing of an earlier one if the frame
    /// `opens` it. Whoever is told [`Known::No`] is to ask; until it is answered [`Known::Asked`] is the answer.
    pub fn find(&mut self, inward: &Tuple, opens: bool, now: Instant) -> Known {
        let entry = self.entry(inward, true);
        let Some(entry) = entry else { return Known::Nowhere };
        let known = if entry.holds(now) && !opens { entry.known } else { Known::No };
        entry.seen_at = now;
        if known == Known::No {
            (entry.known, entry.told_at) = (Known::Asked, now);
        }
        known
    }

    /// What the kernel said: the tuple in the other direction, or that there is no such connection. It is no news of
    /// a connection that was not asked for, or was forgotten meanwhile.
    pub fn learn(&mut self, inward: &Tuple, other: Option<Tuple>, now: Instant) {
        if let Some(entry) = self.entry(inward, false).filter(|entry| entry.known == Known::Asked) {
            (entry.known, entry.told_at) = (other.map_or(Known::Nowhere, Known::Other), now);
        }
    }

    /// That nobody could be asked: whoever comes next is to ask.
    pub fn forget(&mut self, inward: &Tuple) {
        if let Some(entry) = self.entry(inward, false) {
            entry.known = Known::No;
        }
    }

    /// The place of a connection; of a new one too, if it is to have one.
    fn entry(&mut self, inward: &Tuple, make: bool) -> Option<&mut Entry> {
        let hash = self.sip.hash(&inward.to_bytes());
        let bucket = self.buckets.get_mut(usize::try_from(hash % BUCKETS as u64).ok()?)?;
        let is_it = |entry: &Entry| entry.known != Known::No && entry.inward == *inward;
        let known = bucket.iter().position(is_it);
        let oldest = || {
            let ages = bucket.iter().enumerate().map(|(way, entry)| (entry.seen_at, way));
            make.then_some(ages.min()?.1)
        };
        let way = known.or_else(oldest)?;
        let entry = bucket.get_mut(way)?;
        if known.is_none() {
            *entry = Entry { inward: *inward, ..Entry::NONE };
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::testing::{Ip, Layer4, Packet};
    use crate::packet::{VnetHeader, dissect};
    use crate::units::MemSize;

    fn read(packet: &Packet, outward: bool) -> Option<Passing> {
        let frame = packet.bytes();
        let dissected = dissect(&frame, &VnetHeader::PLAIN, MemSize(2048)).expect("a frame");
        Passing::read(&frame, &dissected.layout, outward)
    }

    fn icmp(kind: u8) -> Packet {
        let payload = vec![kind, 0, 0, 0, 0xab, 0xcd, 0, 1];
        Packet { transport: Layer4::Raw(1), payload, ..Packet::udp() }
    }

    fn at(millis: i64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn udp() -> Tuple {
        read(&Packet::udp(), false).expect("it has ports").inward
    }

    #[test]
    fn a_frame_on_its_way_out_and_its_answer_are_one_connection() {
        let out = read(&Packet::tcp(), true).expect("it has ports");
        let tuple = read(&Packet::tcp(), false).expect("it has ports").inward;
        assert_eq!(tuple.source_port, Packet::SOURCE_PORT);
        assert_eq!(out.inward, tuple.reversed());
        assert_eq!(out.inward.reversed(), tuple);
    }

    #[test]
    fn an_echo_and_its_reply_are_one_connection() {
        let out = read(&icmp(8), true).expect("an echo").inward;
        assert_eq!((out.source_port, out.destination_port), (0xabcd, 0));
        assert_eq!(out.reversed().destination_port, 8);
        assert_eq!(read(&icmp(0), false).map(|p| p.inward.source_port), Some(0xabcd));
        assert_eq!(read(&icmp(3), false), None, "an error");
    }

    #[test]
    fn later_fragments_ipv6_and_what_is_cut_short_are_not_looked_at() {
        let later = Packet { ip: Ip::V4 { options: vec![], fragment: 0x00b9 }, ..Packet::udp() };
        assert_eq!(read(&later, false), None);
        assert_eq!(read(&Packet { ip: Ip::v6(), ..Packet::udp() }, false), None);
        let frame = Packet::udp().bytes();
        let layout = dissect(&frame, &VnetHeader::PLAIN, MemSize(2048)).expect("a frame").layout;
        for len in 0..Packet::udp().transport_offset() + 4 {
            assert_eq!(Tuple::read(&frame[..len], &layout), None, "{len} bytes");
        }
        let options = Ip::V4 { options: vec![1; 8], fragment: 0 };
        let with_options = Packet { ip: options, ..Packet::udp() };
        assert_eq!(read(&with_options, false).map(|p| p.inward), Some(udp()));
    }

    #[test]
    fn bytes_and_tuples_are_one() {
        let tuple = udp();
        assert_eq!(Tuple::from_bytes(&tuple.to_bytes()), Some(tuple));
        assert_eq!(Tuple::from_bytes(&tuple.to_bytes()[1..]), None);
    }

    #[test]
    fn the_other_tuple_names_the_ends_as_the_hosts_do_both_ways() {
        // Masqueraded: 192.168.0.7 to 8.8.8.8, of which is seen 1.1.1.1 to 8.8.8.8 and back.
        let (lan, router, server) = (0xc0a8_0007, 0x0101_0101, 0x0808_0808);
        let original = Tuple {
            protocol: 17,
            source: lan,
            destination: server,
            source_port: 4000,
            destination_port: 53,
        };
        let out = Tuple { source: router, source_port: 61_000, ..original };
        let key = |tuple: &Tuple| FlowKey {
            source: tuple.source.into(),
            destination: tuple.destination.into(),
            source_port: tuple.source_port,
            destination_port: tuple.destination_port,
            ..FlowKey::default()
        };
        let passing = |outward| Passing { inward: out.reversed(), outward, opens: false };
        let (mut up, mut down) = (key(&out), key(&out.reversed()));
        passing(true).ends(&original).substitute(&mut up);
        passing(false).ends(&original).substitute(&mut down);
        assert_eq!((up, down), (key(&original), key(&original.reversed())));
        let mut fragment = FlowKey { source_port: 0, destination_port: 0, ..key(&out) };
        original.substitute(&mut fragment);
        assert_eq!((fragment.source, fragment.source_port), (u128::from(lan), 0));
    }

    #[test]
    fn one_is_asked_for_once_until_it_is_idle_or_begins_anew() {
        let mut table = NatTable::new((1, 2));
        let (tuple, other) = (udp(), Tuple { source: 7, ..udp().reversed() });
        assert_eq!(table.find(&tuple, false, at(0)), Known::No);
        assert_eq!(table.find(&tuple, false, at(1)), Known::Asked);
        table.learn(&tuple, Some(other), at(2));
        for second in 0..100 {
            assert_eq!(table.find(&tuple, false, at(second * 1000)), Known::Other(other));
        }
        assert_eq!(table.find(&tuple, true, at(99_001)), Known::No, "a SYN");
        table.learn(&tuple, Some(other), at(99_002));
        assert_eq!(table.find(&tuple, false, at(99_003)), Known::Other(other));
        assert_eq!(table.find(&tuple, false, at(99_003 + 30_001)), Known::No, "after an idle time");
    }

    #[test]
    fn what_is_not_known_or_not_answered_is_asked_for_again_soon() {
        let mut table = NatTable::new((1, 2));
        let tuple = udp();
        assert_eq!(table.find(&tuple, false, at(0)), Known::No);
        assert_eq!(table.find(&tuple, false, at(501)), Known::No, "no answer came");
        table.learn(&tuple, None, at(502));
        assert_eq!(table.find(&tuple, false, at(1002)), Known::Nowhere);
        assert_eq!(table.find(&tuple, false, at(1003)), Known::No);
        table.forget(&tuple);
        assert_eq!(table.find(&tuple, false, at(1004)), Known::No);
        table.learn(&Tuple { source: 99, ..tuple }, Some(tuple), at(1004));
        assert_eq!(
            table.find(&Tuple { source: 99, ..tuple }, false, at(1004)),
            Known::No,
            "unasked"
        );
    }

    #[test]
    fn a_flood_of_connections_stays_in_the_same_memory_and_ends_the_oldest() {
        let mut table = NatTable::new((1, 2));
        let tuple = |number: u32| Tuple { source: number, ..udp() };
        for number in 0..100_000 {
            assert_eq!(table.find(&tuple(number), false, at(i64::from(number))), Known::No);
            table.learn(&tuple(number), Some(udp()), at(i64::from(number)));
        }
        let mut known =
            |number| table.find(&tuple(number), false, at(100_000)) == Known::Other(udp());
        assert!(known(99_999) && !known(0));
        let kept = (0..100_000).rev().filter(|number| known(*number)).count();
        assert!((3000..=BUCKETS * WAYS).contains(&kept), "{kept}");
    }
}
