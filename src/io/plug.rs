//! Where a port is plugged in, and another one after it.
//!
//! Problem: a device is removed, and comes back as another one; what queues to leave through it is to be there still,
//! and so is the other direction.
//! Law: a port whose device is gone is taken out. Without one nothing comes, and what is sent is lost and counted as for
//! a link that is down: shaped as ever, so that nothing spins and nothing old is waiting for the device to come back.
//! Left out: who finds another port, which takes rights that this process may not have.

use std::cell::Cell;
use std::task::{Context, Poll};

use super::batch::Batch;
use super::pool::Pool;
use super::port::{Counters, Port, PortError, Recv, Sent};
use crate::time::Instant;

/// A port, or none for a while.
pub(super) struct Plug {
    port: Option<Box<dyn Port>>,
    name: String,
    /// Whether it goes on without a port; else whoever asks is told that it is gone.
    outlives: bool,
    /// Set when the port was found gone by somebody who could not take it out.
    gone: Cell<bool>,
    /// What was counted by ports that were taken out, and without any.
    before: Counters,
}

impl Plug {
    pub(super) fn new(port: Box<dyn Port>) -> Self {
        let name = port.name().to_owned();
        let (outlives, gone) = (false, Cell::new(false));
        Self { port: Some(port), name, outlives, gone, before: Counters::default() }
    }

    /// The same, for a device that may go.
    pub(super) fn outliving(self) -> Self {
        Self { outlives: true, ..self }
    }

    /// Plugs in another port instead.
    pub(super) fn insert(&mut self, port: Box<dyn Port>) {
        self.take_out();
        self.name = port.name().to_owned();
        self.port = Some(port);
    }

    fn take_out(&mut self) {
        self.gone.set(false);
        if let Some(port) = self.port.take() {
            self.before = port.counters().going_on_from(&self.before);
        }
    }

    /// Has the port do something; `otherwise` if there is none, or not any more.
    fn with<T>(
        &mut self,
        otherwise: T,
        does: impl FnOnce(&mut dyn Port) -> Result<T, PortError>,
    ) -> Result<T, PortError> {
        let Some(port) = &mut self.port else { return Ok(otherwise) };
        match does(port.as_mut()) {
            Err(PortError::Gone { .. }) if self.outlives => {
                self.lose();
                Ok(otherwise)
            }
            outcome => outcome,
        }
    }

    fn lose(&mut self) {
        self.take_out();
        self.before.times_gone += 1;
    }
}

impl Port for Plug {
    fn name(&self) -> &str {
        &self.name
    }

    fn try_recv(&mut self, pool: &Pool) -> Result<Recv, PortError> {
        self.with(Recv::Empty, |port| port.try_recv(pool))
    }

    fn send(&mut self, batch: &Batch) -> Result<Sent, PortError> {
        if let Some(sent) = self.with(None, |port| port.send(batch).map(Some))? {
            return Ok(sent);
        }
        let segments = batch.runs().map(|run| u64::from(run.segments())).sum::<u64>();
        self.before.write_errors.down += segments;
        Ok(Sent { runs: batch.runs().count(), congested: false, lost: true })
    }

    fn in_flight(&mut self) -> Result<u64, PortError> {
        self.with(0, |port| port.in_flight())
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), PortError>> {
        // Whoever plugs a port in has a turn taken after it.
        let Some(port) = &self.port else { return Poll::Pending };
        match port.poll_readable(cx) {
            Poll::Ready(Err(PortError::Gone { .. })) if self.outlives => {
                self.gone.set(true);
                Poll::Ready(Ok(()))
            }
            outcome => outcome,
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.port.as_ref()?.next_due()
    }

    fn advance(&mut self, now: Instant) -> Result<(), PortError> {
        if self.gone.get() {
            self.lose();
        }
        self.with((), |port| port.advance(now))
    }

    fn lost_before_reading(&self) -> Option<u64> {
        self.port.as_ref()?.lost_before_reading()
    }

    fn set_mtu(&mut self, mtu: u32) {
        if let Some(port) = &mut self.port {
            port.set_mtu(mtu);
        }
    }

    fn counters(&self) -> Counters {
        let now = self.port.as_ref().map(|port| port.counters()).unwrap_or_default();
        now.going_on_from(&self.before)
    }
}
