//! However a train is cut, and cut again, and its segments joined, the same segments come out.

use super::bytes::Bytes;
use core::ops::Range;
use ucake::packet::coalesce::{Joint, Piece, Push};
use ucake::packet::{
    Checksums, Layout, MAX_HEADERS, Network, Run, Segments, Train, Transport, VnetHeader, whole,
    write_run,
};
use ucake::units::MemSize;

/// One byte that says whether the layout is to be believed, then what is to be cut.
pub fn split(data: &[u8]) {
    let mut bytes = Bytes(data);
    match bytes.u8() {
        0..64 => lies(bytes),
        _ => superpacket(bytes),
    }
}

/// A frame as a port would see it.
#[derive(Clone, Debug, PartialEq)]
struct Written {
    vnet: VnetHeader,
    bytes: Vec<u8>,
}

impl Written {
    fn layout(&self) -> Layout {
        let dissected = ucake::packet::dissect(&self.bytes, &self.vnet, MemSize(0));
        dissected.expect("what a split gives is well formed").layout
    }

    fn run(&self, layout: &Layout, run: Range<u16>, ce: bool, checksums: Checksums) -> Self {
        let mut scratch = [0xee; MAX_HEADERS];
        let written = write_run(&self.bytes, &self.vnet, layout, run, ce, checksums, &mut scratch);
        let Run { vnet, header_len, payload } = written.expect("the train has such segments");
        let mut bytes = scratch[..header_len].to_vec();
        bytes.extend(&self.bytes[payload]);
        Self { vnet, bytes }
    }

    /// Every segment on its own.
    fn singles(&self, ce: bool, checksums: Checksums) -> Vec<Self> {
        let layout = self.layout();
        match layout.train {
            Some(train) => (0..train.segments.count)
                .map(|index| self.run(&layout, index..index + 1, ce, checksums))
                .collect(),
            None => {
                let mut bytes = self.bytes.clone();
                let vnet = whole(&mut bytes, &self.vnet, &layout, ce, checksums);
                vec![Self { vnet, bytes }]
            }
        }
    }
}

/// A superpacket of which the input tells almost everything.
fn superpacket(mut bytes: Bytes<'_>) {
    let how = bytes.u8();
    let (ce, checksums) =
        (how & 1 != 0, if how & 2 == 0 { Checksums::Partial } else { Checksums::Complete });
    let cuts: [u8; 4] = bytes.array();
    let vnet = VnetHeader::decode(&bytes.array());
    let train = Written { vnet, bytes: stretched(bytes) };
    let Ok(dissected) = ucake::packet::dissect(&train.bytes, &vnet, MemSize(0)) else { return };
    let layout = dissected.layout;
    let Some(Train { segments: Segments { count, .. }, .. }) = layout.train else { return };
    let train = Written { vnet: dissected.vnet, ..train };
    // Many segments say no more than a few, at a price.
    if count > 96 {
        return;
    }
    let directly = train.singles(ce, checksums);
    assert_eq!(directly.len(), usize::from(count));
    for (index, single) in (0..).zip(&directly) {
        let len = dissected.meta.segment_len(index);
        assert_eq!(single.bytes.len(), len.0 as usize, "segment {index}");
        assert_eq!(single.vnet.gso_type, VnetHeader::GSO_NONE);
        assert_eq!(single.vnet.needs_csum(), checksums == Checksums::Partial);
    }
    let payload: usize = directly.iter().map(|single| single.bytes.len()).sum();
    let headers = usize::from(count - 1) * usize::from(dissected.meta.segments.header_len);
    assert_eq!(payload, train.bytes.len() + headers, "no payload is lost");

    let mut edges: Vec<u16> = cuts.iter().map(|&cut| u16::from(cut) % (count + 1)).collect();
    edges.extend([0, count]);
    edges.sort_unstable();
    edges.dedup();
    let runs = edges
        .windows(2)
        .map(|edge| train.run(&layout, edge[0]..edge[1], false, Checksums::Partial));
    let in_steps: Vec<_> = runs.flat_map(|run| run.singles(ce, checksums)).collect();
    assert_eq!(in_steps, directly);

    let mut damaged = directly;
    let [piece, at, byte, _] = cuts;
    let piece = usize::from(piece) % damaged.len();
    if let Some(place) = damaged[piece].bytes.get_mut(usize::from(at)) {
        *place ^= byte;
    }
    join(&damaged);
}

/// Neighbours joined and split again are what they were, damage and all.
fn join(frames: &[Written]) {
    let dissect = |frame: &Written| ucake::packet::dissect(&frame.bytes, &frame.vnet, MemSize(0));
    let Ok(found) = frames.iter().map(dissect).collect::<Result<Vec<_>, _>>() else { return };
    let piece = |at: usize| Piece {
        frame: &frames[at].bytes,
        vnet: &found[at].vnet,
        layout: &found[at].layout,
        run: 0..1,
        ce: false,
        washed: false,
    };
    let mut first = 0;
    while first < frames.len() {
        let mut end = first + 1;
        let mut joint = Joint::begin(&piece(first), Push::Keep);
        while end < frames.len()
            && joint.as_mut().is_some_and(|joint| joint.accept(&piece(first), &piece(end)))
        {
            end += 1;
        }
        if let Some(joint) = joint.filter(|_| end > first + 1) {
            let header_len = joint.header_len();
            let mut bytes = frames[first].bytes[..header_len].to_vec();
            let vnet = joint.write(&mut bytes).expect("the headers of its first piece fit");
            frames[first..end].iter().for_each(|one| bytes.extend(&one.bytes[header_len..]));
            assert_eq!(bytes.len(), joint.frame_len());
            let again = Written { vnet, bytes }.singles(false, Checksums::Complete);
            let alone = frames[first..end].iter();
            let alone = alone.flat_map(|one| one.singles(false, Checksums::Complete));
            assert!(again.into_iter().map(|one| one.bytes).eq(alone.map(|one| one.bytes)));
        }
        first = end;
    }
}

/// The rest of the input, its last byte standing for a payload of up to some thousand bytes.
fn stretched(mut bytes: Bytes<'_>) -> Vec<u8> {
    let more = usize::from(bytes.u16() % 4096);
    let mut frame = bytes.rest().to_vec();
    let last = frame.last().copied().unwrap_or(0);
    frame.resize(frame.len() + more, last);
    frame
}

/// A layout that nobody has read from the frame: a caller's mistake costs a `None`, never a panic.
fn lies(mut bytes: Bytes<'_>) {
    let segments = Segments { count: bytes.u16(), mss: bytes.u16(), header_len: bytes.u16() };
    let transport = bytes.one_of(&[Transport::Tcp, Transport::Udp]);
    let layout = Layout {
        network: bytes.one_of(&[Network::Ipv4, Network::Ipv6, Network::Other]),
        network_offset: bytes.u16(),
        train: Some(Train { transport, segments, transport_offset: bytes.u16() }),
        ..Layout::default()
    };
    let run = bytes.u16()..bytes.u16();
    let vnet = VnetHeader::decode(&bytes.array());
    let mut scratch = vec![0; usize::from(bytes.u16())];
    let frame = bytes.rest();
    for checksums in [Checksums::Partial, Checksums::Complete] {
        let run = write_run(frame, &vnet, &layout, run.clone(), true, checksums, &mut scratch);
        if let Some(run) = run {
            assert!(frame.get(run.payload).is_some() && run.header_len <= scratch.len());
        }
        whole(&mut frame.to_vec(), &vnet, &layout, true, checksums);
    }
}
