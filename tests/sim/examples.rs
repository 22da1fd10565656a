//! The examples say what they said.

use super::golden::assert_golden;

#[allow(dead_code, reason = "its main and its picture are not called for")]
#[path = "../../examples/experiments/6-collisions.rs"]
mod collisions;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/custom_discipline.rs"]
mod custom_discipline;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/experiments/5-hosts.rs"]
mod hosts;
#[allow(dead_code, reason = "its main is not called")]
#[path = "../../examples/virtual_minute.rs"]
mod virtual_minute;

#[test]
fn a_virtual_minute_is_the_same_everywhere() {
    assert_golden("virtual_minute", &virtual_minute::minute());
}

#[test]
fn a_discipline_of_ones_own_stands_between_drop_tail_and_cake() {
    assert_golden("custom_discipline", &custom_discipline::comparison());
}

#[test]
fn hosts_share_as_in_the_document() {
    let tables = hosts::tables();
    assert_golden("hosts", &tables);
    let document = include_str!("../../docs/EXPERIMENTS.md");
    assert!(tables.lines().all(|line| document.contains(line)), "{tables}");
}

#[test]
fn flows_collide_as_they_did() {
    assert_golden("collisions", &collisions::table(40));
}
