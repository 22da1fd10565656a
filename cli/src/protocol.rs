//! What is said over the control socket: requests, replies, and their lines.
//!
//! Problem: another process wants to look at a running bridge and change it, and whatever it sends must be
//! harmless; programs of different age meet.
//! Source: docs/CONTROL.md, which says the same for those who write programs against it.
//! Law: one request is one line of JSON, and so is each reply. Words of CAKE travel as they were typed, and are
//! understood by whoever obeys them.
//! Left out: sockets.

use std::fmt;

use serde::{Deserialize, Serialize};
use ucake::dql::DqlStats;
use ucake::io::lateness::LatenessStats;
use ucake::io::port::Counters;
use ucake::qdisc::{Config, FifoStats, QueueStats, Stats};

/// The version of what is said here. One that does not know it says so and does nothing.
pub const VERSION: u32 = 1;
/// Longest line that is read as a request, line feed included.
pub const LONGEST_REQUEST: usize = 64 * 1024;

/// A line to a running ucake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    #[serde(flatten)]
    content: T,
}

/// What can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Who is there?
    Hello,
    /// The ports, and what queues to leave through each.
    Ports,
    /// Configuration and statistics.
    Show {
        /// Of what leaves through this port; of all if it is not given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<String>,
        /// Statistics of each queue too.
        #[serde(default)]
        queues: bool,
    },
    /// Changes what queues to leave through a port.
    Apply(Order),
    /// One reply for each change from now on, as it happens, until the connection is closed.
    Watch,
}

/// What is to be done to the discipline of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// What.
    pub verb: Verb,
    /// Whose.
    pub port: String,
    /// The handle of what is meant, or of what is to be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<u16>,
    /// Words of `tc qdisc … cake`; not with [`Verb::Del`].
    #[serde(default)]
    pub words: String,
}

/// What `tc` can do to a discipline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// Makes one where there is none.
    Add,
    /// Changes the one that is there, or makes one.
    Replace,
    /// Changes the one that is there.
    Change,
    /// Takes it away; frames then pass as they come.
    Del,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Reply {
    /// To [`Request::Hello`].
    Hello {
        /// Name of the program.
        program: String,
        /// Its own version.
        release: String,
        /// Its process; the supervisor, where there is one.
        pid: u32,
        /// What became of the processes that handle frames, where there is a supervisor.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        supervision: Option<Supervision>,
    },
    /// To [`Request::Ports`].
    Ports {
        /// Of each bridge both, the one on the side of the hosts first.
        ports: Vec<PortLine>,
    },
    /// To [`Request::Show`].
    Shown {
        /// What was asked for.
        disciplines: Vec<Shown>,
    },
    /// To [`Request::Apply`]: it is done.
    Done,
    /// To [`Request::Watch`]: changes follow.
    Watching,
    /// After [`Request::Watch`]: this happened.
    Changed {
        /// What was done.
        event: Event,
        /// The discipline after it; before it where it was deleted.
        discipline: Shown,
    },
    /// The request was not obeyed.
    Refused(Refusal),
}

/// A port in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortLine {
    /// Its full name, such as `tap:lan0`.
    pub port: String,
    /// The name of its device.
    pub device: String,
    /// What queues to leave through it.
    pub kind: Kind,
}

/// Kinds of disciplines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// CAKE.
    Cake,
    /// A plain pass-through.
    Pfifo,
}

/// What happened to a discipline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// It was made.
    Added,
    /// It was changed.
    Changed,
    /// It was taken away.
    Deleted,
}

/// A discipline at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Full name of the port that frames leave through.
    pub port: String,
    /// The name of its device.
    pub device: String,
    /// Major number of its handle; 0 of a pass-through.
    pub handle: u16,
    /// What became of the processes that handled its frames, where there is a supervisor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervision: Option<Supervision>,
    /// What the port itself counted, in both directions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<Box<PortCounts>>,
    /// What it is.
    #[serde(flatten)]
    pub state: State,
}

/// What a port counted, since it was opened, whatever became of processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounts {
    /// What went through, and what did not.
    #[serde(flatten)]
    pub counters: Counters,
    /// What its device lost before it was read, up to a second ago; nothing where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_before_reading: Option<u64>,
    /// How much its device may hold, and how often and how long that held something back.
    pub byte_limit: DqlStats,
    /// Times the doorbell was rung.
    pub rings: u64,
    /// How late it was woken to send.
    pub late: LatenessStats,
}

/// What happened to the processes that handle frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supervision {
    /// The one that does it now.
    pub pid: u32,
    /// Those that ended unasked.
    pub died: u64,
    /// Those that said nothing any more, and were ended.
    pub hung: u64,
    /// Times the program was exchanged for what now stands in its place.
    pub upgraded: u64,
    /// Times it could not be.
    pub upgrades_failed: u64,
    /// Packets that were queued when last heard of in processes that ended.
    pub packets_lost: u64,
    /// Whether frames pass through without CAKE because too many died.
    pub passing_through: bool,
}

/// Everything that is known of a discipline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum State {
    /// CAKE.
    Cake {
        /// What is set.
        config: Config,
        /// What was counted.
        stats: Box<Stats>,
        /// Each queue in use, if that was asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queues: Option<Vec<QueueStats>>,
    },
    /// A plain pass-through.
    Pfifo {
        /// Most packets it holds.
        limit: u32,
        /// Bytes queued now.
        backlog: u32,
        /// What was counted.
        stats: FifoStats,
    },
}

/// Why a request was not obeyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Whose fault.
    pub class: Class,
    /// What to tell people, a line or more.
    pub message: String,
}

/// Whose fault it is that a request was not obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The line could not be read, or is of a version that is not spoken here.
    Protocol,
    /// There is no such port.
    NoPort,
    /// The words mean nothing.
    Words,
    /// Understood, but not possible as things stand.
    State,
    /// There are too many clients, or the bridge has stopped.
    Busy,
}

impl Refusal {
    /// A refusal.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Self { class, message: message.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// A request as its line, line feed included.
pub fn write_request(request: &Request) -> String {
    line(request)
}

/// A reply as its line, line feed included.
pub fn write_reply(reply: &Reply) -> String {
    line(reply)
}

fn line<T: Serialize>(content: &T) -> String {
    let versioned = Versioned { version: VERSION, content };
    let mut line = serde_json::to_string(&versioned).expect("all keys are strings");
    line.push('\n');
    line
}

/// Reads a request.
///
/// # Errors
/// It is no JSON, no request, or one of another version. The refusal can be sent as it is.
pub fn read_request(line: &[u8]) -> Result<Request, Refusal> {
    read(line, "request").map_err(|message| Refusal::new(Class::Protocol, message))
}

/// Reads a reply.
///
/// # Errors
/// It is no JSON, no reply, or one of another version; for people to read.
pub fn read_reply(line: &[u8]) -> Result<Reply, String> {
    read(line, "reply")
}

fn read<T: for<'de> Deserialize<'de>>(line: &[u8], what: &str) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let unreadable = |error| format!("this is no {what}: {error}");
    // The version first: what follows it may be shaped as nobody here knows.
    let Head { version } = serde_json::from_slice(line).map_err(unreadable)?;
    if version != VERSION {
        return Err(format!("this is of version {version}; version {VERSION} is spoken here"));
    }
    serde_json::from_slice(line).map(|Versioned::<T> { content, .. }| content).map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ucake::packet::Refused;
    use ucake::qdisc::{Cake, Entropy};
    use ucake::sim::SimFrame;
    use ucake::time::Instant;
    use ucake::units::{FrameLen, Rate};

    use super::*;

    fn shown() -> Shown {
        let config = Config { bandwidth: Some(Rate::from_bits(20_000_000)), ..Config::default() };
        let cake: Cake<SimFrame> = Cake::new(config, FrameLen(1514), Entropy::from_seed(1));
        let state = State::Cake {
            config,
            stats: Box::new(cake.stats()),
            queues: Some(cake.queue_stats(Instant::ZERO)),
        };
        let supervision = Some(Supervision { died: 2, ..Supervision::default() });
        let counters =
            Counters { refused: vec![(Refused::ChecksumOutside, 3)], ..Counters::default() };
        let counts = PortCounts { counters, lost_before_reading: Some(9), ..PortCounts::default() };
        let counts = Some(Box::new(counts));
        let (port, device) = ("tap:wan0".into(), "wan0".into());
        Shown { port, device, handle: 0x8001, supervision, counts, state }
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let order =
            Order { verb: Verb::Add, port: "wan0".into(), handle: Some(7), words: "lan".into() };
        let requests = [
            Request::Hello,
            Request::Ports,
            Request::Show { port: None, queues: false },
            Request::Show { port: Some("tap:wan0".into()), queues: true },
            Request::Apply(order),
            Request::Watch,
        ];
        for request in requests {
            let line = write_request(&request);
            assert!(line.ends_with('\n') && line.lines().count() == 1, "{line}");
            assert_eq!(read_request(line.as_bytes()), Ok(request), "{line}");
        }
    }

    #[test]
    fn replies_are_read_as_they_were_written() {
        let fifo = State::Pfifo { limit: 1000, backlog: 0, stats: FifoStats::default() };
        let replies = [
            Reply::Shown {
                disciplines: vec![shown(), Shown { state: fifo, handle: 0, ..shown() }],
            },
            Reply::Changed { event: Event::Deleted, discipline: shown() },
            Reply::Refused(Refusal::new(Class::State, "two\nlines")),
            Reply::Done,
        ];
        for reply in replies {
            let line = write_reply(&reply);
            assert_eq!(line.lines().count(), 1, "{line}");
            assert_eq!(read_reply(line.as_bytes()), Ok(reply), "{line}");
        }
    }

    #[test]
    fn the_lines_of_the_document_are_requests() {
        let document = include_str!("../../docs/CONTROL.md");
        let lines: Vec<_> =
            document.lines().filter(|line| line.starts_with("{\"version\"")).collect();
        assert!(lines.len() > 8, "{lines:?}");
        for line in lines {
            let known =
                read_request(line.as_bytes()).is_ok() || read_reply(line.as_bytes()).is_ok();
            assert!(known, "{line}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_a_reason() {
        let table = [
            ("", "no request"),
            ("hello", "no request"),
            ("{}", "version"),
            ("[1,2]", "no request"),
            (r#"{"version":2,"do":"dance"}"#, "version 2"),
            (r#"{"version":1,"do":"dance"}"#, "dance"),
            (r#"{"version":1,"do":"apply","verb":"add"}"#, "port"),
            (r#"{"version":1,"do":"apply","verb":"add","port":"a","handle":70000}"#, "70000"),
            (r#"{"version":1,"do":"#, "no request"),
        ];
        for (line, reason) in table {
            let refusal = read_request(line.as_bytes()).expect_err(line);
            assert!(refusal.message.contains(reason), "{line}: {refusal}");
        }
        assert!(read_request(&[0xff, 0, 0xfe]).is_err());
        assert!(read_request("[".repeat(100_000).as_bytes()).is_err(), "depth is bounded");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_are_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            cut in 0..120_usize,
            place in 0..120_usize,
            byte in any::<u8>(),
        ) {
            let _ = read_request(&bytes);
            // Most lines of the kind above are no JSON; one damaged place is harder.
            let order = Order {
                verb: Verb::Add,
                port: "wan0".into(),
                handle: Some(7),
                words: "bandwidth 5mbit".into(),
            };
            let mut line = write_request(&Request::Apply(order)).into_bytes();
            if let Some(damaged) = line.get_mut(place) {
                *damaged = byte;
            }
            line.truncate(cut);
            let _ = read_request(&line);
        }
    }
}
