//! The dynamic comparison without the kernel: what `tests/oracle/run --record --dynamic` kept is still within
//! bounds, and ucake as it is today, on virtual time, does what the kernel did under the same load.
//!
//! Source: `data/dynamic.txt` (numbers), `dynamic.sh` (configurations and flows: its own lines are read).
//! Law: a virtual run has the flows of the real one, its echoes, its spans and its bounds, and three seeds
//! where the real one had three rounds.
//! Left out, and so left to the live run: all that TCP decides. A virtual sender keeps its queue
//! standing whatever is dropped, and always has something to send; it has no sawtooth. So it says nothing of
//! drops and marks of TCP flows, nor of a rate that one flow alone does not fill; and it gets all of a
//! host's half where real TCP, whose queue runs dry after a cut, gets 47 %. Echoes are sent and not compared:
//! of their 21 ms the path makes 20.

use std::collections::BTreeMap;

use ucake::packet::{Ecn, Meta, truesize};
use ucake::qdisc::{Cake, Config, Departure, Entropy};
use ucake::sim::{Constant, Report, SimFrame, Source, World, flow};
use ucake::time::{Instant, Span};
use ucake::units::FrameLen;

use crate::bounds::{self, Row};
use crate::words::parse_line;

const RECORD: &str = include_str!("data/dynamic.txt");
const SCENARIOS: &str = include_str!("dynamic.sh");

/// Rounds of a recording, and seeds.
const ROUNDS: u64 = 3;

/// Here the kernel's numbers are what TCP made of its queue, and nothing else shares it.
const TCP_DECIDES: [&str; 4] = ["one-flow", "four-flows", "four-flows-ecn", "sixteen-flows"];

/// A line of `dynamic.sh`.
struct Scenario {
    name: &'static str,
    /// Whether TCP asks for ECN.
    ecn: bool,
    words: &'static str,
    flows: Vec<Flows>,
}

/// `tcp:CLIENT:SERVER:COUNT:TOS` or `udp:CLIENT:SERVER:BITS:TOS`.
struct Flows {
    tcp: bool,
    client: u32,
    server: u32,
    /// How many flows, or bits per second.
    amount: u64,
    tos: u8,
}

impl Scenario {
    fn all() -> Vec<Self> {
        let lines = SCENARIOS.lines().filter_map(|line| line.trim().strip_prefix("scenario "));
        lines.map(|line| Self::read(line).expect("NAME ECN 'WORDS' FLOWS")).collect()
    }

    fn read(line: &'static str) -> Option<Self> {
        let [first, words, flows] = line.split('\'').collect::<Vec<_>>()[..] else { return None };
        let (name, ecn) = first.trim().split_once(' ')?;
        let flows = flows.split_whitespace().map(Flows::read).collect::<Option<_>>()?;
        Some(Self { name, ecn: ecn == "1", words, flows })
    }

    fn is_flood(&self) -> bool {
        self.flows.iter().all(|flows| !flows.tcp)
    }

    /// What a run of this seed comes to, by the names of the record.
    fn answer(&self, seed: u64) -> BTreeMap<String, f64> {
        let (warm, measured) = spans();
        // Runs are the same every time: what the whole has beyond its beginning was measured.
        let (before, _) = self.world(seed).run(warm);
        let (whole, cake) = self.world(seed).run(warm + measured);
        let stats = cake.stats();
        let marks = stats.tins.iter().map(|tin| tin.marks).sum();
        let mut answer = BTreeMap::from([
            ("drops".to_owned(), figure(stats.dropped)),
            ("marks".to_owned(), figure(marks)),
        ]);
        let arrived: Vec<f64> = (self.flows.iter().enumerate())
            .map(|(number, flows)| {
                let packets = delivered(&whole, number) - delivered(&before, number);
                figure(packets * flows.payload() * 8) / measured.secs_f64() / 1e6
            })
            .collect();
        let total: f64 = arrived.iter().sum();
        answer.insert("goodput_mbit".to_owned(), total);
        for (one, number) in arrived.iter().zip(1..) {
            answer.insert(format!("share_{number}"), one * 100.0 / total);
        }
        answer
    }

    fn world(&self, seed: u64) -> World<Cake<SimFrame>> {
        let change = parse_line(self.words).expect("words of cake");
        let config = Config::default().changed_by(&change);
        let mut world = World::new(Cake::new(config, FrameLen(1514), Entropy::from_seed(seed)));
        for (number, flows) in self.flows.iter().enumerate() {
            flows.join(&mut world, number, self.ecn);
        }
        let echo = flow(0).between(209, 9);
        // As soon as the last is back.
        world.add("echo", Constant::new(echo, FrameLen(46), Span::from_millis(21)));
        world
    }
}

impl Flows {
    fn read(text: &str) -> Option<Self> {
        let [kind, client, server, amount, tos] = text.split(':').collect::<Vec<_>>()[..] else {
            return None;
        };
        Some(Self {
            tcp: kind == "tcp",
            client: client.parse().ok()?,
            server: server.parse().ok()?,
            amount: amount.parse().ok()?,
            tos: tos.parse().ok()?,
        })
    }

    /// Bytes that a program gets of a packet: TCP with time stamps, or a datagram of the flood.
    fn payload(&self) -> u64 {
        if self.tcp { 1448 } else { 1250 }
    }

    /// Adds the senders, by the `number` of their kind.
    fn join(&self, world: &mut World<Cake<SimFrame>>, number: usize, ecn: bool) {
        let name = number.to_string();
        let capable = if self.tcp { ecn } else { self.tos & 3 == 2 };
        let packet = flow(0)
            .between(self.server, self.client)
            .with_dscp(self.tos >> 2)
            .with_ecn(if capable { Ecn::Ect0 } else { Ecn::NotEct });
        if !self.tcp {
            let every = Span::from_millis(1);
            let count = self.amount / 8 / self.payload() / 1000;
            world.add(&name, Flood { packet: charged(packet, 1292), count, every });
            return;
        }
        for port in 0..u16::try_from(self.amount).expect("a handful") {
            let mut packet = charged(packet, 1514);
            packet.flow.source_port = port;
            world.add(&name, Standing { packet, missing: 4, next_sequence: 0 });
        }
    }
}

/// With the memory that the program charges, which is the kernel's: when a flood meets
/// the memory limit decides what is dropped, and how.
fn charged(packet: Meta, len: u16) -> Meta {
    let len = FrameLen(len.into());
    Meta { truesize: truesize(len), ..packet.with_len(len) }
}

/// Sends as `load.rs` does: what is due, then it naps.
struct Flood {
    packet: Meta,
    count: u64,
    every: Span,
}

impl Source for Flood {
    fn due(&mut self, outbox: &mut Vec<Meta>, now: Instant) -> Option<Instant> {
        outbox.extend((0..self.count).map(|_| self.packet));
        Some(now + self.every)
    }
}

/// Always has a few packets queued: one more for each that was delivered, and for each that was dropped.
struct Standing {
    packet: Meta,
    missing: u64,
    next_sequence: u64,
}

impl Source for Standing {
    fn due(&mut self, outbox: &mut Vec<Meta>, _now: Instant) -> Option<Instant> {
        outbox.extend((0..std::mem::take(&mut self.missing)).map(|_| self.packet));
        None
    }

    fn delivered(&mut self, departure: &Departure<SimFrame>, now: Instant) -> Option<Instant> {
        let next = departure.frame.sequence + 1;
        self.missing += next - self.next_sequence;
        self.next_sequence = next;
        Some(now)
    }
}

/// Packets that flows of this number brought.
fn delivered(report: &Report, number: usize) -> u64 {
    let name = number.to_string();
    report.sources.iter().filter(|one| one.name == name).map(|one| one.delivered).sum()
}

/// How long the recorded runs settled and were measured; their first line says it.
fn spans() -> (Span, Span) {
    let line = RECORD.lines().next().unwrap_or_default();
    let seconds = |key: &str| {
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(key));
        Span::from_secs(value.and_then(|value| value.parse().ok()).expect("seconds"))
    };
    (seconds("WARM="), seconds("MEASURE="))
}

fn rows() -> Vec<Row<'static>> {
    bounds::rows(RECORD).expect("lines of SCENARIO SIDE KEY VALUE")
}

#[expect(clippy::cast_precision_loss, reason = "a figure to look at")]
fn figure(count: u64) -> f64 {
    count as f64
}

/// What of `key` may be compared is compared, in each scenario that TCP does not decide.
fn check_on_virtual_time(compared: fn(&Scenario, &str) -> bool) {
    let scenarios = Scenario::all();
    let ours: BTreeMap<&str, Vec<_>> = (scenarios.iter())
        .filter(|scenario| !TCP_DECIDES.contains(&scenario.name))
        .map(|scenario| (scenario.name, (1..=ROUNDS).map(|seed| scenario.answer(seed)).collect()))
        .collect();
    let mut rows = rows();
    rows.retain(|row| {
        let scenario = scenarios.iter().find(|scenario| scenario.name == row.scenario);
        ours.contains_key(row.scenario) && compared(scenario.expect("a scenario"), row.key)
    });
    for row in &mut rows {
        row.ucake = ours[row.scenario].iter().map(|answer| answer[row.key]).collect();
    }
    assert!(!rows.is_empty(), "something is compared");
    assert_agree("on virtual time", &rows);
}

fn assert_agree(when: &str, rows: &[Row<'_>]) {
    let line = |row: &Row<'_>| {
        let (kernel, ucake) = row.medians();
        let allowed = bounds::allowed(row.scenario, row.key, kernel);
        let (name, key) = (row.scenario, row.key);
        format!("load {name}, {key}: kernel {kernel:.2}, ucake {when} {ucake:.2} (±{allowed:.2})")
    };
    rows.iter().for_each(|row| println!("{}", line(row)));
    let wrong: Vec<String> = rows.iter().filter(|row| !row.agrees()).map(line).collect();
    crate::write_report(&format!("load {when}.wrong"), &wrong.join("\n"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn under_load_ucake_agreed_with_the_kernel_in_three_rounds_of_every_scenario() {
    let rows = rows();
    for scenario in Scenario::all() {
        for key in ["goodput_mbit", "ping_mean_ms", "drops", "marks"] {
            let row = rows.iter().find(|row| (row.scenario, row.key) == (scenario.name, key));
            let rounds = row.map(|row| (row.kernel.len(), row.ucake.len()));
            assert_eq!(rounds, Some((3, 3)), "rounds of {}, {key}", scenario.name);
        }
    }
    assert_agree("as recorded", &rows);
}

#[test]
fn hosts_flows_and_tins_share_on_virtual_time_as_in_the_kernel_under_load() {
    check_on_virtual_time(|_, key| key == "goodput_mbit" || key.starts_with("share_"));
}

#[test]
fn a_flood_loses_and_has_marked_on_virtual_time_as_much_as_in_the_kernel() {
    check_on_virtual_time(|scenario, key| scenario.is_flood() && matches!(key, "drops" | "marks"));
}
