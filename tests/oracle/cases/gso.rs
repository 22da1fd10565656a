//! Superpackets, divided or not (spec §7.2).

use ucake::packet::VnetHeader;

use super::{Case, Group, Input, Phase, Rule};
use crate::frames::{CTAG, IPV4, IPV6, TCP, Tcp, UDP, V4, V6, ethernet, udp};

#[derive(Clone, Copy, Debug)]
enum Kind {
    Tcp4,
    Tcp6,
    Udp4,
    Udp6,
    VlanTcp4,
}

/// A superpacket whose payload is `payload` bytes, to be cut every `mss`.
fn train(kind: Kind, mss: u16, payload: usize, flags: u16) -> Input {
    let options = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    let tcp = Tcp { flags, sequence: 0xffff_f000, options, ..Tcp::ack(7) };
    let data: Vec<u8> = (0..=250_u8).cycle().flat_map(|n| [n; 100]).take(payload).collect();
    let tags: &[(u16, u16)] = if matches!(kind, Kind::VlanTcp4) { &[(CTAG, 7)] } else { &[] };
    let (mut body, field, gso_type) = match kind {
        Kind::Tcp4 | Kind::VlanTcp4 => (tcp.segment(&data), 16, VnetHeader::GSO_TCPV4),
        Kind::Tcp6 => (tcp.segment(&data), 16, VnetHeader::GSO_TCPV6),
        Kind::Udp4 | Kind::Udp6 => (udp(5, 443, &data), 6, VnetHeader::GSO_UDP_L4),
    };
    let (v4, v6) = (V4 { tos: 2, ..V4::new(TCP) }, V6 { tos: 2, ..V6::new(TCP) });
    let (v4_udp, v6_udp) = (V4 { protocol: UDP, ..v4 }, V6 { next: UDP, ..v6 });
    let sum = match kind {
        Kind::Tcp4 | Kind::VlanTcp4 => v4.pseudo_sum(body.len()),
        Kind::Tcp6 => v6.pseudo_sum(body.len()),
        Kind::Udp4 => v4_udp.pseudo_sum(body.len()),
        Kind::Udp6 => v6_udp.pseudo_sum(body.len()),
    };
    body[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    let (ethertype, packet) = match kind {
        Kind::Tcp4 | Kind::VlanTcp4 => (IPV4, v4.packet(&body)),
        Kind::Udp4 => (IPV4, v4_udp.packet(&body)),
        Kind::Tcp6 => (IPV6, v6.packet(&body)),
        Kind::Udp6 => (IPV6, v6_udp.packet(&body)),
    };
    let bytes = ethernet(tags, ethertype, &packet);
    let start = 14 + 4 * tags.len() + if ethertype == IPV4 { 20 } else { 40 };
    let headers = start + if field == 16 { 32 } else { 8 };
    let vnet = VnetHeader {
        flags: VnetHeader::NEEDS_CSUM,
        gso_type,
        hdr_len: u16::try_from(headers).expect("small"),
        gso_size: mss,
        csum_start: u16::try_from(start).expect("small"),
        csum_offset: u16::try_from(field).expect("small"),
    };
    Input { vnet: Some(vnet), ..Input::plain(bytes) }
}

/// Trains of every kind, divided or whole, with and without overhead.
pub fn group() -> Group {
    let mut cases = Vec::new();
    let trains = [
        (1448, 1448 * 2),
        (1448, 1448 * 3),
        (1000, 3500),
        (100, 901),
        (1400, 1401),
        (1200, 12_000),
        (536, 20_000),
    ];
    for gso in ["split-gso", "no-split-gso"] {
        for kind in [Kind::Tcp4, Kind::Tcp6, Kind::Udp4, Kind::Udp6, Kind::VlanTcp4] {
            for (mss, payload) in trains {
                // 1448 and the headers of TCP over IPv6 do not fit a frame.
                let mss = if matches!(kind, Kind::Tcp6) { mss.min(1428) } else { mss };
                for overhead in ["", "ethernet", "conservative"] {
                    let name = format!(
                        "{gso}/{kind:?}/{payload}-by-{mss}/{}",
                        if overhead.is_empty() { "default" } else { overhead }
                    );
                    let words = format!("{gso} {overhead}");
                    cases.push(Case::new(name, words).input(train(
                        kind,
                        mss,
                        payload,
                        Tcp::ACK | Tcp::PSH,
                    )));
                }
            }
        }
        for (name, flags) in
            [("fin", Tcp::FIN), ("cwr", Tcp::CWR), ("ece", Tcp::ECE), ("urg", Tcp::URG)]
        {
            let case = Case::new(format!("{gso}/flags/{name}"), gso);
            cases.push(case.input(train(Kind::Tcp4, 1000, 3500, Tcp::ACK | flags)));
        }
        let case = Case::new(format!("{gso}/wash"), format!("{gso} besteffort wash"));
        cases.push(case.input(train(Kind::Tcp4, 1000, 3500, Tcp::ACK)));
    }
    Group {
        name: "gso",
        about: "superpackets divided and whole: counters, sizes and the segments' bytes",
        fields: &[
            "sent_bytes",
            "sent_packets",
            "dropped",
            "packets",
            "bytes",
            "max_len",
            "min_network",
            "max_network",
            "min_adjusted",
            "max_adjusted",
            "header_offset",
            "backlog_packets",
        ],
        phase: Phase::Empty(50),
        egress: true,
        rule: Rule::Exact,
        cases,
    }
}
