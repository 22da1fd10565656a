//! No bytes lead the reader of TCP headers astray, and no queue of ACKs loses what only one of them said.

use super::bytes::Bytes;
use super::ops::Item;
use ucake::packet::tcp::{Few, SackBlock, TcpFlags, TcpHeader, Timestamps};
use ucake::packet::{ETHERTYPE_IPV4, FlowKey, Layout, Meta, Network, VnetHeader};
use ucake::qdisc::{AckFilter, Cake, Config, Dequeue, Discipline, Entropy, Isolation};
use ucake::time::Instant;
use ucake::units::{FrameLen, MemSize};

/// One byte that says which half of the filter is meant, then a frame or a queue.
pub fn ack_filter(data: &[u8]) {
    let mut bytes = Bytes(data);
    match bytes.u8() {
        0..128 => read(bytes),
        _ => queue(bytes),
    }
}

/// A header is read the same however it was found, and from no more than the frame has.
fn read(mut bytes: Bytes<'_>) {
    let layout = Layout {
        network: bytes.one_of(&[Network::Ipv4, Network::Ipv6, Network::Other]),
        network_offset: bytes.u16(),
        ..Layout::default()
    };
    let frame = bytes.rest();
    let dissected = ucake::packet::dissect(frame, &VnetHeader::PLAIN, MemSize(0));
    let dissected = dissected.expect("an ordinary frame").layout;
    for layout in [layout, dissected, Layout { network_offset: 0, ..layout }] {
        let Some(header) = TcpHeader::read(frame, &layout) else { continue };
        assert!(usize::from(layout.network_offset) + 20 <= frame.len());
        assert!(header.flow.is_ip() && header.flags.bits() < 0x1000);
        assert!(header.options.timestamps.as_slice().len() <= 4);
        assert!(header.options.sack_blocks().len() <= 4);
        let mut longer = frame.to_vec();
        longer.extend([0xff; 8]);
        assert_eq!(TcpHeader::read(&longer, &layout), Some(header), "what follows does not count");
    }
}

/// A header that has something to do with others of its kind.
pub fn header(bytes: &mut Bytes<'_>) -> TcpHeader {
    let [what, ack, clock, blocks] = bytes.array();
    let connection = u16::from(what & 1);
    let flow = FlowKey {
        ethertype: ETHERTYPE_IPV4,
        source: 1,
        destination: 2,
        source_port: connection,
        ..FlowKey::default()
    };
    let near = |number: u8| u32::from(number).wrapping_sub(16);
    let flags = match what >> 1 & 7 {
        0..=4 => 0x010,
        5 => 0x050,
        6 => 0x090,
        _ => bytes.u16(),
    };
    let mut header = TcpHeader {
        flow,
        ack: near(ack),
        flags: TcpFlags::new(flags),
        has_payload: what >> 4 & 3 == 3,
        ..TcpHeader::default()
    };
    header.options.vital = what >> 6 == 3;
    if clock & 1 != 0 {
        header.options.timestamps.push(Timestamps { value: near(clock >> 1), echo: 0 });
    }
    if blocks & 1 != 0 {
        let block = |_| SackBlock { start: near(bytes.u8()), end: near(bytes.u8()) };
        header.options.sack = Some((0..blocks >> 1 & 7).map(block).collect::<Few<_>>());
    }
    header
}

fn queue(mut bytes: Bytes<'_>) {
    let ack_filter = bytes.one_of(&[AckFilter::Conservative, AckFilter::Aggressive]);
    let config = Config {
        ack_filter,
        isolation: Isolation::Flowblind,
        diffserv: ucake::qdisc::Diffserv::Besteffort,
        ..Config::default()
    };
    let mut cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
    let now = Instant::from_nanos(1_000_000_000);
    let meta = Meta { len: FrameLen(66), truesize: MemSize(512), ..Meta::default() };
    let mut sent = Vec::new();
    while !bytes.is_empty() && sent.len() < 64 {
        let tcp = header(&mut bytes);
        let dropped = cake.stats().dropped;
        let item = Item { sequence: sent.len() as u64, tcp: Some(tcp), ..Item::default() };
        cake.enqueue(item, &meta, now);
        sent.push(tcp);
        assert!(cake.stats().dropped <= dropped + 1, "at most one goes for each that comes");
    }
    let mut arrived = Vec::new();
    while let Dequeue::Send(departure) = cake.dequeue(now) {
        arrived.push(usize::try_from(departure.frame.sequence).expect("few packets"));
    }
    assert!(arrived.is_sorted(), "order is kept");
    assert_eq!(arrived.last().copied(), sent.len().checked_sub(1), "the trigger never goes");
    let lost = (0..sent.len()).filter(|place| !arrived.contains(place));
    for (place, tcp) in lost.map(|place| (place, &sent[place])) {
        let echo = TcpFlags::ECE.with(TcpFlags::CWR);
        assert_eq!(tcp.flags.without(echo), TcpFlags::ACK, "{place} is an ACK");
        assert!(!tcp.has_payload && !tcp.options.vital, "{place} is nothing else");
        let says_as_much = |&&later: &&usize| {
            let other = &sent[later];
            // Numbers here lie within half of all numbers.
            other.flow == tcp.flow
                && other.flags.contains(TcpFlags::ACK)
                && other.ack.wrapping_sub(tcp.ack).cast_signed() >= 0
        };
        assert!(
            arrived.iter().filter(|&&later| later > place).find(says_as_much).is_some(),
            "nobody acknowledges what {place} did"
        );
    }
}
