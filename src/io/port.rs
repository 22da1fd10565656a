//! What a port is.

use std::io;
use std::ops::ControlFlow;
use std::task::{Context, Poll};

use rustix::io::Errno;

use super::batch::{Batch, Run, RunKind};
use super::pool::{Fill, Pool, Received};
use crate::packet::dissect::Refused;
use crate::time::Instant;

/// Where frames come from and go to.
///
/// Methods never block.
pub trait Port {
    /// What people call it.
    fn name(&self) -> &str;

    /// Reads one frame. After [`Recv::Empty`], [`Port::poll_readable`] tells of the next.
    ///
    /// # Errors
    /// The port can no longer be read: it is gone, or the system refuses.
    fn try_recv(&mut self, pool: &Pool) -> Result<Recv, PortError>;

    /// Sends the runs of a batch, in order, and rings the doorbell once. Those that it refuses are dropped
    /// and counted.
    ///
    /// # Errors
    /// The port can no longer be written: it is gone, or the system refuses.
    fn send(&mut self, batch: &Batch) -> Result<Sent, PortError>;

    /// Bytes of frames, vnet headers not counted, that [`Port::send`] took and the device is not done with.
    /// None where a write is done when it returns.
    ///
    /// # Errors
    /// As [`Port::send`].
    fn in_flight(&mut self) -> Result<u64, PortError> {
        Ok(0)
    }

    /// Ready when [`Port::try_recv`] is worth calling; until then, `cx` is woken when it is.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), PortError>>;

    /// When [`Port::advance`] next has something to do by itself. `None` for ports without inner
    /// time.
    fn next_due(&self) -> Option<Instant> {
        None
    }

    /// Tells the port that it is `now`: before anything else in a batch.
    ///
    /// # Errors
    /// As [`Port::send`].
    fn advance(&mut self, now: Instant) -> Result<(), PortError> {
        let _ = now;
        Ok(())
    }

    /// Frames that the device itself had to drop because they were not read in time; `None` if that is not
    /// to be had. Asks the system: not for every frame.
    fn lost_before_reading(&self) -> Option<u64> {
        None
    }

    /// The device sends packets up to this size from now on, without Ethernet header. For ports that care.
    fn set_mtu(&mut self, mtu: u32) {
        let _ = mtu;
    }

    /// What went through, and what did not.
    fn counters(&self) -> Counters;
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Runs that the port took, those that it refused among them. What it has no room for now is to be
    /// offered again.
    pub runs: usize,
    /// Whether the device is out of room: not all was taken, or something was lost for want of buffers.
    pub congested: bool,
    /// Whether any of them was lost, so that the device was given less than it seems.
    pub lost: bool,
}

impl Sent {
    /// All of `runs` were taken; errors were counted from `before` to `after`.
    pub(super) const fn all(runs: usize, before: &WriteErrors, after: &WriteErrors) -> Self {
        Self {
            runs,
            congested: after.for_want_of_room() > before.for_want_of_room(),
            lost: after.total() > before.total(),
        }
    }
}

/// What a read gave.
pub enum Recv {
    /// A frame.
    Frame(Received),
    /// A frame that cannot be taken; it is counted and gone. There may be more.
    Skipped,
    /// Nothing to read.
    Empty,
}

/// Why a port stopped working.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The device was removed.
    #[error("{port} is gone: the device was removed")]
    Gone {
        /// The port.
        port: String,
    },
    /// The system refuses.
    #[error("cannot {doing} {port}: {source}")]
    Refused {
        /// The port.
        port: String,
        /// `read`, `write`, ….
        doing: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// What went through a port, and what did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counters {
    /// Frames read, a superpacket counting as one.
    pub frames_in: u64,
    /// Bytes of frames read.
    pub bytes_in: u64,
    /// Reads that gave something.
    pub reads: u64,
    /// The largest frame read.
    pub largest_read: u32,
    /// Frames that were larger than any buffer, dropped.
    pub truncated: u64,
    /// Reads that gave less than an Ethernet header, dropped.
    pub runts: u64,
    /// Frames that could not be dissected, dropped, by reason.
    pub refused: Vec<(Refused, u64)>,
    /// Segments written.
    pub segments_out: u64,
    /// Frames written, a run counting as one.
    pub frames_out: u64,
    /// Bytes of frames written.
    pub bytes_out: u64,
    /// The largest frame written.
    pub largest_write: u32,
    /// Runs that the port refused, whose segments were then sent one by one.
    pub runs_refused: u64,
    /// Segments that could not be written, dropped.
    pub write_errors: WriteErrors,
    /// Times the device was found down.
    pub times_down: u64,
    /// Times the device was found gone.
    #[cfg_attr(feature = "serde", serde(default))]
    pub times_gone: u64,
}

/// Kinds of runs that a port does not take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NoRuns([bool; 3]);

impl NoRuns {
    /// Whether runs of this kind are to be sent segment by segment.
    pub(super) const fn has(self, kind: RunKind) -> bool {
        self.0[kind as usize]
    }

    /// Runs of this kind are not to be tried again.
    pub(super) const fn add(&mut self, kind: RunKind) {
        self.0[kind as usize] = true;
    }
}

/// A port that writes one run at a time: what it does about those that are not taken.
pub(super) trait WriteRuns {
    /// One write of a run. Counts what was written.
    ///
    /// # Errors
    /// What the system said.
    fn write(&mut self, run: Run<'_>) -> Result<(), Errno>;

    /// Counts segments that the system did not take. Breaks if it has no room now, with nothing counted.
    ///
    /// # Errors
    /// `errno` is not about the segments but about the port.
    fn lost(&mut self, errno: Errno, segments: u16) -> Result<ControlFlow<()>, PortError>;

    /// Kinds of runs that the port does not take.
    fn no_runs(&mut self) -> &mut NoRuns;

    /// Writes the segments of a run that was not taken, from the one numbered `first` on, each by itself.
    /// Breaks with the number of the segment for which there was no room.
    ///
    /// # Errors
    /// As [`WriteRuns::lost`].
    fn write_singly(
        &mut self,
        run: Run<'_>,
        kind: RunKind,
        first: usize,
    ) -> Result<ControlFlow<usize>, PortError> {
        let mut all = Ok(());
        for (index, single) in run.singles().enumerate().skip(first) {
            let outcome = self.write(Run::of(&single));
            // A link that is down is no better for the next one.
            let down = outcome == Err(Errno::IO);
            let gone = if down {
                run.segments().saturating_sub(index.try_into().unwrap_or(u16::MAX))
            } else {
                1
            };
            if let Err(errno) = outcome
                && self.lost(errno, gone)?.is_break()
            {
                return Ok(ControlFlow::Break(index));
            }
            all = all.and(outcome);
            if down {
                break;
            }
        }
        // If the segments do not go either, it was not for the run.
        if all.is_ok() {
            self.no_runs().add(kind);
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Whether this may be for the kind of the run: some kernels do not know it, some do not like what is in it.
pub(super) const fn refuses_runs(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::IO | Errno::MSGSIZE)
}

/// Segments that a port did not take, by what it said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WriteErrors {
    /// The frame or its vnet header was found wrong (`EINVAL`).
    pub invalid: u64,
    /// The link is down (`EIO`, `ENETDOWN`).
    pub down: u64,
    /// No buffers or memory (`ENOBUFS`, `ENOMEM`).
    pub no_buffers: u64,
    /// No room now (`EAGAIN`), or more than the port holds.
    pub full: u64,
    /// Longer than the device sends (`EMSGSIZE`).
    pub too_long: u64,
}

impl Counters {
    /// These counters, going on from those of a port whose place this one took.
    #[must_use]
    pub fn going_on_from(mut self, before: &Self) -> Self {
        let errors = &mut self.write_errors;
        for (count, before) in [
            (&mut self.frames_in, before.frames_in),
            (&mut self.bytes_in, before.bytes_in),
            (&mut self.reads, before.reads),
            (&mut self.truncated, before.truncated),
            (&mut self.runts, before.runts),
            (&mut self.segments_out, before.segments_out),
            (&mut self.frames_out, before.frames_out),
            (&mut self.bytes_out, before.bytes_out),
            (&mut self.runs_refused, before.runs_refused),
            (&mut self.times_down, before.times_down),
            (&mut self.times_gone, before.times_gone),
            (&mut errors.invalid, before.write_errors.invalid),
            (&mut errors.down, before.write_errors.down),
            (&mut errors.no_buffers, before.write_errors.no_buffers),
            (&mut errors.full, before.write_errors.full),
            (&mut errors.too_long, before.write_errors.too_long),
        ] {
            // They may come from elsewhere and be any number.
            *count = count.saturating_add(before);
        }
        self.largest_read = self.largest_read.max(before.largest_read);
        self.largest_write = self.largest_write.max(before.largest_write);
        for &(reason, count) in &before.refused {
            self.count_refused(reason, count);
        }
        self
    }

    /// Counts a read.
    pub(super) fn count_fill(&mut self, fill: Fill) -> Recv {
        self.reads += 1;
        match fill {
            Fill::Frame(received) => {
                let len = received.meta.len.bytes();
                self.frames_in += 1;
                self.bytes_in += u64::from(len);
                self.largest_read = self.largest_read.max(len);
                return Recv::Frame(received);
            }
            Fill::Truncated => self.truncated += 1,
            Fill::Runt => self.runts += 1,
            Fill::Refused(reason) => self.count_refused(reason, 1),
        }
        Recv::Skipped
    }

    fn count_refused(&mut self, reason: Refused, times: u64) {
        match self.refused.iter_mut().find(|(seen, _)| *seen == reason) {
            Some((_, count)) => *count = count.saturating_add(times),
            None => self.refused.push((reason, times)),
        }
    }

    /// Counts a frame of so many segments written.
    pub(super) fn count_sent(&mut self, segments: u16, len: usize) {
        self.segments_out += u64::from(segments);
        self.frames_out += 1;
        self.bytes_out += u64::try_from(len).unwrap_or(u64::MAX);
        self.largest_write = self.largest_write.max(u32::try_from(len).unwrap_or(u32::MAX));
    }
}

impl WriteErrors {
    /// Those that a smaller limit might have spared.
    pub(super) const fn for_want_of_room(&self) -> u64 {
        self.no_buffers + self.full
    }

    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.invalid + self.down + self.no_buffers + self.full + self.too_long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_go_on_from_others_have_both() {
        let before = Counters {
            frames_in: 3,
            largest_read: 1514,
            refused: vec![(Refused::Fragment, 2), (Refused::TooLong, 1)],
            write_errors: WriteErrors { down: 4, ..WriteErrors::default() },
            ..Counters::default()
        };
        let now = Counters {
            frames_in: 2,
            largest_read: 60,
            refused: vec![(Refused::TooLong, 5)],
            ..Counters::default()
        };
        let both = now.going_on_from(&before);
        assert_eq!((both.frames_in, both.largest_read), (5, 1514));
        assert_eq!(both.refused, [(Refused::TooLong, 6), (Refused::Fragment, 2)]);
        assert_eq!(both.write_errors.total(), 4);
    }
}
