//! The table itself: every word, what it takes, what it does, and whether ucake does it yet.

use std::fmt::Write as _;

use ucake::qdisc::{AckFilter, Diffserv, Isolation, LinkLayer, SplitGso};

/// One word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// As typed.
    pub name: &'static str,
    /// Another spelling, which help mentions.
    pub synonym: Option<&'static str>,
    /// What follows it.
    pub value: Value,
    /// Whether this is what holds when nothing is said.
    pub default: bool,
    /// One line of help.
    pub help: &'static str,
    /// What it does to the request.
    pub effect: Effect,
}

/// What follows a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Nothing,
    /// A rate such as `20mbit`.
    Rate,
    /// A time such as `100ms`.
    Time,
    /// A size such as `4mb`.
    Size,
    /// A decimal integer in a range.
    Integer {
        /// Smallest allowed.
        min: i16,
        /// Largest allowed.
        max: i16,
    },
    /// A 32-bit mask such as `0xff00`.
    Mask,
}

impl Value {
    /// How help writes it.
    pub const fn placeholder(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Rate => "RATE",
            Self::Time => "TIME",
            Self::Size => "SIZE",
            Self::Integer { .. } => "N",
            Self::Mask => "MASK",
        }
    }
}

/// What a word does to the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Sets the rate.
    Bandwidth,
    /// Takes the rate away.
    Unlimited,
    /// Estimates the rate.
    AutorateIngress,
    /// Sets interval and target.
    Rtt,
    /// Sets interval and target to those for a round trip of so many microseconds.
    RttPreset(u32),
    /// Chooses the tins.
    Diffserv(Diffserv),
    /// Chooses what is kept apart.
    Isolation(Isolation),
    /// Looks through NAT, or not.
    Nat(bool),
    /// Clears the DSCP, or not.
    Wash(bool),
    /// Divides superpackets, or not.
    SplitGso(SplitGso),
    /// Sets how long a run may take.
    Burst,
    /// Sets what halves a near flow's extra.
    RttStep,
    /// Removes needless ACKs, or not.
    AckFilter(AckFilter),
    /// Shapes what has crossed the bottleneck already, or not.
    Ingress(bool),
    /// Sets the memory limit.
    MemoryLimit,
    /// Sets the mask of the packet mark.
    Fwmark,
    /// Sets the overhead.
    Overhead,
    /// Sets the smallest packet.
    Mpu,
    /// Sets cells or line code.
    LinkLayer(LinkLayer),
    /// Counts frames as they come.
    Raw,
    /// Assumes the worst of DSL.
    Conservative,
    /// Adds a link's overhead.
    LinkPreset(LinkPreset),
    /// Does nothing, as in `tc`.
    Ignored,
}

/// What a link preset does besides marking the overhead as set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPreset {
    /// Bytes it adds.
    pub adds: i16,
    /// Smallest packet it sets.
    pub mpu: Option<u16>,
    /// Cells or line code it sets.
    pub link_layer: Option<LinkLayer>,
}

/// Words that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Heading in the help.
    pub title: &'static str,
    /// The words, in the order of the help.
    pub words: &'static [Word],
}

const fn word(name: &'static str, effect: Effect, help: &'static str) -> Word {
    Word { name, synonym: None, value: Value::Nothing, default: false, help, effect }
}

impl Word {
    const fn takes(self, value: Value) -> Self {
        Self { value, ..self }
    }

    const fn by_default(self) -> Self {
        Self { default: true, ..self }
    }

    const fn also(self, synonym: &'static str) -> Self {
        Self { synonym: Some(synonym), ..self }
    }
}

const fn adds(adds: i16, link_layer: Option<LinkLayer>) -> Effect {
    Effect::LinkPreset(LinkPreset { adds, mpu: None, link_layer })
}

const fn adds_with_mpu(adds: i16, mpu: u16, link_layer: Option<LinkLayer>) -> Effect {
    Effect::LinkPreset(LinkPreset { adds, mpu: Some(mpu), link_layer })
}

const ATM: Option<LinkLayer> = Some(LinkLayer::Atm);
const PTM: Option<LinkLayer> = Some(LinkLayer::Ptm);

/// Every word there is.
pub const GROUPS: &[Group] = &[
    Group {
        title: "Rate",
        words: &[
            word("bandwidth", Effect::Bandwidth, "shape to this rate; below what the link carries")
                .takes(Value::Rate),
            word("unlimited", Effect::Unlimited, "do not shape").by_default(),
            word(
                "autorate-ingress",
                Effect::AutorateIngress,
                "estimate the rate from what arrives (say it after bandwidth)",
            ),
        ],
    },
    Group {
        title: "Round-trip time: how long senders are given to react",
        words: &[
            word("rtt", Effect::Rtt, "interval; the target is a twentieth of it")
                .takes(Value::Time),
            word("datacentre", Effect::RttPreset(100), "100us"),
            word("lan", Effect::RttPreset(1_000), "1ms"),
            word("metro", Effect::RttPreset(10_000), "10ms"),
            word("regional", Effect::RttPreset(30_000), "30ms"),
            word("internet", Effect::RttPreset(100_000), "100ms").by_default(),
            word("oceanic", Effect::RttPreset(300_000), "300ms"),
            word("satellite", Effect::RttPreset(1_000_000), "1s"),
            word("interplanetary", Effect::RttPreset(1_000_000_000), "1000s"),
        ],
    },
    Group {
        title: "Tins: how DSCP is heeded",
        words: &[
            word("besteffort", Effect::Diffserv(Diffserv::Besteffort), "one tin, DSCP unheeded"),
            word(
                "precedence",
                Effect::Diffserv(Diffserv::Precedence),
                "eight tins by IP precedence (outdated)",
            ),
            word(
                "diffserv3",
                Effect::Diffserv(Diffserv::Diffserv3),
                "three tins: Bulk, Best Effort, Voice",
            )
            .by_default(),
            word(
                "diffserv4",
                Effect::Diffserv(Diffserv::Diffserv4),
                "four tins: Bulk, Best Effort, Video, Voice",
            )
            .also("diffserv"),
            word("diffserv8", Effect::Diffserv(Diffserv::Diffserv8), "eight tins by class"),
        ],
    },
    Group {
        title: "Isolation: what shares equally",
        words: &[
            word("flowblind", Effect::Isolation(Isolation::Flowblind), "nothing: one queue"),
            word("srchost", Effect::Isolation(Isolation::Srchost), "source hosts"),
            word("dsthost", Effect::Isolation(Isolation::Dsthost), "destination hosts"),
            word("hosts", Effect::Isolation(Isolation::Hosts), "pairs of hosts"),
            word("flows", Effect::Isolation(Isolation::Flows), "flows"),
            word(
                "dual-srchost",
                Effect::Isolation(Isolation::DualSrchost),
                "source hosts, and flows within each",
            ),
            word(
                "dual-dsthost",
                Effect::Isolation(Isolation::DualDsthost),
                "destination hosts, and flows within each",
            ),
            word(
                "triple-isolate",
                Effect::Isolation(Isolation::TripleIsolate),
                "hosts on both sides, and flows within each",
            )
            .by_default(),
            word("nat", Effect::Nat(true), "tell hosts apart behind address translation"),
            word("nonat", Effect::Nat(false), "take addresses as they stand").by_default(),
        ],
    },
    Group {
        title: "Packets",
        words: &[
            word("wash", Effect::Wash(true), "clear the DSCP of what leaves"),
            word("nowash", Effect::Wash(false), "leave the DSCP alone").by_default(),
            word(
                "split-gso",
                Effect::SplitGso(SplitGso::Split),
                "decide segment by segment within superpackets",
            )
            .by_default(),
            word(
                "no-split-gso",
                Effect::SplitGso(SplitGso::Whole),
                "treat a superpacket as one packet (less work, more delay)",
            ),
            word(
                "auto-split-gso",
                Effect::SplitGso(SplitGso::Auto),
                "decide segment by segment, send several in one go (ours)",
            ),
            word("burst", Effect::Burst, "auto-split-gso: time a go may take; 250us, 0 is none")
                .takes(Value::Time),
            word(
                "rtt-step",
                Effect::RttStep,
                "auto-split-gso: near flows' extra, halved per step of rtt; 512us, 0 is none",
            )
            .takes(Value::Time),
            word(
                "ack-filter",
                Effect::AckFilter(AckFilter::Conservative),
                "drop ACKs that a later one repeats",
            ),
            word(
                "ack-filter-aggressive",
                Effect::AckFilter(AckFilter::Aggressive),
                "drop more of them",
            ),
            word("no-ack-filter", Effect::AckFilter(AckFilter::Off), "keep every ACK").by_default(),
            word(
                "ingress",
                Effect::Ingress(true),
                "the bottleneck lies before us: dropped bytes count too",
            ),
            word("egress", Effect::Ingress(false), "the bottleneck lies behind us").by_default(),
            word("memlimit", Effect::MemoryLimit, "memory for queued packets; 0 is automatic")
                .takes(Value::Size),
            word(
                "fwmark",
                Effect::Fwmark,
                "bits of the packet mark that choose the tin; 0 is none",
            )
            .takes(Value::Mask),
        ],
    },
    Group {
        title: "Overhead: what the link adds to each packet",
        words: &[
            word("overhead", Effect::Overhead, "bytes per packet, -64 to 256")
                .takes(Value::Integer { min: -64, max: 256 }),
            word("mpu", Effect::Mpu, "smallest packet on the link, 0 to 256; 0 is none")
                .takes(Value::Integer { min: 0, max: 256 }),
            word("atm", Effect::LinkLayer(LinkLayer::Atm), "53-byte cells that carry 48"),
            word("ptm", Effect::LinkLayer(LinkLayer::Ptm), "65 octets for 64 (VDSL2)"),
            word("noatm", Effect::LinkLayer(LinkLayer::Noatm), "neither").by_default(),
            word("raw", Effect::Raw, "count frames as they come, headers and all").by_default(),
            word("conservative", Effect::Conservative, "overhead 48 atm: more than any DSL"),
        ],
    },
    Group {
        title: "Overhead presets: they add to the overhead given before them",
        words: &[
            word("ethernet", adds_with_mpu(38, 84, None), "38, mpu 84"),
            word("ether-vlan", adds(4, None), "4: one VLAN tag more"),
            word(
                "docsis",
                adds_with_mpu(18, 64, Some(LinkLayer::Noatm)),
                "18, mpu 64, noatm: cable",
            ),
            word("pppoe-ptm", adds(30, PTM), "30, ptm: VDSL2 with PPPoE"),
            word("bridged-ptm", adds(22, PTM), "22, ptm: VDSL2"),
            word("ipoa-vcmux", adds(8, ATM), "8, atm: ADSL"),
            word("ipoa-llcsnap", adds(16, ATM), "16, atm"),
            word("bridged-vcmux", adds(24, ATM), "24, atm"),
            word("bridged-llcsnap", adds(32, ATM), "32, atm"),
            word("pppoa-vcmux", adds(10, ATM), "10, atm"),
            word("pppoa-llc", adds(14, ATM), "14, atm"),
            word("pppoe-vcmux", adds(32, ATM), "32, atm"),
            word("pppoe-llcsnap", adds(40, ATM), "40, atm"),
            word("via-ethernet", Effect::Ignored, "taken and ignored, for old scripts"),
        ],
    },
];

/// Every word, in the order of the help.
pub fn words() -> impl Iterator<Item = &'static Word> {
    GROUPS.iter().flat_map(|group| group.words)
}

/// The word of this spelling.
pub fn find(spelling: &str) -> Option<&'static Word> {
    words().find(|word| word.name == spelling || word.synonym == Some(spelling))
}

/// How values are written.
pub const UNITS: &str = "\
Rates: a number with bit, kbit, mbit, gbit, tbit (1000s), kibit, mibit … (1024s); the same
with bps are BYTES per second: 20mbps is 160mbit. Times: us, ms, s. Sizes: k, m, g (1024s).
A unit follows its number without a space: 20mbit.";

/// The table as text.
pub fn help() -> String {
    let mut text = String::new();
    for Group { title, words } in GROUPS {
        let _ = writeln!(text, "{title}");
        for word in *words {
            let left = format!("{} {}", word.name, word.value.placeholder());
            let _ = write!(text, "  {left:<22} {}", word.help);
            if let Some(synonym) = word.synonym {
                let _ = write!(text, " (also: {synonym})");
            }
            let remark = if word.default { " [default]" } else { "" };
            let _ = writeln!(text, "{remark}");
        }
        text.push('\n');
    }
    text + UNITS + "\n"
}
