//! `ucake run`: two ports, a CAKE each way, until told to stop.
//!
//! Law: what is asked for is opened here, once; who handles the frames is somebody else's, with a supervisor
//! ([`crate::supervise`]) or without.

use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;
use tracing::{info, warn};
use ucake::io::driver::Command;
use ucake::io::netlink;
use ucake::io::packet_socket::PacketSocket;
use ucake::io::plain_tap::AnyTap;
use ucake::io::tap::{OpenError, TapOptions};
use ucake::qdisc::{Config, Stats};
use ucake_cli::protocol::{State, Supervision};

use crate::args::{PortName, RunArgs, Words};
use crate::control::{self, Socket, Whose};
use crate::supervise;
use crate::supervise::state::{Kept, KeptBridge, KeptPort, PortCounts, PortKind, VERSION};
use crate::work::{FIRST_HANDLE, Handle, Work};

/// Bytes of an Ethernet header, which an MTU does not count.
const ETHERNET_LEN: u32 = 14;
/// The MTU of a device that does not tell.
const USUAL_MTU: u32 = 1500;
/// How long something may be held by one that is ending; far less is usual.
const LETTING_GO: Duration = Duration::from_millis(300);
const LOOK: Duration = Duration::from_millis(5);

/// Shapes until a signal comes.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let (lan, lan_fd) = open(&args.lan, &args.down, FIRST_HANDLE + 1)?;
    let (wan, wan_fd) = open(&args.wan, &args.up, FIRST_HANDLE)?;
    let socket = control_socket(args)?;
    info!(lan = %lan.name, wan = %wan.name, "shaping");
    let (coalesce, doorbell) = (args.coalesce, args.doorbell);
    let kept = Kept {
        version: VERSION,
        program: std::env::current_exe().unwrap_or_default(),
        arguments: std::env::args().skip(1).collect(),
        user: args.user,
        socket: socket.as_ref().map(|socket| socket.path().to_owned()),
        bridges: vec![KeptBridge { ports: [lan, wan], coalesce, doorbell }],
        supervision: Supervision::default(),
    };
    let ports = vec![lan_fd, wan_fd];
    if args.no_supervisor {
        return alone(&kept, ports, socket.as_ref());
    }
    supervise::run(kept, ports, socket)
}

/// Opens a port through which leaves what `words` say.
fn open(name: &PortName, words: &Words, handle: u16) -> anyhow::Result<(KeptPort, OwnedFd)> {
    let (name, kind, fd) = match name {
        PortName::Tap(device) => open_tap(name, device)?,
        PortName::Packet(device) => {
            let socket = PacketSocket::open(device)?;
            let kind = PortKind::Packet { index: socket.index(), mtu: socket.mtu() };
            (name.clone(), kind, socket.as_fd().try_clone_to_owned()?)
        }
    };
    let mtu = netlink::link(name.device()).map_or(USUAL_MTU, |link| link.mtu);
    let config = Config::default().changed_by(&words.change);
    let state = State::Cake { config, stats: Box::new(Stats::default()), queues: None };
    let port = KeptPort {
        name,
        kind,
        largest_frame: mtu + ETHERNET_LEN,
        handle,
        state,
        counts: PortCounts::default(),
        lost: None,
    };
    Ok((port, fd))
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

/// The socket that was asked for, or else the usual one where it can be had.
fn control_socket(args: &RunArgs) -> anyhow::Result<Option<Socket>> {
    let group = args.control_group.as_deref();
    match &args.control {
        Some(path) => Ok(Some(control::open(path, group)?)),
        // Who names a group wants a socket.
        None if group.is_some() => Ok(Some(control::open_default(group)?)),
        None => Ok(control::open_default(None)
            .inspect_err(|error| warn!(%error, "going on without it; name another with --control"))
            .ok()),
    }
}

/// Handles frames in this process.
fn alone(kept: &Kept, ports: Vec<OwnedFd>, socket: Option<&Socket>) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.context("cannot start")?, async {
        let listener = socket.map(Socket::listener).transpose()?.map(OwnedFd::from);
        let fds = listener.into_iter().chain(ports).collect();
        let whose = Whose::new(std::process::id(), false);
        let mut work = Work::new(kept, fds, whose)?;
        let signals = tokio::task::spawn_local(obey_signals(work.handle.clone())?);
        let outcome = work.run().await;
        signals.abort();
        crate::print(&work.table(None));
        outcome
    })?;
    info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// What to do about signals, handlers in place. SIGUSR1: the table; SIGINT, SIGTERM: the end.
fn obey_signals(handle: Handle) -> anyhow::Result<impl Future<Output = ()>> {
    let watch = |kind| signal(kind).context("cannot watch for signals");
    let mut show = watch(SignalKind::user_defined1())?;
    let mut upgrade = watch(SignalKind::user_defined2())?;
    let mut interrupt = watch(SignalKind::interrupt())?;
    let mut terminate = watch(SignalKind::terminate())?;
    Ok(async move {
        loop {
            let command = tokio::select! {
                _ = show.recv() => {
                    let handle = handle.clone();
                    Command::With(Box::new(move |bridge| {
                        crate::print(&handle.table(bridge, None));
                    }))
                }
                _ = upgrade.recv() => {
                    warn!("no upgrade without a supervisor");
                    continue;
                }
                _ = interrupt.recv() => Command::Stop,
                _ = terminate.recv() => Command::Stop,
            };
            let last = matches!(command, Command::Stop);
            if handle.commands.send(command).await.is_err() || last {
                return;
            }
        }
    })
}
