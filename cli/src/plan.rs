//! What is to be run, as a value.
//!
//! Problem: it is said on the command line or in a file, looked at before anything is opened, and compared with what
//! runs when the file has changed.
//! Law: a plan that exists can be run as far as can be known without asking the system: its names are names of ports,
//! its words mean something.
//! Left out: the file ([`crate::config`]), and whether the system has what is asked for.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use ucake::io::batch::Coalescing;
use ucake::io::driver::Doorbell;
use ucake::packet::coalesce::Push;
use ucake::qdisc::{Change, Config, memory_limit};
use ucake::units::{FrameLen, MemSize};

use crate::words;

/// Frames that memory limits are reckoned with.
const USUAL_FRAME: FrameLen = FrameLen(1514);

/// What is to be run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// One at least.
    pub bridges: Vec<BridgePlan>,
    /// Where it is to be shown and changed.
    pub control: ControlPlan,
    /// What is logged; `None` leaves it to the environment.
    pub log: Option<LogLevel>,
    /// Memory that the queues of all bridges may hold together.
    pub memory: Option<MemSize>,
}

/// Two ports and what is to leave through them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgePlan {
    /// On the side of the hosts.
    pub lan: PortName,
    /// On the side of the bottleneck.
    pub wan: PortName,
    /// CAKE for what leaves through `wan`.
    pub up: Words,
    /// CAKE for what leaves through `lan`.
    pub down: Words,
    /// Which frames are joined.
    pub coalesce: Coalesce,
    /// When a port sends.
    pub doorbell: Bell,
}

/// Where the control socket is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlPlan {
    /// Its path; the usual one if it is not said.
    pub path: Option<PathBuf>,
    /// Who may use it besides the owner.
    pub group: Option<String>,
}

impl Plan {
    /// CAKE for what leaves through LAN and through WAN of each bridge. Where memory is limited, the largest of
    /// their limits are lowered, to one and the same, until all fit.
    pub fn configs(&self) -> Vec<[Config; 2]> {
        let own = |words: &Words| Config::default().changed_by(&words.change);
        let mut configs: Vec<[Config; 2]> =
            self.bridges.iter().map(|bridge| [own(&bridge.down), own(&bridge.up)]).collect();
        if let Some(memory) = self.memory {
            let limits = configs.iter().flatten().map(|config| memory_limit(config, USUAL_FRAME));
            if let Some(level) = level(limits.collect(), memory) {
                for config in configs.iter_mut().flatten() {
                    let own = memory_limit(config, USUAL_FRAME);
                    if own > level {
                        config.memory_limit = Some(level);
                    }
                }
            }
        }
        configs
    }
}

/// What to lower limits to so that they come to `memory` together; `None` if they do not come to more.
fn level(mut limits: Vec<MemSize>, memory: MemSize) -> Option<MemSize> {
    limits.sort_unstable();
    let mut left = memory.0;
    for (index, limit) in limits.iter().enumerate() {
        let share = left / (limits.len() - index) as u64;
        if limit.0 > share {
            return Some(MemSize(share));
        }
        left -= limit.0;
    }
    None
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogLevel {
    /// What went wrong.
    Error,
    /// Also what may be wrong.
    Warn,
    /// Also what happens.
    Info,
    /// Also what developers want to know.
    Debug,
    /// Everything.
    Trace,
}

/// Which frames are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Coalesce {
    /// Those that are the same to the bit once they are split again
    #[default]
    Exact,
    /// Also those with PSH, which then only the last one keeps
    Push,
    /// None
    Off,
}

impl From<Coalesce> for Coalescing {
    fn from(how: Coalesce) -> Self {
        match how {
            Coalesce::Exact => Self::On(Push::Keep),
            Coalesce::Push => Self::On(Push::Last),
            Coalesce::Off => Self::Off,
        }
    }
}

/// When a port sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bell {
    /// Once for all that is due, while its device holds little
    #[default]
    Batch,
    /// Frame by frame
    Packet,
}

impl From<Bell> for Doorbell {
    fn from(when: Bell) -> Self {
        match when {
            Bell::Batch => Self::Batch,
            Bell::Packet => Self::Packet,
        }
    }
}

/// Words of CAKE that were understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// As typed.
    pub line: String,
    /// What they ask for.
    pub change: Change,
}

impl FromStr for Words {
    type Err = words::WordError;

    fn from_str(line: &str) -> Result<Self, Self::Err> {
        Ok(Self { line: line.to_owned(), change: words::parse_line(line)? })
    }
}

/// The name of a port: what kind it is, and which one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortName {
    /// A tap device.
    Tap(String),
    /// A network device, by a packet socket.
    Packet(String),
}

impl PortName {
    /// The device behind it.
    pub fn device(&self) -> &str {
        let (Self::Tap(device) | Self::Packet(device)) = self;
        device
    }

    /// A port of this kind on another device: a name such as `lan%d` becomes what the kernel made of it.
    pub fn with_device(&self, device: &str) -> Self {
        match self {
            Self::Tap(_) => Self::Tap(device.to_owned()),
            Self::Packet(_) => Self::Packet(device.to_owned()),
        }
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap(device) => write!(f, "tap:{device}"),
            Self::Packet(device) => write!(f, "packet:{device}"),
        }
    }
}

impl FromStr for PortName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const KINDS: &str = "use a tap, such as tap:lan0, or a device, such as packet:eth0";
        match text.split_once(':') {
            Some(("tap", "")) => Err("a name is missing; type tap:NAME, such as tap:lan0".into()),
            Some(("packet", "")) => {
                Err("a name is missing; type packet:IFACE, such as packet:eth0".into())
            }
            Some(("tap", device)) => Ok(Self::Tap(device.to_owned())),
            Some(("packet", device)) => Ok(Self::Packet(device.to_owned())),
            Some(("pcap", _)) => Err(format!("pcap: ports are not supported yet; {KINDS}")),
            Some((kind, _)) => Err(format!("there is no kind of port called \"{kind}\"; {KINDS}")),
            None => Err(format!(
                "say what kind of port it is; for a tap type tap:{text}, for a device that is there \
                 already packet:{text}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_say_what_kind_they_are() {
        assert_eq!("tap:lan0".parse(), Ok(PortName::Tap("lan0".to_owned())));
        assert_eq!("packet:eth0".parse(), Ok(PortName::Packet("eth0".to_owned())));
        for name in ["tap:lan0", "packet:eth0.7"] {
            assert_eq!(name.parse::<PortName>().expect(name).to_string(), name);
        }
        let table = [
            ("lan0", "type tap:lan0"),
            ("eth0", "packet:eth0"),
            ("tap:", "a name is missing"),
            ("packet:", "a name is missing"),
            ("pcap:file", "not supported yet"),
            ("tun:x", "no kind of port called \"tun\""),
        ];
        for (text, message) in table {
            let error = PortName::from_str(text).expect_err(text);
            assert!(error.contains(message), "{text}: {error}");
        }
    }

    #[test]
    fn memory_that_is_limited_is_taken_from_those_that_want_most() {
        let bridge = |up: &str, down: &str| BridgePlan {
            lan: "tap:a".parse().expect("a port"),
            wan: "tap:b".parse().expect("a port"),
            up: up.parse().expect("words"),
            down: down.parse().expect("words"),
            coalesce: Coalesce::Exact,
            doorbell: Bell::Batch,
        };
        let bridges = vec![
            bridge("memlimit 1mb", "memlimit 32mb"),
            bridge("memlimit 8mb", "bandwidth 20mbit"),
        ];
        let mut plan = Plan { bridges, ..Plan::default() };
        let limits = |plan: &Plan| -> Vec<u64> {
            let configs = plan.configs();
            configs
                .iter()
                .flatten()
                .map(|config| memory_limit(config, USUAL_FRAME).0 >> 20)
                .collect()
        };
        assert_eq!(limits(&plan), [32, 1, 4, 8]);
        plan.memory = Some(MemSize(45 << 20));
        assert_eq!(limits(&plan), [32, 1, 4, 8]);
        plan.memory = Some(MemSize(17 << 20));
        assert_eq!(limits(&plan), [6, 1, 4, 6]);
        plan.memory = Some(MemSize(9 << 20));
        assert_eq!(plan.configs().len(), 2);
        assert_eq!(limits(&plan), [2, 1, 2, 2]);
    }
}
