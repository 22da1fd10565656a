//! `ucake run`: ports in pairs, a CAKE each way, until told to stop.
//!
//! Law: what is asked for becomes a [`Plan`], what it names is opened here, once; who handles the frames is somebody
//! else's, with a supervisor ([`crate::supervise`]) or without.

pub(crate) mod aside;
pub(crate) mod open;
mod plan;

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::task::LocalSet;
use tracing::{info, warn};
use ucake_cli::config;
use ucake_cli::plan::{ControlPlan, Plan};
use ucake_cli::protocol::Supervision;

use crate::args::{CheckArgs, RunArgs};
use crate::control::{self, Socket, Whose};
use crate::signals::{Asked, Signals};
use crate::supervise;
use crate::supervise::state::{Kept, KeptBridge, VERSION};
use crate::translation;
use crate::work::{self, Handle, Work};
pub(crate) use open::patiently;
pub(crate) use plan::{PlanError, read};

/// Shapes until a signal comes.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let plan = match plan::plan(args) {
        Err(PlanError::Arguments(message)) => crate::bad_usage("run", &message),
        plan => plan?,
    };
    if let Some(level) = plan.log {
        crate::log::set_level(level);
    }
    translation::check(plan.configs().iter().flatten())?;
    let (bridges, ports) = open_all(&plan)?;
    let socket = control_socket(&plan.control)?;
    for KeptBridge { ports: [lan, wan], .. } in &bridges {
        info!(lan = %lan.name, wan = %wan.name, "shaping");
    }
    let kept = Kept {
        version: VERSION,
        program: std::env::current_exe().unwrap_or_default(),
        arguments: std::env::args().skip(1).collect(),
        // Read again from wherever we stand by then.
        config: args.config.as_deref().map(std::path::absolute).transpose()?,
        control: plan.control,
        log: plan.log,
        user: args.user,
        socket: socket.as_ref().map(|socket| socket.path().to_owned()),
        bridges,
        supervision: Supervision::default(),
        conntrack: false,
    };
    if args.no_supervisor {
        return alone(kept, ports, socket.as_ref());
    }
    supervise::run(kept, ports, socket)
}

/// `ucake check`.
pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let plan = read(&args.file)?;
    crate::print(&config::write(&plan));
    Ok(ExitCode::SUCCESS)
}

/// Opens everything, in the order it is kept.
fn open_all(plan: &Plan) -> anyhow::Result<(Vec<KeptBridge>, Vec<OwnedFd>)> {
    let (mut bridges, mut ports) = (Vec::new(), Vec::new());
    for ((id, bridge), configs) in (0..).zip(&plan.bridges).zip(plan.configs()) {
        let handle = work::next_handle(&bridges);
        let (kept, fds) = open::open(bridge, configs, id, handle, |_| None)?;
        bridges.push(kept);
        ports.extend(fds);
    }
    Ok((bridges, ports))
}

/// The socket that was asked for, or else the usual one where it can be had.
fn control_socket(plan: &ControlPlan) -> anyhow::Result<Option<Socket>> {
    let group = plan.group.as_deref();
    match &plan.path {
        Some(path) => Ok(Some(control::open(path, group)?)),
        // Who names a group wants a socket.
        None if group.is_some() => Ok(Some(control::open_default(group)?)),
        None => Ok(control::open_default(None)
            .inspect_err(|error| warn!(%error, "going on without it; name another with --control"))
            .ok()),
    }
}

/// Handles frames in this process.
fn alone(mut kept: Kept, ports: Vec<OwnedFd>, socket: Option<&Socket>) -> anyhow::Result<ExitCode> {
    let conntrack = translation::start();
    kept.conntrack = conntrack.is_some();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.context("cannot start")?, async {
        let listener = socket.map(Socket::listener).transpose()?.map(OwnedFd::from);
        let fds = listener.into_iter().chain(ports).chain(conntrack).collect();
        let whose = Whose::new(std::process::id(), false);
        let signals = Signals::watch().context("cannot watch for signals")?;
        aside::stand_aside(&mut kept.bridges);
        let outcome = shape(&kept, fds, whose, signals).await;
        aside::undo(&kept.bridges);
        outcome
    })?;
    info!("stopped");
    Ok(ExitCode::SUCCESS)
}

async fn shape(
    kept: &Kept,
    fds: Vec<OwnedFd>,
    whose: Whose,
    signals: Signals,
) -> anyhow::Result<()> {
    let mut work = Work::new(kept, fds, whose)?;
    let signals = tokio::task::spawn_local(obey_signals(signals, work.handle.clone()));
    let outcome = work.run().await;
    signals.abort();
    crate::print(&work.table(true));
    outcome
}

/// Does what signals ask for until one asks for the end.
async fn obey_signals(mut signals: Signals, handle: Handle) {
    loop {
        match signals.next().await {
            Asked::Show => crate::print(&handle.table(true).await),
            Asked::Upgrade => warn!("no upgrade without a supervisor"),
            Asked::Reload => warn!("nothing is read again without a supervisor"),
            Asked::Stop => return handle.stop(),
        }
    }
}
