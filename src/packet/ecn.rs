//! Two changes to a header that a discipline may ask for: CE set, DSCP cleared.
//!
//! Problem: ECN tells a sender of congestion without a loss; washing keeps code points from leaving
//! a domain where they mean something.
//! Source: RFC 3168 §5 and §12 (any ECN-capable packet may be marked), RFC 2474 §3 (the six bits);
//! spec §3.5 for washing.
//! Law: only the outermost IP header is touched, ECN and DSCP never disturb each other, and the
//! IPv4 checksum is updated rather than recomputed, so that a broken header stays recognisable.
//! Left out: inner headers of tunnels, whose end points copy CE inward themselves (RFC 6040).

use super::bytes::{put_word, word};
use super::{Ecn, Layout, Network, checksum};

/// Sets CE. True if the frame says CE now; false, and nothing is changed, if it is not ECN-capable
/// or not IP.
pub fn set_ce(frame: &mut [u8], layout: &Layout) -> bool {
    rewrite_tos(frame, layout, |tos| Ecn::from_tos(tos).takes_ce().then_some(tos | 3)).is_some()
}

/// Clears the six bits of the DSCP and keeps the two of ECN. True if the DSCP is 0 now; false, and
/// nothing is changed, if there is no header to write to.
pub fn wash(frame: &mut [u8], layout: &Layout) -> bool {
    rewrite_tos(frame, layout, |tos| Some(tos & 3)).is_some()
}

/// Passes the TOS or traffic class byte through `change`. `None` if there is none, or `change` says
/// so.
fn rewrite_tos(
    frame: &mut [u8],
    layout: &Layout,
    change: impl FnOnce(u8) -> Option<u8>,
) -> Option<()> {
    let at = usize::from(layout.network_offset);
    let first = word(frame, at)?;
    // Both families keep it in the first word: IPv4 in bits 0…7, IPv6 in bits 4…11.
    let shift = match layout.network {
        Network::Ipv4 => 0,
        Network::Ipv6 => 4,
        Network::Other => return None,
    };
    let [_, tos] = (first >> shift).to_be_bytes();
    let changed = change(tos)?;
    if changed == tos {
        return Some(());
    }
    let rest = first & !(0xff << shift);
    let new = rest | (u16::from(changed) << shift);
    match layout.network {
        Network::Ipv4 => checksum::rewrite(frame, at, new, at + 10),
        _ => put_word(frame, at, new),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::packet::testing::{Ip, Packet};
    use crate::packet::{VnetHeader, dissect};
    use crate::units::MemSize;
    use proptest::prelude::*;

    fn layout(frame: &[u8]) -> Layout {
        dissect(frame, &VnetHeader::PLAIN, MemSize(0)).unwrap().layout
    }

    fn families() -> [Ip; 2] {
        [Ip::v4(), Ip::v6()]
    }

    #[test]
    fn every_tos_byte_is_marked_and_washed_as_if_built_that_way() {
        for ip in families() {
            for tos in 0..=255 {
                let built = |tos| Packet { tos, ip: ip.clone(), ..Packet::tcp() }.bytes();
                let mut marked = built(tos);
                let layout = layout(&marked);
                assert_eq!(set_ce(&mut marked, &layout), tos & 3 != 0, "tos {tos}");
                assert_eq!(marked, built(if tos & 3 == 0 { tos } else { tos | 3 }), "tos {tos}");
                let mut washed = built(tos);
                assert!(wash(&mut washed, &layout));
                assert_eq!(washed, built(tos & 3), "tos {tos}");
            }
        }
    }

    #[test]
    fn what_is_not_ip_is_left_alone() {
        let mut frame = Packet::tcp().bytes();
        let before = frame.clone();
        let other = Layout { network_offset: 14, ..Layout::default() };
        assert!(!set_ce(&mut frame, &other));
        assert!(!wash(&mut frame, &other));
        assert_eq!(frame, before);
    }

    #[test]
    fn a_broken_ipv4_checksum_stays_broken() {
        let packet = Packet { tos: 0xb9, ..Packet::tcp() };
        let mut frame = packet.bytes();
        frame[24] ^= 0x40;
        let layout = layout(&frame);
        assert!(set_ce(&mut frame, &layout));
        assert!(wash(&mut frame, &layout));
        assert!(!packet.ip_checksum_verifies(&frame));
    }

    proptest! {
        #[test]
        fn no_frame_and_no_layout_cause_a_panic(
            mut frame in prop::collection::vec(any::<u8>(), 0..40), network_offset: u16, near in 0..40_u16,
        ) {
            for network in [Network::Ipv4, Network::Ipv6, Network::Other] {
                for network_offset in [network_offset, near] {
                    let layout = Layout { network, network_offset, ..Layout::default() };
                    set_ce(&mut frame, &layout);
                    wash(&mut frame, &layout);
                }
            }
        }
    }
}
