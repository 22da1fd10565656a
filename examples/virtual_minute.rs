//! A minute of a household on 20 Mbit/s, in virtual time: two uploads, a backup that comes for a while, a call.
//!
//! `cargo run --example virtual_minute`: the same table on every machine, at once.

use ucake::qdisc::{Cake, Config, Entropy};
use ucake::sim::{Constant, Reno, Source as _, World, flow};
use ucake::time::Span;
use ucake::units::{FrameLen, Rate};

fn main() {
    print!("{}", minute());
}

pub(crate) fn minute() -> String {
    let config = Config { bandwidth: Some(Rate::from_bits(20_000_000)), ..Config::default() };
    let mut world = World::new(Cake::new(config, FrameLen(1514), Entropy::from_seed(1)));
    world.add("upload near", Reno::new(flow(1), Span::from_millis(20)));
    world.add("upload far", Reno::new(flow(2), Span::from_millis(80)));
    let backup = Reno::new(flow(3).with_dscp(8), Span::from_millis(20));
    world.add("backup", backup.during(Span::from_secs(20), Span::from_secs(40)));
    let call = Constant::new(flow(4).with_dscp(46), FrameLen(214), Span::from_millis(20));
    world.add("call", call);
    let (report, cake) = world.run(Span::from_secs(60));
    let (total, dropped) = (report.bits_per_second() / 1e6, cake.stats().dropped);
    format!("{report}{total:.2} Mbit/s in all, {dropped} packets dropped\n")
}
