//! Two ports joined back to back in memory: what is sent by one is read by the other, as bytes.
//!
//! For tests, and as the twin of a tap without a kernel: frames are written and parsed again just
//! as a tap would have it.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::batch::{Batch, Slices};
use super::pool::{Pool, Scratch};
use super::port::{Counters, Port, PortError, Recv, Sent};
use crate::packet::split::Checksums;
use crate::packet::vnet::VnetHeader;

/// Frames that one direction holds before it drops.
const ROOM: usize = 1024;

/// One end of a pair.
pub struct PairPort {
    name: String,
    incoming: Rc<RefCell<Lane>>,
    outgoing: Rc<RefCell<Lane>>,
    scratch: Scratch,
    counters: Counters,
}

/// One direction.
#[derive(Default)]
struct Lane {
    frames: VecDeque<Vec<u8>>,
    reader: Option<Waker>,
    closed: bool,
}

/// Two ports, each reading what the other sends.
#[must_use]
pub fn pair(left: &str, right: &str) -> (PairPort, PairPort) {
    let (east, west) = (Rc::<RefCell<Lane>>::default(), Rc::<RefCell<Lane>>::default());
    let end = |name: &str, incoming: &Rc<_>, outgoing: &Rc<_>| PairPort {
        name: name.into(),
        incoming: Rc::clone(incoming),
        outgoing: Rc::clone(outgoing),
        scratch: Scratch::new(),
        counters: Counters::default(),
    };
    (end(left, &west, &east), end(right, &east, &west))
}

impl PairPort {
    /// Sends bytes as they are; false if the lane is full.
    pub fn inject(&mut self, vnet: &VnetHeader, frame: &[u8]) -> bool {
        self.outgoing.borrow_mut().push(&[&vnet.encode(), frame])
    }

    /// Reads bytes as they came.
    pub fn eject(&mut self) -> Option<(VnetHeader, Vec<u8>)> {
        let mut bytes = self.incoming.borrow_mut().frames.pop_front()?;
        let vnet = VnetHeader::decode(bytes.first_chunk()?);
        bytes.drain(..VnetHeader::LEN);
        Some((vnet, bytes))
    }
}

impl Lane {
    fn push(&mut self, parts: &[impl Deref<Target = [u8]>]) -> bool {
        let room = self.frames.len() < ROOM;
        if room {
            self.frames.push_back(parts.iter().flat_map(|part| part.iter().copied()).collect());
        }
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
        room
    }
}

impl Port for PairPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn try_recv(&mut self, pool: &Pool) -> Result<Recv, PortError> {
        let Some(bytes) = self.incoming.borrow_mut().frames.pop_front() else {
            return Ok(Recv::Empty);
        };
        let fill = pool.fill(|buffer| {
            let len = bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&bytes[..len]);
            Ok(len)
        });
        match fill {
            Ok(fill) => Ok(self.counters.count_fill(fill)),
            Err(source) => Err(self.refused("read", source)),
        }
    }

    fn send(&mut self, batch: &Batch) -> Result<Sent, PortError> {
        let mut lane = self.outgoing.borrow_mut();
        if lane.closed {
            return Err(PortError::Gone { port: self.name.clone() });
        }
        let before = self.counters.write_errors;
        let mut runs = 0;
        for run in batch.runs() {
            runs += 1;
            let Some(Slices { parts, frame_len }) =
                run.slices(Checksums::Partial, &mut self.scratch)
            else {
                self.counters.write_errors.invalid += u64::from(run.segments());
                continue;
            };
            if lane.push(&parts) {
                self.counters.count_sent(run.segments(), frame_len);
            } else {
                self.counters.write_errors.full += u64::from(run.segments());
            }
        }
        Ok(Sent::all(runs, &before, &self.counters.write_errors))
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), PortError>> {
        let mut lane = self.incoming.borrow_mut();
        if !lane.frames.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if lane.closed {
            return Poll::Ready(Err(PortError::Gone { port: self.name.clone() }));
        }
        lane.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn counters(&self) -> Counters {
        self.counters.clone()
    }
}

impl PairPort {
    fn refused(&self, doing: &'static str, source: io::Error) -> PortError {
        PortError::Refused { port: self.name.clone(), doing, source }
    }
}

impl Drop for PairPort {
    /// The other end finds its device removed.
    fn drop(&mut self) {
        for lane in [&self.incoming, &self.outgoing] {
            let mut lane = lane.borrow_mut();
            lane.closed = true;
            if let Some(reader) = lane.reader.take() {
                reader.wake();
            }
        }
    }
}
