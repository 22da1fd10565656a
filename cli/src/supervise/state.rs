//! What the supervisor knows, what it tells the data process and what that tells it.
//!
//! Problem: a process that ends takes all it knows with it.
//! Law: whoever starts, for the first time, after a death or after an upgrade, starts from a [`Kept`] and from
//! nothing else. The data process tells of all that changes in it a few times a second, so that what is kept is
//! never older than [`HEARTBEAT`].
//! Left out: frames. What is queued in a process that ends is gone.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ucake::dql::DqlStats;
use ucake::io::aside::Aside;
use ucake::io::driver::PortSnapshot;
use ucake::io::lateness::Lateness;
use ucake::io::port::Counters;
use ucake::qdisc::Config;
use ucake::time::Span;
use ucake_cli::plan::{Bell, Coalesce, ControlPlan, LogLevel, PortName};
use ucake_cli::protocol::{State, Supervision};
use ucake_cli::sandbox::{Report, User};

use crate::work::Lost;

/// How often the data process says that it is alive, and what it counted: what is lost of the counts at most.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(200);
/// The form of [`Kept`]. A program that knows another one is not upgraded to.
pub(crate) const VERSION: u32 = 1;

/// A bridge among others, for as long as the supervisor and those that follow it live.
pub(crate) type BridgeId = u32;

/// Everything to start from but the descriptors: the listener first, if there is one, then both ports of each
/// bridge, and where to ask about connections, if that can be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// [`VERSION`].
    pub(crate) version: u32,
    /// The program, where it was started from.
    pub(crate) program: PathBuf,
    /// What it was started with.
    pub(crate) arguments: Vec<String>,
    /// The file that says what to run, if one does.
    pub(crate) config: Option<PathBuf>,
    /// Where that wants the control socket.
    pub(crate) control: ControlPlan,
    /// What is logged, if the file says so.
    pub(crate) log: Option<LogLevel>,
    /// Whom the data process is to be.
    pub(crate) user: User,
    /// The path of the control socket, if there is one.
    pub(crate) socket: Option<PathBuf>,
    /// The bridges.
    pub(crate) bridges: Vec<KeptBridge>,
    /// What happened to data processes so far.
    pub(crate) supervision: Supervision,
    /// Whether there is somebody to ask about connections.
    #[serde(default)]
    pub(crate) conntrack: bool,
}

/// A bridge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptBridge {
    /// No other one has had it.
    pub(crate) id: BridgeId,
    /// On the side of the hosts, then on the side of the bottleneck.
    pub(crate) ports: [KeptPort; 2],
    /// What was last asked for to leave through them, whatever it was changed to since.
    pub(crate) asked: [Config; 2],
    /// Which frames are joined.
    pub(crate) coalesce: Coalesce,
    /// When a port sends.
    pub(crate) doorbell: Bell,
}

/// A port, and what queues to leave through it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptPort {
    /// Its name, with that of the device it became.
    pub(crate) name: PortName,
    /// What its descriptor is.
    pub(crate) kind: PortKind,
    /// Largest frame of an ordinary packet, Ethernet header included.
    pub(crate) largest_frame: u32,
    /// What leaves through it: the handle …
    pub(crate) handle: u16,
    /// … and all that was known of it last.
    pub(crate) state: State,
    /// What the port counted.
    pub(crate) counts: KeptCounts,
    /// What its device lost before it was read.
    pub(crate) lost: Option<u64>,
    /// What the host gave up on its device, to be put back; nothing as long as it was not asked to.
    #[serde(default)]
    pub(crate) aside: Option<Aside>,
}

/// What a descriptor is, and what else one has to know to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PortKind {
    /// A tap with a vnet header.
    Tap {
        /// What the kernel leaves to us.
        offloads: u32,
    },
    /// A tap without.
    PlainTap,
    /// A packet socket.
    Packet {
        /// The device's number.
        index: u32,
        /// The device's MTU when it was opened.
        mtu: usize,
    },
}

/// What a port counted, and the queue in front of its device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptCounts {
    counters: Counters,
    rings: u64,
    stops: u64,
    stopped: Span,
    /// Not told by those of before it was counted.
    #[serde(default)]
    late: Lateness,
}

impl KeptCounts {
    pub(crate) fn of(port: &PortSnapshot) -> Self {
        let DqlStats { stops, stopped, .. } = port.dql;
        let PortSnapshot { counters, rings, late, .. } = port.clone();
        Self { counters, rings, stops, stopped, late }
    }

    /// What `port` counted on top of this.
    pub(crate) fn added_to(&self, port: PortSnapshot) -> PortSnapshot {
        let PortSnapshot { counters, rings, dql, late, .. } = port;
        PortSnapshot {
            counters: counters.going_on_from(&self.counters),
            rings: rings.saturating_add(self.rings),
            dql: DqlStats {
                stops: dql.stops.saturating_add(self.stops),
                stopped: dql.stopped + self.stopped,
                ..dql
            },
            late: late.going_on_from(&self.late),
            ..port
        }
    }
}

/// What the data process tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum News {
    /// What it gave up, once.
    Sandboxed(Report),
    /// Every bridge has taken a turn since it was asked.
    Alive,
    /// What is new of a port.
    Port(Box<PortNews>),
    /// It cannot go on, and neither could another one.
    Failed(String),
    /// It did as told, and ends.
    Stopped,
}

/// What leaves through a port, and what the port counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PortNews {
    /// Which bridge.
    pub(crate) bridge: BridgeId,
    /// Number of the port.
    pub(crate) port: usize,
    /// As in [`KeptPort`].
    pub(crate) handle: u16,
    /// As in [`KeptPort`].
    pub(crate) state: State,
    /// As in [`KeptPort`].
    pub(crate) counts: KeptCounts,
}

/// What the data process is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// What leaves through a port is to be CAKE of exactly this kind.
    Configure {
        /// Which bridge.
        bridge: BridgeId,
        /// Number of the port.
        port: usize,
        /// The handle if there is none.
        handle: u16,
        /// What it is to be.
        config: Config,
    },
    /// These bridges end once what is queued in them has left.
    Remove(Vec<BridgeId>),
    /// This bridge begins; its ports come along.
    Add(Box<KeptBridge>),
    /// Log this much.
    Log(LogLevel),
    /// Tell it to whoever asks.
    Know(Supervision),
    /// The same of what each port's device lost before it was read.
    Lost(Lost),
    /// Print the statistics.
    Show {
        /// What each port's device lost before it was read.
        lost: Lost,
    },
    /// Print the statistics and end.
    Stop {
        /// As above.
        lost: Lost,
    },
    /// Tell everything once more and end, for another one to go on.
    Retire,
}

impl Kept {
    /// As text.
    pub(crate) fn write(&self) -> String {
        serde_json::to_string(self).expect("all keys are strings")
    }

    /// Out of text.
    ///
    /// # Errors
    /// It is of another form; for people to read.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let unreadable = |error| format!("cannot go on from what was handed over: {error}");
        let Head { version } = serde_json::from_str(text).map_err(unreadable)?;
        if version != VERSION {
            return Err(format!(
                "what was handed over is of form {version}; form {VERSION} is known here"
            ));
        }
        serde_json::from_str(text).map_err(unreadable)
    }

    /// What each port's device lost before it was read, when that was last looked at.
    pub(crate) fn lost(&self) -> Lost {
        let ports = |bridge: &KeptBridge| bridge.ports.each_ref().map(|port| port.lost);
        self.bridges.iter().map(|bridge| (bridge.id, ports(bridge))).collect()
    }

    /// Forgets of what is queued, and counts it as lost: it is gone with its process. How many packets that were.
    pub(crate) fn lose_queues(&mut self) -> u64 {
        let ports = self.bridges.iter_mut().flat_map(|bridge| &mut bridge.ports);
        let queued = ports.map(|port| match &mut port.state {
            State::Cake { stats, .. } => &mut stats.queued_packets,
            State::Pfifo { stats, .. } => &mut stats.queued_packets,
        });
        let packets = queued.map(|queued| u64::from(std::mem::take(queued))).sum();
        self.supervision.packets_lost += packets;
        packets
    }

    /// Takes note of what the data process told. False if it makes no sense.
    pub(crate) fn note(&mut self, news: News) -> bool {
        let News::Port(news) = news else { return true };
        let PortNews { bridge, port, handle, state, counts } = *news;
        let bridge = self.bridges.iter_mut().find(|kept| kept.id == bridge);
        let kept = bridge.and_then(|bridge| bridge.ports.get_mut(port));
        let Some(kept) = kept else { return false };
        kept.counts = counts;
        // A pass-through that stands in for CAKE is no reason to forget what CAKE was like.
        let stand_in = self.supervision.passing_through && matches!(state, State::Pfifo { .. });
        if !stand_in {
            (kept.handle, kept.state) = (handle, state);
        }
        true
    }
}

#[cfg(test)]
pub(super) mod tests {
    use ucake::qdisc::{FifoStats, Stats};

    use super::*;

    pub(in crate::supervise) fn kept() -> Kept {
        let port = |name: &str, handle| KeptPort {
            name: name.parse().expect("a port"),
            kind: PortKind::Tap { offloads: 0x6f },
            largest_frame: 1514,
            handle,
            state: cake(0, 0),
            counts: KeptCounts::default(),
            lost: None,
            aside: None,
        };
        let ports = [port("tap:lan0", 0x8002), port("tap:wan0", 0x8001)];
        Kept {
            version: VERSION,
            program: "/usr/bin/ucake".into(),
            arguments: vec!["run".into()],
            config: None,
            control: ControlPlan::default(),
            log: None,
            user: User::NOBODY,
            socket: Some("/run/ucake/control.sock".into()),
            bridges: vec![KeptBridge {
                id: 0,
                ports,
                asked: [Config::default(); 2],
                coalesce: Coalesce::Exact,
                doorbell: Bell::Batch,
            }],
            supervision: Supervision::default(),
            conntrack: false,
        }
    }

    fn cake(sent_packets: u64, queued_packets: u32) -> State {
        let stats = Stats { sent_packets, queued_packets, ..Stats::default() };
        State::Cake { config: Config::default(), stats: Box::new(stats), queues: None }
    }

    fn news(bridge: BridgeId, port: usize, handle: u16, state: State) -> News {
        let counts = KeptCounts::default();
        News::Port(Box::new(PortNews { bridge, port, handle, state, counts }))
    }

    #[test]
    fn what_is_kept_is_read_as_it_was_written_and_other_forms_are_refused() {
        let kept = kept();
        assert_eq!(Kept::read(&kept.write()), Ok(kept.clone()));
        let other = Kept { version: 2, ..kept }.write();
        assert!(Kept::read(&other).expect_err("of the future").contains("form 2"));
        assert!(Kept::read("{}").is_err() && Kept::read("").is_err());
    }

    #[test]
    fn what_is_told_is_kept_and_what_makes_no_sense_is_not() {
        let mut kept = kept();
        assert!(kept.note(news(0, 1, 7, cake(5, 3))));
        assert_eq!(
            (kept.bridges[0].ports[1].handle, &kept.bridges[0].ports[1].state),
            (7, &cake(5, 3))
        );
        let before = kept.clone();
        assert!(!kept.note(news(1, 0, 7, cake(9, 0))) && !kept.note(news(0, 2, 7, cake(9, 0))));
        assert!(kept.note(News::Alive));
        assert_eq!(kept, before);
        assert_eq!((kept.lose_queues(), kept.supervision.packets_lost), (3, 3));
        assert_eq!(kept.bridges[0].ports[1].state, cake(5, 0));
    }

    #[test]
    fn a_pass_through_that_stands_in_for_cake_does_not_make_it_forgotten() {
        let mut kept = kept();
        let pfifo = State::Pfifo { limit: 1000, backlog: 0, stats: FifoStats::default() };
        kept.supervision.passing_through = true;
        assert!(kept.note(news(0, 0, 0, pfifo.clone())));
        assert_eq!(kept.bridges[0].ports[0].state, cake(0, 0));
        assert!(kept.note(news(0, 0, 9, cake(2, 0))), "somebody made one");
        assert_eq!(kept.bridges[0].ports[0].state, cake(2, 0));
        kept.supervision.passing_through = false;
        assert!(kept.note(news(0, 0, 0, pfifo.clone())), "somebody deleted it");
        assert_eq!(kept.bridges[0].ports[0].state, pfifo);
    }
}
