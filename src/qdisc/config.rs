//! What can be set on a CAKE instance.
//!
//! Problem: `tc` sends only what was typed, `change` must leave the rest alone, and a configuration that
//! cannot be right should not be expressible.
//! Source: spec §2.1 (defaults), §2.4 (what is transmitted), §2.7 (`change`).
//! Law: [`Config`] is always whole and valid; a [`Change`] holds what was asked for; applying one to the
//! other gives the next whole configuration.
//! Left out: the words themselves (the command line owns them) and what is derived from a
//! configuration (each mechanism derives its own part, spec §2.6).

use crate::time::Span;
use crate::units::{MemSize, Rate};

/// A whole configuration. `Config::default()` is what `tc qdisc add … cake` gives (spec §2.1).
///
/// ```
/// use ucake::qdisc::{Config, Diffserv};
/// use ucake::units::Rate;
/// let config = Config { bandwidth: Some(Rate::from_bits(20_000_000)), ..Config::default() };
/// assert_eq!(config.diffserv, Diffserv::Diffserv3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Config {
    /// The rate to shape to; `None` is unlimited. `Some` of a zero rate counts as unlimited too.
    pub bandwidth: Option<Rate>,
    /// Estimate the rate from arrivals (spec §10).
    pub autorate_ingress: bool,
    /// How code points map to tins.
    pub diffserv: Diffserv,
    /// What is kept apart, and who is fair to whom.
    pub isolation: Isolation,
    /// Look through network address translation (spec §4.7).
    pub nat: bool,
    /// Clear the DSCP once it has chosen the tin (spec §3.5).
    pub wash: bool,
    /// Shape what has already crossed the bottleneck: dropped bytes are charged too (spec §6.5).
    pub ingress: bool,
    /// Remove ACKs that a later one makes needless (spec §8).
    pub ack_filter: AckFilter,
    /// Whether superpackets are divided.
    pub split_gso: SplitGso,
    /// With [`SplitGso::Auto`]: time of the rate that a run may take; zero is none.
    pub burst: Span,
    /// With [`SplitGso::Auto`]: for each whole such step of its smallest round-trip time, a flow's extra is
    /// halved; zero gives no flow an extra.
    pub rtt_step: Span,
    /// CoDel's interval: time for a sender to react, at least 1 µs.
    pub interval: Span,
    /// CoDel's target: acceptable standing delay, at least 1 µs.
    pub target: Span,
    /// What the link adds to each packet.
    pub overhead: Overhead,
    /// Memory limit; `None` is derived from the rate (spec §2.6).
    pub memory_limit: Option<MemSize>,
    /// Bits of the packet mark that choose the tin; 0 is none.
    pub fwmark: u32,
}

impl Config {
    /// The interval of the `internet` preset.
    pub const DEFAULT_INTERVAL: Span = Span::from_millis(100);
    /// 31 kB at 1 Gbit/s, a fraction of what a round trip across a city takes, and no more than one
    /// packet at 48 Mbit/s and below.
    pub const DEFAULT_BURST: Span = Span::from_micros(250);
    /// What Linux's TCP sizes its own superpackets by (`tcp_tso_rtt_log`): within a site the extra is
    /// nearly whole, across a country nothing.
    pub const DEFAULT_RTT_STEP: Span = Span::from_micros(512);

    /// The rate to shape to, with a rate of zero read as unlimited.
    #[must_use]
    pub fn shaped_rate(&self) -> Option<Rate> {
        self.bandwidth.filter(|rate| !rate.is_zero())
    }

    /// The configuration after `change`, as a `tc qdisc change` would leave it (spec §2.7): what was
    /// not mentioned stays.
    #[must_use]
    pub fn changed_by(mut self, change: &Change) -> Self {
        fn set<T: Copy>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        set(&mut self.nat, change.nat);
        set(&mut self.autorate_ingress, change.autorate_ingress);
        set(&mut self.bandwidth, change.bandwidth);
        set(&mut self.diffserv, change.diffserv);
        set(&mut self.wash, change.wash);
        set(&mut self.isolation, change.isolation);
        set(&mut self.overhead.link_layer, change.link_layer);
        // `raw` is applied after `overhead`, whatever the order of the words (spec §2.4).
        if let Some(bytes) = change.overhead {
            self.overhead.bytes = bytes;
            self.overhead.raw = false;
        }
        self.overhead.raw |= change.raw;
        set(&mut self.overhead.mpu, change.mpu);
        set(&mut self.interval, change.interval.map(|span| span.max(Span::from_micros(1))));
        set(&mut self.target, change.target.map(|span| span.max(Span::from_micros(1))));
        set(&mut self.ingress, change.ingress);
        set(&mut self.ack_filter, change.ack_filter);
        set(&mut self.memory_limit, change.memory_limit);
        set(&mut self.split_gso, change.split_gso);
        set(&mut self.burst, change.burst.map(|span| span.max(Span::ZERO)));
        set(&mut self.rtt_step, change.rtt_step.map(|span| span.max(Span::ZERO)));
        set(&mut self.fwmark, change.fwmark);
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bandwidth: None,
            autorate_ingress: false,
            diffserv: Diffserv::Diffserv3,
            isolation: Isolation::TripleIsolate,
            nat: false,
            wash: false,
            ingress: false,
            ack_filter: AckFilter::Off,
            split_gso: SplitGso::Split,
            burst: Self::DEFAULT_BURST,
            rtt_step: Self::DEFAULT_RTT_STEP,
            interval: Self::DEFAULT_INTERVAL,
            target: Span::from_millis(5),
            overhead: Overhead::default(),
            memory_limit: None,
            fwmark: 0,
        }
    }
}

/// What one command asked for; `None` (and `raw: false`) is "not mentioned".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Rate, or unlimited.
    pub bandwidth: Option<Option<Rate>>,
    /// Rate estimation.
    pub autorate_ingress: Option<bool>,
    /// Tin layout.
    pub diffserv: Option<Diffserv>,
    /// Isolation mode.
    pub isolation: Option<Isolation>,
    /// Look through NAT.
    pub nat: Option<bool>,
    /// DSCP clearing.
    pub wash: Option<bool>,
    /// Ingress mode.
    pub ingress: Option<bool>,
    /// ACK filter mode.
    pub ack_filter: Option<AckFilter>,
    /// Superpacket policy.
    pub split_gso: Option<SplitGso>,
    /// Time of the rate that a run may take; zero is none.
    pub burst: Option<Span>,
    /// Step of the round-trip time that halves a near flow's extra; zero gives no extra.
    pub rtt_step: Option<Span>,
    /// CoDel's interval.
    pub interval: Option<Span>,
    /// CoDel's target.
    pub target: Option<Span>,
    /// Bytes added per packet, −64…256; being set takes link-layer headers off first.
    pub overhead: Option<i16>,
    /// Keep link-layer headers in the length; wins over `overhead` in the same command.
    pub raw: bool,
    /// Smallest packet on the link, 0…256.
    pub mpu: Option<u16>,
    /// Cells or line code of the link.
    pub link_layer: Option<LinkLayer>,
    /// Memory limit; `Some(None)` returns to the automatic one.
    pub memory_limit: Option<Option<MemSize>>,
    /// Mask of the packet mark.
    pub fwmark: Option<u32>,
}

impl Change {
    /// Whether the size statistics start anew (spec §2.7: only after `overhead` or `raw`).
    #[must_use]
    pub fn resets_size_statistics(&self) -> bool {
        self.overhead.is_some() || self.raw
    }
}

/// Tin layouts (spec §3.3, §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Diffserv {
    /// Three tins: Bulk, Best Effort, Voice.
    Diffserv3,
    /// Four tins: Bulk, Best Effort, Video, Voice.
    Diffserv4,
    /// Eight tins by class of service.
    Diffserv8,
    /// One tin.
    Besteffort,
    /// Eight tins by the upper three bits (RFC 791 precedence).
    Precedence,
}

impl Diffserv {
    /// Every layout, in the numbering of netlink.
    pub const ALL: [Self; 5] =
        [Self::Diffserv3, Self::Diffserv4, Self::Diffserv8, Self::Besteffort, Self::Precedence];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Diffserv3 => "diffserv3",
            Self::Diffserv4 => "diffserv4",
            Self::Diffserv8 => "diffserv8",
            Self::Besteffort => "besteffort",
            Self::Precedence => "precedence",
        }
    }
}

/// Isolation modes (spec §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Isolation {
    /// One queue.
    Flowblind,
    /// A queue per source host.
    Srchost,
    /// A queue per destination host.
    Dsthost,
    /// A queue per pair of hosts.
    Hosts,
    /// A queue per flow.
    Flows,
    /// A queue per flow, fair between source hosts.
    DualSrchost,
    /// A queue per flow, fair between destination hosts.
    DualDsthost,
    /// A queue per flow, fair between hosts on both sides.
    TripleIsolate,
}

impl Isolation {
    /// Every mode, in the numbering of netlink: bit 0 source, bit 1 destination, bit 2 flow.
    pub const ALL: [Self; 8] = [
        Self::Flowblind,
        Self::Srchost,
        Self::Dsthost,
        Self::Hosts,
        Self::Flows,
        Self::DualSrchost,
        Self::DualDsthost,
        Self::TripleIsolate,
    ];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flowblind => "flowblind",
            Self::Srchost => "srchost",
            Self::Dsthost => "dsthost",
            Self::Hosts => "hosts",
            Self::Flows => "flows",
            Self::DualSrchost => "dual-srchost",
            Self::DualDsthost => "dual-dsthost",
            Self::TripleIsolate => "triple-isolate",
        }
    }

    /// Whether source hosts matter at all.
    #[must_use]
    pub const fn by_source(self) -> bool {
        matches!(self, Self::Srchost | Self::Hosts | Self::DualSrchost | Self::TripleIsolate)
    }

    /// Whether destination hosts matter at all.
    #[must_use]
    pub const fn by_destination(self) -> bool {
        matches!(self, Self::Dsthost | Self::Hosts | Self::DualDsthost | Self::TripleIsolate)
    }

    /// Whether each flow has a queue of its own.
    #[must_use]
    pub const fn by_flow(self) -> bool {
        matches!(self, Self::Flows | Self::DualSrchost | Self::DualDsthost | Self::TripleIsolate)
    }

    /// Whether flows share by source host.
    #[must_use]
    pub const fn fair_by_source(self) -> bool {
        self.by_flow() && self.by_source()
    }

    /// Whether flows share by destination host.
    #[must_use]
    pub const fn fair_by_destination(self) -> bool {
        self.by_flow() && self.by_destination()
    }
}

/// ACK filter modes (spec §8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum AckFilter {
    /// Every ACK passes.
    #[default]
    Off,
    /// The last needless ACK before a new one stays.
    Conservative,
    /// It may go too.
    Aggressive,
}

/// What becomes of superpackets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum SplitGso {
    /// Every decision is taken per segment (`split-gso`).
    #[default]
    Split,
    /// A superpacket is one packet (`no-split-gso`).
    Whole,
    /// Decided per segment, but segments of one superpacket may leave together, within a budget
    /// (`auto-split-gso`, which is ours).
    Auto,
}

impl SplitGso {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Split, Self::Whole, Self::Auto];

    /// Whether every decision is taken per segment.
    #[must_use]
    pub const fn divides(self) -> bool {
        matches!(self, Self::Split | Self::Auto)
    }
}

/// What the link adds to each packet (spec §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Overhead {
    /// Bytes added, −64…256.
    pub bytes: i16,
    /// Smallest packet on the link.
    pub mpu: u16,
    /// Cells or line code.
    pub link_layer: LinkLayer,
    /// Count link-layer headers as they come instead of taking them off first.
    pub raw: bool,
}

impl Default for Overhead {
    fn default() -> Self {
        Self { bytes: 0, mpu: 0, link_layer: LinkLayer::Noatm, raw: true }
    }
}

/// How the link carries a packet (spec §7.1 step 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum LinkLayer {
    /// As it is.
    #[default]
    Noatm,
    /// In 53-byte cells that carry 48.
    Atm,
    /// In 65 octets for each 64 (VDSL2).
    Ptm,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isolation_bits_are_those_of_netlink() {
        for (number, mode) in Isolation::ALL.into_iter().enumerate() {
            assert_eq!(mode.by_source(), number & 1 != 0, "{}", mode.name());
            assert_eq!(mode.by_destination(), number & 2 != 0, "{}", mode.name());
            assert_eq!(mode.by_flow(), number & 4 != 0, "{}", mode.name());
            assert_eq!(mode.fair_by_source(), number & 5 == 5, "{}", mode.name());
            assert_eq!(mode.fair_by_destination(), number & 6 == 6, "{}", mode.name());
        }
    }

    #[test]
    fn raw_wins_over_overhead_of_the_same_command_but_keeps_its_number() {
        let change = Change { overhead: Some(10), raw: true, ..Change::default() };
        let overhead = Config::default().changed_by(&change).overhead;
        assert!(overhead.raw);
        assert_eq!(overhead.bytes, 10);
    }

    #[test]
    fn a_change_leaves_alone_what_it_does_not_mention() {
        let first = Change { overhead: Some(128), mpu: Some(256), ..Change::default() };
        let second = Change { mpu: Some(128), ..Change::default() };
        let config = Config::default().changed_by(&first).changed_by(&second);
        assert_eq!(config.overhead.bytes, 128);
        assert_eq!(config.overhead.mpu, 128);
        assert!(!config.overhead.raw);
    }

    #[test]
    fn neither_burst_nor_step_is_negative() {
        let negative = Some(Span::from_micros(-1));
        let change = Change { burst: negative, rtt_step: negative, ..Change::default() };
        let config = Config::default().changed_by(&change);
        assert_eq!((config.burst, config.rtt_step), (Span::ZERO, Span::ZERO));
    }

    #[test]
    fn interval_and_target_are_at_least_a_microsecond() {
        let change =
            Change { interval: Some(Span::ZERO), target: Some(Span::ZERO), ..Change::default() };
        let config = Config::default().changed_by(&change);
        assert_eq!(config.interval, Span::from_micros(1));
        assert_eq!(config.target, Span::from_micros(1));
    }
}
