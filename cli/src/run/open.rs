//! From names to descriptors.
//!
//! Problem: whatever can fail for want of rights, devices or room is to fail before any frame is handled.
//! Law: everything that a bridge needs is opened here, once, and put to work elsewhere ([`crate::work`]).
//! Left out: the control socket ([`crate::control`]).

use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;
use ucake::io::netlink;
use ucake::io::packet_socket::PacketSocket;
use ucake::io::plain_tap::AnyTap;
use ucake::io::tap::{OpenError, TapOptions};
use ucake::qdisc::{Config, Stats};
use ucake_cli::plan::{BridgePlan, PortName};
use ucake_cli::protocol::State;

use crate::control::following;
use crate::supervise::state::{BridgeId, KeptBridge, KeptCounts, KeptPort, PortKind};

/// Bytes of an Ethernet header, which an MTU does not count.
const ETHERNET_LEN: u32 = 14;
/// The MTU of a device that does not tell.
const USUAL_MTU: u32 = 1500;
/// How long something may be held by one that is ending; far less is usual.
const LETTING_GO: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(5);

/// A bridge whose ports are open.
pub(crate) type Opened = (KeptBridge, [OwnedFd; 2]);

/// Opens both ports of a bridge, through which is to leave what `configs` say, LAN first. What leaves through WAN gets
/// `handle`, what leaves through LAN the one after it. What is held already is not opened again.
pub(crate) fn open(
    plan: &BridgePlan,
    configs: [Config; 2],
    id: BridgeId,
    handle: u16,
    held: impl Fn(&PortName) -> Option<(KeptPort, OwnedFd)>,
) -> anyhow::Result<Opened> {
    let port = |name: &PortName, config, handle| match held(name) {
        Some((port, fd)) => Ok((fresh(port, config, handle), fd)),
        None => open_port(name, config, handle),
    };
    let [down, up] = configs;
    let (lan, lan_fd) = port(&plan.lan, down, following(handle))?;
    let (wan, wan_fd) = port(&plan.wan, up, handle)?;
    let BridgePlan { coalesce, doorbell, .. } = *plan;
    let kept = KeptBridge { id, ports: [lan, wan], asked: configs, coalesce, doorbell };
    Ok((kept, [lan_fd, wan_fd]))
}

/// A port that is open, with another discipline.
fn fresh(port: KeptPort, config: Config, handle: u16) -> KeptPort {
    KeptPort { handle, state: cake(config), ..port }
}

/// CAKE that has not counted anything yet.
pub(crate) fn cake(config: Config) -> State {
    State::Cake { config, stats: Box::new(Stats::default()), queues: None }
}

/// Opens a port through which CAKE is to leave.
fn open_port(name: &PortName, config: Config, handle: u16) -> anyhow::Result<(KeptPort, OwnedFd)> {
    let (name, kind, fd) = match name {
        PortName::Tap(device) => open_tap(name, device)?,
        PortName::Packet(device) => {
            let socket = PacketSocket::open(device)?;
            let kind = PortKind::Packet { index: socket.index(), mtu: socket.mtu() };
            (name.clone(), kind, socket.as_fd().try_clone_to_owned()?)
        }
    };
    let mtu = netlink::link(name.device()).map_or(USUAL_MTU, |link| link.mtu);
    let port = KeptPort {
        name,
        kind,
        largest_frame: mtu + ETHERNET_LEN,
        handle,
        state: cake(config),
        counts: KeptCounts::default(),
        lost: None,
        aside: None,
    };
    Ok((port, fd))
}

fn open_tap(name: &PortName, device: &str) -> anyhow::Result<(PortName, PortKind, OwnedFd)> {
    let open = || AnyTap::open(device, &TapOptions::default());
    let tap = patiently(open, |error| matches!(error, OpenError::Busy { .. }))?;
    let kind = match &tap {
        AnyTap::Vnet(tap) => PortKind::Tap { offloads: tap.offloads() },
        AnyTap::Plain(_) => {
            warn!(port = %name, "no vnet header on this system: frames one by one, without superpackets");
            PortKind::PlainTap
        }
    };
    Ok((name.with_device(tap.name()), kind, tap.as_fd().try_clone_to_owned()?))
}

/// Tries again for a moment what somebody else holds: whoever works for a ucake that was just killed has yet to notice
/// and to let go.
pub(crate) fn patiently<T, E>(
    attempt: impl Fn() -> Result<T, E>,
    is_held: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(error) if is_held(&error) && begun.elapsed() < LETTING_GO => thread::sleep(LOOK),
            outcome => return outcome,
        }
    }
}
