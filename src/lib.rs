//! CAKE, the Linux queue discipline that removes bufferbloat, as a library.
//!
//! # CAKE in a minute
//!
//! A link's queue should stand where somebody manages it. So CAKE shapes a little below the link's rate,
//! with virtual clocks instead of a token bucket, and then owns the queue: packets are sorted into *tins*
//! by their DSCP, into a queue per flow by a keyed hash, and flows and hosts take turns, the sparse ones
//! first. Each queue has an AQM, COBALT, that tells the sender early (by an ECN mark, else by a drop) when
//! the queue stands. What each packet costs on the link is computed, not guessed. The law is
//! `sch_cake`'s; where this library differs on purpose, `docs/ALGORITHM.md` says so.
//!
//! # The loop
//!
//! [`qdisc`] does no I/O and cannot ask for the time. Whoever drives it does this:
//!
//! 1. Read `now` from a monotonic clock.
//! 2. Feed: hand each frame that has arrived to [`enqueue`](qdisc::Discipline::enqueue).
//! 3. Drain: call [`dequeue(now)`](qdisc::Discipline::dequeue) and transmit what it gives while it says
//!    [`Send`](qdisc::Dequeue::Send).
//! 4. On [`Wait`](qdisc::Dequeue::Wait) sleep until [`Wake::at`](qdisc::Wake::at) or the next arrival; its
//!    `why` tells what for. On [`Idle`](qdisc::Dequeue::Idle) sleep until the next arrival.
//! 5. Go to 1.
//!
//! Calling too early or too often is harmless. `now` must not run backwards; if it does, it is held and
//! counted. The work of one call is bounded, nothing is allocated per packet once warm, and a change of
//! configuration loses no packet.
//!
//! ```
//! use ucake::packet::Meta;
//! use ucake::qdisc::{Cake, Config, Dequeue, Discipline, Entropy};
//! use ucake::sim::SimFrame;
//! use ucake::time::{Instant, Span};
//! use ucake::units::{FrameLen, Rate};
//!
//! let config = Config { bandwidth: Some(Rate::from_bits(1_000_000)), ..Config::default() };
//! let mut cake = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
//! let mut now = Instant::from_nanos(1_000_000_000);
//! let mut arrivals = vec![Meta { len: FrameLen(1250), ..Meta::default() }; 3];
//! let mut sent_at = Vec::new();
//! loop {
//!     for meta in arrivals.drain(..) {
//!         cake.enqueue(SimFrame::new(&meta), &meta, now);
//!     }
//!     match cake.dequeue(now) {
//!         Dequeue::Send(departure) => sent_at.push((departure.len, now)),
//!         Dequeue::Wait(wake) => now = wake.at, // a real driver sleeps here
//!         Dequeue::Idle => break,               // and here, until something arrives
//!     }
//! }
//! // 1250 bytes take 10 ms at 1 Mbit/s.
//! assert_eq!(sent_at[2].1 - sent_at[0].1, Span::from_millis(20));
//! ```
//!
//! # The map
//!
//! | module | what is there |
//! |---|---|
//! | [`qdisc`] | CAKE and its mechanisms, one a file; a drop-tail queue to compare with |
//! | [`packet`] | what is known of a frame; dissecting, marking and splitting its bytes |
//! | [`sim`] | a virtual world: sources, a discipline, a clock that jumps |
//! | [`time`], [`units`] | instants and spans; frame, wire and memory lengths; rates |
//! | `io` (feature `io`) | taps, timer, clock, buffers, network namespaces and the loop above |
//!
//! Without the feature `io` the crate is the pure core: no clock, no system call, no runtime.

// The core cannot be made to panic (docs/ROBUSTNESS.md says how that is known): where it could, it says why
// it does not.
#![warn(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::string_slice,
    clippy::unreachable
)]

pub mod dql;
#[cfg(feature = "io")]
#[allow(clippy::expect_used, clippy::indexing_slicing, reason = "not of the core")]
pub mod io;
pub mod packet;
pub mod qdisc;
pub mod sim;
pub mod time;
pub mod units;
