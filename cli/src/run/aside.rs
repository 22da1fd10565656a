//! The host stands aside on the devices of a plan, for as long as they are in it.
//!
//! Law: done once everything is open and the end is watched for, undone at every end that can be noticed. What cannot be
//! done is told, and no reason not to shape.
//! Left out: what it means for a device (`ucake::io::aside`).

use tracing::{debug, warn};
use ucake::io::aside::{Aside, AsideError, Habit, stand_aside as on_device};
use ucake_cli::plan::PortName;

use crate::supervise::state::{KeptBridge, KeptPort};

/// On every device that is heard by a packet socket, unless that was done before.
pub(crate) fn stand_aside(bridges: &mut [KeptBridge]) {
    for port in bridges.iter_mut().flat_map(|bridge| &mut bridge.ports) {
        if let (PortName::Packet(device), None) = (&port.name, &port.aside) {
            let (aside, errors) = on_device(device);
            debug!(port = %port.name, ?aside, "the host stands aside");
            errors.iter().for_each(tell);
            port.aside = Some(aside);
        }
    }
}

fn tell(error: &AsideError) {
    match error {
        AsideError::Addresses { .. } => {
            warn!(reason = %error, "the host does not stand aside; take its addresses away (ip address flush)");
        }
        AsideError::Refused { habit: Habit::Arp | Habit::Ipv6, .. } => {
            warn!(reason = %error, "the host takes part in what it forwards");
        }
        _ => warn!(reason = %error, "the host does not stand aside"),
    }
}

/// Puts back what was changed.
pub(crate) fn undo(bridges: &[KeptBridge]) {
    undo_unless(bridges, |_| false);
}

/// The same on devices that are not in the plan any more.
pub(crate) fn undo_gone(before: &[KeptBridge], now: &[KeptBridge]) {
    let is_there = |port: &KeptPort| {
        now.iter().flat_map(|bridge| &bridge.ports).any(|other| other.name == port.name)
    };
    undo_unless(before, is_there);
}

fn undo_unless(bridges: &[KeptBridge], stays: impl Fn(&KeptPort) -> bool) {
    let ports = bridges.iter().flat_map(|bridge| &bridge.ports).filter(|port| !stays(port));
    for error in ports.filter_map(|port| port.aside.as_ref()).flat_map(Aside::undo) {
        warn!(reason = %error, "not everything could be put back");
    }
}
