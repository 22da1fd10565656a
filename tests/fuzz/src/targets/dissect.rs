//! Any bytes with any header in front of them are a frame, or are refused for a reason.

use super::bytes::Bytes;
use ucake::packet::{
    Checksums, Dissected, Ecn, Layout, Network, Refused, Segments, TcpHeader, VnetHeader, checksum,
    ecn, whole,
};
use ucake::units::{FrameLen, MemSize};

/// Ten bytes of virtio header, then the frame.
pub fn dissect(data: &[u8]) {
    let mut bytes = Bytes(data);
    let vnet = VnetHeader::decode(&bytes.array());
    let frame = bytes.rest();
    assert_eq!(VnetHeader::decode(&vnet.encode()), vnet);
    for vnet in [VnetHeader::PLAIN, vnet] {
        let truesize = MemSize(frame.len() as u64);
        match ucake::packet::dissect(frame, &vnet, truesize) {
            Ok(dissected) => {
                check(frame, &dissected);
                rewrite(frame, &dissected);
            }
            Err(refused) => {
                assert_ne!(vnet, VnetHeader::PLAIN, "an ordinary frame is never refused");
                assert_eq!(Refused::ALL[refused.index()], refused);
            }
        }
    }
}

/// What is said of a frame agrees with itself and with its bytes.
fn check(frame: &[u8], Dissected { meta, layout, vnet }: &Dissected) {
    let len = u32::try_from(frame.len()).expect("inputs are short");
    assert_eq!(meta.len, FrameLen(len));
    assert!(usize::from(meta.network_offset) <= frame.len());
    assert_eq!((meta.network_offset, meta.ecn), (layout.network_offset, layout.ecn));
    assert!(meta.counted_len() >= meta.len);
    assert!(meta.dscp.value() < 64);
    if layout.network == Network::Other {
        assert_eq!(layout.ecn, Ecn::NotEct);
    }
    if vnet.gso_type == VnetHeader::GSO_NONE {
        assert_eq!(vnet.gso_size, 0);
        assert!(layout.train.is_none(), "a train says so");
    }
    let Some(train) = layout.train else {
        assert_eq!(meta.segments, Segments::ONE);
        assert_eq!(meta.counted_len(), meta.len);
        return;
    };
    let Segments { count, mss, header_len } = train.segments;
    assert_eq!(meta.segments, train.segments);
    assert!(count >= 2 && mss >= 1);
    assert!(layout.network_offset < train.transport_offset);
    assert!(train.transport_offset < header_len);
    assert!(u32::from(header_len) < len);
    let sum: FrameLen = (0..count).map(|index| meta.segment_len(index)).sum();
    assert_eq!(sum, meta.counted_len(), "the segments weigh what the whole is said to");
    let last = meta.segment_len(count - 1);
    assert!(last.0 > u32::from(header_len), "no segment is without payload");
    assert!(last <= meta.segment_len(0));
}

/// Marking, washing and finishing keep what they do not change, and a checksum that was right.
fn rewrite(frame: &[u8], Dissected { meta, layout, vnet }: &Dissected) {
    let _ = TcpHeader::read(frame, layout);
    let mut marked = frame.to_vec();
    let could = ecn::set_ce(&mut marked, layout);
    let may = layout.network != Network::Other && layout.ecn.takes_ce();
    assert_eq!(could, may, "CE is set where, and only where, it can be");
    let mut washed = frame.to_vec();
    assert_eq!(ecn::wash(&mut washed, layout), layout.network != Network::Other);
    for (changed, dscp, ecn) in [
        (&marked, meta.dscp.value(), if could { Ecn::Ce } else { meta.ecn }),
        (&washed, if layout.network == Network::Other { meta.dscp.value() } else { 0 }, meta.ecn),
    ] {
        let again = ucake::packet::dissect(changed, &VnetHeader::PLAIN, meta.truesize);
        let again = again.expect("an ordinary frame").meta;
        assert_eq!((again.dscp.value(), again.ecn), (dscp, ecn));
        assert_eq!((again.flow, again.network_offset), (meta.flow, meta.network_offset));
        assert_eq!(sum_of_header(changed, layout), sum_of_header(frame, layout));
    }
    let mut finished = frame.to_vec();
    let left = whole(&mut finished, vnet, layout, false, Checksums::Complete);
    if vnet.gso_type == VnetHeader::GSO_NONE {
        assert!(!left.needs_csum());
    } else {
        assert_eq!((left, &finished[..]), (*vnet, frame));
    }
    let at = usize::from(vnet.csum_start).min(frame.len());
    if vnet.needs_csum() && !left.needs_csum() {
        assert_eq!(finished[..at], frame[..at], "nothing before the start is touched");
    }
}

/// The sum over the whole IPv4 header: 0xffff if its checksum is right, and the same as before if not.
fn sum_of_header(frame: &[u8], layout: &Layout) -> Option<u16> {
    if layout.network != Network::Ipv4 {
        return None;
    }
    let header = frame.get(usize::from(layout.network_offset)..)?;
    let len = usize::from(header.first()? & 15) * 4;
    // A header that claims to end before its checksum has none that is its own.
    if len < 20 {
        return None;
    }
    // Both zeros mean the same.
    Some(checksum::sum(header.get(..len)?) % 0xffff)
}
