//! Asking the kernel about connections.
//!
//! Problem: which host is behind a translated address only the kernel knows, and it tells only those that may change
//! its tables as well (`CAP_NET_ADMIN`); whoever reads frames is not to be one of them.
//! Source: netlink(7), `NETLINK_NETFILTER` of its conntrack part; unix(7), `SOCK_SEQPACKET`.
//! Law: [`serve`] asks the kernel, one connection at a time, for whoever holds the other end of a socket. A question is a
//! [`Tuple`] and nothing else, an answer the same tuple and the one in the other direction, if there is any. The [`Asker`]
//! waits for an answer [`PATIENCE_NANOS`] at the most; one that comes later is learned of later.
//! Left out: events of the kernel, of which there are thousands where a few are needed.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use netlink_packet_core::DefaultNla;
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoTuple, Protocol, Tuple as Nested,
};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
    socketpair,
};

use crate::packet::FlowKey;
use crate::packet::nat::{Known, NatTable, Passing, Tuple};
use crate::time::Instant;

/// How long an answer is waited for while frames wait: on an idle processor one takes a tenth of it.
pub const PATIENCE_NANOS: i64 = 500_000;

/// Attributes of an ICMP tuple (`CTA_PROTO_ICMP_*`).
const ICMP_ID: u16 = 4;
const ICMP_TYPE: u16 = 5;
const ICMP_CODE: u16 = 6;

/// Room for what the kernel says of a connection.
const REPLY: usize = 4096;
/// A question, whether there is an answer, and the answer.
const ANSWER: usize = 2 * Tuple::LEN + 1;

/// A way to the connections of the network namespace in which it was opened.
#[derive(Debug)]
pub struct Conntrack {
    socket: OwnedFd,
}

impl Conntrack {
    /// Opens it in the calling thread's network namespace.
    ///
    /// # Errors
    /// This kernel tracks no connections, or tells this user nothing about them.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let protocol = Some(netlink::NETFILTER);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        let conntrack = Self { socket };
        // A connection that there is not: what matters is that it is known not to be there.
        conntrack.find(&Tuple { protocol: 17, ..Tuple::default() })?;
        Ok(conntrack)
    }

    /// The tuple in the other direction of the connection that has `tuple` in one of them; `None` if there is no
    /// such connection.
    ///
    /// # Errors
    /// The kernel refuses, or says what is not understood.
    pub fn find(&self, tuple: &Tuple) -> io::Result<Option<Tuple>> {
        let question = question(tuple);
        retry_on_intr(|| send(&self.socket, &question, SendFlags::empty()))?;
        let mut reply = [0; REPLY];
        let (len, _) = retry_on_intr(|| recv(&self.socket, &mut reply[..], RecvFlags::empty()))?;
        answer(tuple, reply.get(..len).unwrap_or_default())
    }
}

/// What is asked of the kernel.
fn question(tuple: &Tuple) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let get = ConntrackMessage::Get(vec![ConntrackAttribute::CtaTupleOrig(nested(tuple))]);
    let family = NetfilterHeader::new(NetfilterProtoFamily::IPv4, 0, 0);
    let payload = NetlinkPayload::from(NetfilterMessage::new(family, get));
    let mut message = NetlinkMessage::new(header, payload);
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

fn nested(tuple: &Tuple) -> Vec<Nested> {
    let [source, destination] =
        [tuple.source, tuple.destination].map(|address| address.to_be_bytes().into());
    let mut ends = vec![ProtoTuple::Protocol(Protocol::from(tuple.protocol))];
    if tuple.is_icmp() {
        let other = |kind, value| ProtoTuple::Other(DefaultNla::new(kind, value));
        ends.push(other(ICMP_ID, tuple.source_port.to_be_bytes().to_vec()));
        ends.push(other(ICMP_TYPE, tuple.destination_port.to_be_bytes()[1..].to_vec()));
        ends.push(other(ICMP_CODE, vec![0]));
    } else {
        ends.push(ProtoTuple::SourcePort(tuple.source_port));
        ends.push(ProtoTuple::DestinationPort(tuple.destination_port));
    }
    let addresses = vec![IPTuple::SourceAddress(source), IPTuple::DestinationAddress(destination)];
    vec![Nested::Ip(addresses), Nested::Proto(ends)]
}

/// What the kernel's reply says of the other direction than `tuple`'s.
fn answer(tuple: &Tuple, reply: &[u8]) -> io::Result<Option<Tuple>> {
    let odd = || io::Error::from(io::ErrorKind::InvalidData);
    let message = NetlinkMessage::<NetfilterMessage>::deserialize(reply).map_err(|_| odd())?;
    let attributes = match message.payload {
        NetlinkPayload::Error(error) => {
            let error = error.to_io();
            return match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => Ok(None),
                _ => Err(error),
            };
        }
        NetlinkPayload::InnerMessage(NetfilterMessage {
            inner: NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)),
            ..
        }) => attributes,
        _ => return Err(odd()),
    };
    let directions = attributes.iter().filter_map(|attribute| match attribute {
        ConntrackAttribute::CtaTupleOrig(nested) | ConntrackAttribute::CtaTupleReply(nested) => {
            flat(nested)
        }
        _ => None,
    });
    // A connection of one host with itself may have both alike.
    let mut all = directions.take(2);
    let (first, second) = (all.next(), all.next());
    Ok(if first == Some(*tuple) { second } else { first })
}

/// `None` of what is not IPv4, or not complete.
fn flat(nested: &[Nested]) -> Option<Tuple> {
    let mut tuple = Tuple::default();
    let mut addresses = 0;
    for part in nested {
        match part {
            Nested::Ip(ends) => {
                for end in ends {
                    let (place, address) = match end {
                        IPTuple::SourceAddress(address) => (&mut tuple.source, address),
                        IPTuple::DestinationAddress(address) => (&mut tuple.destination, address),
                        _ => continue,
                    };
                    let std::net::IpAddr::V4(address) = address else { return None };
                    *place = (*address).into();
                    addresses += 1;
                }
            }
            Nested::Proto(ends) => ends.iter().for_each(|end| match end {
                ProtoTuple::Protocol(protocol) => tuple.protocol = (*protocol).into(),
                ProtoTuple::SourcePort(port) => tuple.source_port = *port,
                ProtoTuple::DestinationPort(port) => tuple.destination_port = *port,
                ProtoTuple::Other(other) => icmp(&mut tuple, other),
                _ => {}
            }),
            _ => {}
        }
    }
    (addresses == 2).then_some(tuple)
}

fn icmp(tuple: &mut Tuple, attribute: &DefaultNla) {
    use netlink_packet_core::Nla as _;
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    match (attribute.kind(), &value[..]) {
        (ICMP_ID, &[high, low]) => tuple.source_port = u16::from_be_bytes([high, low]),
        (ICMP_TYPE, &[kind]) => tuple.destination_port = kind.into(),
        _ => {}
    }
}

/// A socket to ask through, and the one to answer at with [`serve`].
///
/// # Errors
/// The system is out of descriptors.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Answers until whoever asks is gone. What is no question is not answered; nor is anything while the other end
/// reads no answers.
pub fn serve(conntrack: &Conntrack, end: &OwnedFd) {
    let mut question = [0; Tuple::LEN + 1];
    loop {
        let len = match retry_on_intr(|| recv(end, &mut question[..], RecvFlags::empty())) {
            Ok((1.., len)) => len,
            _ => return,
        };
        if len != Tuple::LEN {
            continue;
        }
        let Some(tuple) = Tuple::from_bytes(&question) else { continue };
        // What the kernel refuses is as unknown as what it does not know.
        let other = conntrack.find(&tuple).ok().flatten();
        let mut answer = [0; ANSWER];
        answer[..Tuple::LEN].copy_from_slice(&tuple.to_bytes());
        if let Some(other) = other {
            answer[Tuple::LEN] = 1;
            answer[Tuple::LEN + 1..].copy_from_slice(&other.to_bytes());
        }
        // Without `NOSIGNAL` the end of the other would be ours.
        let _ = send(end, &answer, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

/// One that asks.
#[derive(Debug)]
pub struct Asker {
    socket: OwnedFd,
    /// Questions without an answer.
    open: u32,
}

/// A question and what came of it.
pub type Answered = (Tuple, Option<Tuple>);

impl Asker {
    /// Asks through one of a [`pair()`].
    #[must_use]
    pub const fn new(socket: OwnedFd) -> Self {
        Self { socket, open: 0 }
    }

    /// Asks, without waiting. Returns whether it was possible.
    pub fn ask(&mut self, tuple: &Tuple) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let asked = retry_on_intr(|| send(&self.socket, &tuple.to_bytes(), flags)).is_ok();
        self.open += u32::from(asked);
        asked
    }

    /// An answer that has come; one that comes within [`PATIENCE_NANOS`] if it is to `wait`.
    pub fn answer(&mut self, wait: bool) -> Option<Answered> {
        if self.open == 0 {
            return None;
        }
        if wait {
            let mut socket = [PollFd::new(&self.socket, PollFlags::IN)];
            let patience = Timespec { tv_sec: 0, tv_nsec: PATIENCE_NANOS };
            // If it was interrupted, whatever is there is read.
            let _ = poll(&mut socket, Some(&patience));
        }
        let mut answer = [0; ANSWER];
        let received = recv(&self.socket, &mut answer[..], RecvFlags::DONTWAIT);
        if !matches!(received, Ok((_, ANSWER))) {
            return None;
        }
        self.open -= 1;
        let question = Tuple::from_bytes(&answer)?;
        let other = Tuple::from_bytes(&answer[Tuple::LEN + 1..]);
        Some((question, other.filter(|_| answer[Tuple::LEN] == 1)))
    }
}

/// Puts the ends of frames back to what they were before address translation. Clones are handles to the same one;
/// it belongs to one thread.
#[derive(Clone, Debug)]
pub struct Translator(Rc<RefCell<Translation>>);

#[derive(Debug)]
struct Translation {
    asker: Asker,
    hash_key: (u64, u64),
    /// Made when it is first needed.
    table: Option<NatTable>,
    /// Whether an answer is worth waiting for: not after one that did not come in time, until it has come.
    waits: bool,
    counters: TranslatorCounters,
}

/// What was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TranslatorCounters {
    /// Connections asked for.
    pub asked: u64,
    /// Of them, those that were not answered in time: the frame went as it was.
    pub late: u64,
    /// Frames that went as they were because too many others asked.
    pub skipped: u64,
}

impl Translator {
    /// Connections are asked for through `socket`, one of a [`pair()`], and told apart by this key, secret where
    /// strangers open them.
    #[must_use]
    pub fn new(socket: OwnedFd, hash_key: (u64, u64)) -> Self {
        let counters = TranslatorCounters::default();
        let asker = Asker::new(socket);
        Self(Rc::new(RefCell::new(Translation {
            asker,
            hash_key,
            table: None,
            waits: true,
            counters,
        })))
    }

    /// What was asked so far.
    #[must_use]
    pub fn counters(&self) -> TranslatorCounters {
        self.0.borrow().counters
    }

    /// Puts the ends of a frame that is `passing` at `now` into `key`, if they are known, or can be asked for:
    /// `budget` is how many more may be.
    pub(super) fn translate(
        &self,
        passing: &Passing,
        key: &mut FlowKey,
        now: Instant,
        budget: &mut u32,
    ) {
        if let Some(other) = self.0.borrow_mut().other(passing, now, budget) {
            passing.ends(&other).substitute(key);
        }
    }
}

impl Translation {
    /// The tuple in the other direction, if there is a connection and it is known.
    fn other(&mut self, passing: &Passing, now: Instant, budget: &mut u32) -> Option<Tuple> {
        let Passing { inward, opens, .. } = passing;
        let table = self.table.get_or_insert_with(|| NatTable::new(self.hash_key));
        while let Some((asked, other)) = self.asker.answer(false) {
            self.waits = true;
            table.learn(&asked, other, now);
        }
        match table.find(inward, *opens, now) {
            Known::Other(other) => return Some(other),
            Known::Nowhere | Known::Asked => return None,
            Known::No => {}
        }
        if *budget == 0 || !self.asker.ask(inward) {
            self.counters.skipped += 1;
            table.forget(inward);
            return None;
        }
        (*budget, self.counters.asked) = (*budget - 1, self.counters.asked + 1);
        while let Some((asked, other)) = self.asker.answer(self.waits) {
            table.learn(&asked, other, now);
            if asked == *inward {
                return other;
            }
        }
        // Whoever answers is busy: others are not to wait for it as well.
        (self.waits, self.counters.late) = (false, self.counters.late + 1);
        None
    }
}

impl AsFd for Asker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple() -> Tuple {
        Tuple {
            protocol: 6,
            source: 0x0a00_0001,
            destination: 0x0808_0808,
            source_port: 4000,
            destination_port: 443,
        }
    }

    /// The kernel's answer for a connection between these.
    fn reply(original: &Tuple, back: &Tuple) -> Vec<u8> {
        let attributes = vec![
            ConntrackAttribute::CtaTupleOrig(nested(original)),
            ConntrackAttribute::CtaTupleReply(nested(back)),
            ConntrackAttribute::CtaMark(7),
        ];
        let family = NetfilterHeader::new(NetfilterProtoFamily::IPv4, 0, 0);
        let new = NetfilterMessage::new(family, ConntrackMessage::New(attributes));
        let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(new));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn the_answer_is_the_direction_that_was_not_asked_for() {
        let back =
            Tuple { destination: 0x0101_0101, destination_port: 61_000, ..tuple().reversed() };
        let reply = reply(&tuple(), &back);
        assert_eq!(answer(&back, &reply).expect("a reply"), Some(tuple()));
        assert_eq!(answer(&tuple(), &reply).expect("a reply"), Some(back));
    }

    #[test]
    fn echoes_have_identifier_and_type() {
        let echo = Tuple { protocol: 1, destination_port: 8, ..tuple() };
        let back = Tuple { destination: 7, ..echo.reversed() };
        assert_eq!(answer(&back, &reply(&echo, &back)).expect("a reply"), Some(echo));
    }

    #[test]
    fn whatever_the_kernel_says_is_read_without_harm() {
        let whole = reply(&tuple(), &tuple().reversed());
        for len in 0..whole.len() {
            let _ = answer(&tuple(), &whole[..len]);
        }
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 0xff;
            let _ = answer(&tuple(), &bytes);
        }
    }

    #[test]
    fn one_asks_and_is_answered_or_not_and_goes_on() {
        let (near, far) = pair().expect("two ends");
        let mut asker = Asker::new(near);
        assert_eq!(asker.answer(false), None, "nothing was asked");
        assert!(asker.ask(&tuple()));
        assert_eq!(asker.answer(true), None, "nobody answers");
        let mut late = [0; ANSWER];
        late[..Tuple::LEN].copy_from_slice(&tuple().to_bytes());
        send(&far, &late, SendFlags::empty()).expect("there is room");
        assert_eq!(asker.answer(false), Some((tuple(), None)));
        drop(far);
        assert!(!asker.ask(&tuple()), "nobody is there");
    }

    #[test]
    fn questions_that_nobody_reads_end_somewhere() {
        let (near, _far) = pair().expect("two ends");
        let mut asker = Asker::new(near);
        assert!((0..1_000_000).any(|_| !asker.ask(&tuple())));
    }
}
