//! What benchmarks on real taps share: medians, processor time, and the relay to compare with.

use std::sync::mpsc;
use std::thread;

use rustix::io::Errno;
use serde_json::{Value, json};
use ucake::io::netlink;

use crate::lab::Lab;
use crate::relay;

/// Median and extremes.
pub(crate) struct Scatter {
    pub(crate) median: f64,
    min: f64,
    max: f64,
}

impl Scatter {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.collect();
        values.sort_unstable_by(f64::total_cmp);
        let last = values.len() - 1;
        Self { median: values[last / 2], min: values[0], max: values[last] }
    }

    pub(crate) fn text(&self, places: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.places$} ({min:.places$} … {max:.places$})")
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

/// The calling thread, as the kernel numbers it.
pub(crate) fn task() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Time a thread has spent on a processor.
pub(crate) fn cpu_nanos(task: i32) -> u64 {
    let file = format!("/proc/self/task/{task}/schedstat");
    let stat = std::fs::read_to_string(file).expect("/proc");
    let nanos = stat.split(' ').next().and_then(|field| field.parse().ok());
    nanos.expect("schedstat begins with nanoseconds")
}

/// The relay on a thread of its own.
pub(crate) struct Relay {
    pub(crate) task: i32,
    thread: thread::JoinHandle<Errno>,
}

impl Relay {
    pub(crate) fn start(lab: &Lab) -> Self {
        let [lan, wan] = lab.taps();
        let (report, number) = mpsc::channel();
        let work = move || {
            report.send(task()).expect("somebody waits");
            relay::relay(&lan, &wan)
        };
        let thread = thread::Builder::new().name("relay".into()).spawn(work).expect("a thread");
        Self { task: number.recv().expect("the thread starts"), thread }
    }

    /// It stops when a device goes.
    pub(crate) fn stop(self, lab: &Lab) {
        lab.client.run(|| netlink::delete("lan0").expect("it can be removed"));
        let errno = self.thread.join().expect("the relay does not panic");
        assert_eq!(errno, Errno::BADFD, "the relay stopped by itself");
    }
}
