//! A frame as it left, vnet header first, in a form that can be compared.

use ucake::packet::{VnetHeader, checksum};

/// The frame with its checksum finished; what is left to be divided has that said behind it.
pub fn finished(bytes: &[u8]) -> Option<Vec<u8>> {
    let (head, frame) = bytes.split_first_chunk()?;
    let vnet = VnetHeader::decode(head);
    let mut frame = frame.to_vec();
    if vnet.needs_csum() {
        checksum::complete(&mut frame, vnet.csum_start, vnet.csum_offset);
    }
    if vnet.gso_type != VnetHeader::GSO_NONE {
        frame.push(vnet.gso_type);
        frame.extend(vnet.gso_size.to_be_bytes());
    }
    Some(frame)
}
