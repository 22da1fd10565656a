//! The configuration file has changed.
//!
//! Problem: a line that is in use is to be changed without a packet being lost, and a mistake in a file must not take
//! it down.
//! Law: everything that can fail comes first: the file is read whole, and all that is new in it is opened. Only then
//! anything changes. What is as it was in the file is not touched, even if somebody changed it otherwise since.
//! A bridge is the same one if its ports and the way they work are; other words change it while it runs. A port that
//! goes from one bridge to another stays open.
//! Left out: the control socket and the user, which stay as they were when the supervisor started.

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::Context as _;
use ucake::qdisc::Config;
use ucake_cli::plan::{BridgePlan, LogLevel, PortName};
use ucake_cli::protocol::State;

use super::state::{BridgeId, Kept, KeptBridge, KeptPort, Order};
use crate::run;
use crate::translation;
use crate::work;

/// What is to be once everything is done, and how to get there.
pub(super) struct Reload {
    pub(super) kept: Kept,
    pub(super) ports: Vec<OwnedFd>,
    /// In this order, with what goes along.
    pub(super) orders: Vec<(Order, Vec<OwnedFd>)>,
}

/// Reads the file again. `ports` are both of each bridge of `kept`, in its order.
///
/// # Errors
/// Nothing is changed, for this reason.
pub(super) fn reload(kept: &Kept, ports: &[OwnedFd]) -> anyhow::Result<Reload> {
    let path = kept.config.as_deref().context("there is no configuration file")?;
    let plan = run::read(path)?;
    let mut reload = Reload { kept: kept.clone(), ports: Vec::new(), orders: Vec::new() };
    reload.kept.bridges.clear();
    let mut old: Vec<_> = kept.bridges.iter().zip(ports.chunks_exact(2)).map(Some).collect();
    let configs = plan.configs();
    translation::check(configs.iter().flatten())?;
    let same: Vec<_> = plan.bridges.iter().map(|plan| take_same(&mut old, plan)).collect();
    let gone: Vec<_> = old.into_iter().flatten().collect();
    let removed: Vec<BridgeId> = gone.iter().map(|(bridge, _)| bridge.id).collect();
    if !removed.is_empty() {
        reload.orders.push((Order::Remove(removed), Vec::new()));
    }
    let mut next_id = kept.bridges.iter().map(|bridge| bridge.id + 1).max().unwrap_or_default();
    for ((plan, configs), same) in plan.bridges.iter().zip(configs).zip(same) {
        match same {
            Some((bridge, fds)) => reload.go_on(bridge, fds, configs)?,
            None => {
                reload.add(plan, configs, next_id, &gone)?;
                next_id += 1;
            }
        }
    }
    reload.set_level(plan.log);
    warn_of_the_rest(kept, path, &plan.control);
    Ok(reload)
}

type Old<'a> = (&'a KeptBridge, &'a [OwnedFd]);

/// Takes the bridge that has the same ports.
fn take_same<'a>(old: &mut [Option<Old<'a>>], plan: &BridgePlan) -> Option<Old<'a>> {
    let is_same = |(bridge, _): &Old<'_>| {
        let [lan, wan] = bridge.ports.each_ref().map(|port| &port.name);
        let ways = (bridge.coalesce, bridge.doorbell) == (plan.coalesce, plan.doorbell);
        ways && *lan == plan.lan && *wan == plan.wan
    };
    old.iter_mut().find(|old| old.as_ref().is_some_and(is_same))?.take()
}

impl Reload {
    /// A bridge that stays, perhaps with other words.
    fn go_on(
        &mut self,
        bridge: &KeptBridge,
        fds: &[OwnedFd],
        configs: [Config; 2],
    ) -> anyhow::Result<()> {
        self.keep(fds)?;
        let mut next = bridge.clone();
        for (number, config) in configs.into_iter().enumerate() {
            if bridge.asked[number] == config {
                continue;
            }
            let port = &mut next.ports[number];
            let handle = match &mut port.state {
                State::Cake { config: current, .. } => {
                    *current = config;
                    port.handle
                }
                // Somebody deleted it.
                State::Pfifo { .. } => {
                    port.handle = work::next_handle(self.kept.bridges.iter().chain([bridge]));
                    port.state = run::open::cake(config);
                    port.handle
                }
            };
            let order = Order::Configure { bridge: bridge.id, port: number, handle, config };
            self.orders.push((order, Vec::new()));
        }
        next.asked = configs;
        self.kept.bridges.push(next);
        Ok(())
    }

    fn add(
        &mut self,
        plan: &BridgePlan,
        configs: [Config; 2],
        id: BridgeId,
        gone: &[Old<'_>],
    ) -> anyhow::Result<()> {
        let held = |name: &PortName| -> Option<(KeptPort, OwnedFd)> {
            let mut all = gone.iter().flat_map(|(bridge, fds)| bridge.ports.iter().zip(*fds));
            let (port, fd) = all.find(|(port, _)| port.name == *name)?;
            Some((port.clone(), fd.try_clone().ok()?))
        };
        let handle = work::next_handle(&self.kept.bridges);
        let (bridge, fds) = run::open::open(plan, configs, id, handle, held)?;
        self.keep(&fds)?;
        self.orders.push((Order::Add(Box::new(bridge.clone())), fds.into()));
        self.kept.bridges.push(bridge);
        Ok(())
    }

    /// Ports of the next bridge: others of the same descriptors go, or stay, where they are used.
    fn keep(&mut self, fds: &[OwnedFd]) -> std::io::Result<()> {
        for fd in fds {
            self.ports.push(fd.try_clone()?);
        }
        Ok(())
    }

    fn set_level(&mut self, level: Option<LogLevel>) {
        if let Some(level) = level.filter(|_| self.kept.log != level) {
            self.orders.push((Order::Log(level), Vec::new()));
        }
        self.kept.log = level;
    }
}

/// What the file may say but a reload does not do.
fn warn_of_the_rest(kept: &Kept, path: &Path, control: &ucake_cli::plan::ControlPlan) {
    if *control != kept.control {
        tracing::warn!(file = %path.display(), "[control] has changed; it counts after the next start");
    }
}
