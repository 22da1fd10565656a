//! The shortest relay between two taps: what any program between them costs at least.
//!
//! `relay LAN WAN` creates the taps, prints "ready" and copies frames both ways, one thread, one
//! buffer, nothing queued, until it is killed. `tests/bench/link.rs` measures the bridge beside it.

use std::error::Error;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, read, write};
use ucake::io::tap::{Tap, TapOptions};

/// Frames copied from one tap before the other has its turn.
const SHARE: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let names: Vec<_> = std::env::args().skip(1).collect();
    let [lan, wan] = &*names else { return Err("usage: relay LAN WAN".into()) };
    let lan = Tap::open(lan, &TapOptions::default())?;
    let wan = Tap::open(wan, &TapOptions::default())?;
    println!("ready");
    Err(relay(&lan, &wan).into())
}

/// Copies until something fails: a device is removed, say.
pub(crate) fn relay(lan: &Tap, wan: &Tap) -> Errno {
    let mut buffer = vec![0; 66_000];
    loop {
        let mut readable = [lan, wan].map(|tap| PollFd::new(tap, PollFlags::IN));
        let turn = poll(&mut readable, None)
            .and_then(|_| copy(lan, wan, &mut buffer))
            .and_then(|()| copy(wan, lan, &mut buffer));
        if let Err(errno) = turn {
            return errno;
        }
    }
}

fn copy(from: impl AsFd, to: impl AsFd, buffer: &mut [u8]) -> Result<(), Errno> {
    for _ in 0..SHARE {
        let len = match read(&from, &mut *buffer) {
            Err(Errno::AGAIN) => break,
            outcome => outcome?,
        };
        match write(&to, &buffer[..len]) {
            // Down, or not to its liking: a wire would lose the frame too.
            Ok(_) | Err(Errno::IO | Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
