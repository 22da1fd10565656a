//! A long wire: two taps, and what goes in at one comes out at the other later. For kernels without `netem`.
//!
//! `delay NEAR FAR RTT [MBYTES]` creates the taps, prints "ready" and holds each frame for half of RTT milliseconds each
//! way, superpackets as they are, until it is killed. Beyond so many megabytes (64) on the wire, each way, frames are
//! lost. `tests/flent/run` lays one to each server.

use std::error::Error;

use ucake::io::delayed::Delayed;
use ucake::io::driver::{self, Bridge};
use ucake::io::port::Port;
use ucake::io::tap::{Tap, TapOptions, TapPort};
use ucake::io::timer::Timer;
use ucake::qdisc::{Fifo, FifoConfig};
use ucake::time::Span;
use ucake::units::FrameLen;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let (near, far, rtt, mbytes) = match &*words {
        [near, far, rtt] => (near, far, rtt, 64),
        [near, far, rtt, mbytes] => (near, far, rtt, mbytes.parse::<u32>()?),
        _ => return Err("usage: delay NEAR FAR RTT [MBYTES]; RTT in milliseconds".into()),
    };
    let half = Span::from_nanos(Span::from_millis(rtt.parse()?).nanos() / 2);
    let cap = FrameLen(mbytes.saturating_mul(1 << 20));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let far_end = |name: &str| -> Result<Box<dyn Port>, Box<dyn Error>> {
            let port = TapPort::new(Tap::open(name, &TapOptions::default())?)?;
            Ok(Box::new(Delayed::new(port, half, cap)))
        };
        // Nothing stands before a wire: what waits, waits on it.
        let at_once = || Fifo::new(FifoConfig { rate: None, limit: u32::MAX, split: false });
        let mut bridge = Bridge::new(far_end(near)?, far_end(far)?, at_once(), at_once());
        let (_stop, mut commands) = tokio::sync::mpsc::channel(1);
        println!("ready");
        driver::run(&mut bridge, &mut Timer::new()?, &mut commands).await?;
        Ok(())
    })
}
