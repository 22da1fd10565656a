//! `ucake run`: two ports, a CAKE each way, until told to stop.

use std::process::ExitCode;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::{info, warn};
use ucake::dql::DqlStats;
use ucake::io::driver::{self, Bridge, Command, PortSnapshot};
use ucake::io::netlink;
use ucake::io::packet_socket::{PacketPort, PacketSocket};
use ucake::io::plain_tap::AnyTap;
use ucake::io::pool::FrameBuf;
use ucake::io::port::{Counters, Port};
use ucake::io::tap::TapOptions;
use ucake::io::timer::Timer;
use ucake::qdisc::Config;
use ucake::units::FrameLen;
use ucake_cli::egress::Egress;
use ucake_cli::protocol::Shown;

use crate::args::{PortName, RunArgs, Words};
use crate::control::{self, Control, Desk, Named, Socket};
use crate::verbs;
use ucake_cli::value;

/// Bytes of an Ethernet header, which an MTU does not count.
const ETHERNET_LEN: u32 = 14;
/// The MTU of a device that does not tell.
const USUAL_MTU: u32 = 1500;
/// Handles that the two instances are shown with, as `tc` numbers them.
const FIRST_HANDLE: u16 = 0x8001;

type Egresses = Bridge<Egress<FrameBuf>>;

/// Shapes until a signal comes.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let devices = [open(&args.lan)?, open(&args.wan)?];
    let socket = control_socket(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(shape(args, devices, socket))?;
    Ok(ExitCode::SUCCESS)
}

/// What a port is made of, open but not yet at work.
enum Opened {
    Tap(AnyTap),
    Packet(PacketSocket),
}

fn open(name: &PortName) -> anyhow::Result<Opened> {
    let device = match name {
        PortName::Tap(device) => device,
        PortName::Packet(device) => return Ok(Opened::Packet(PacketSocket::open(device)?)),
    };
    let tap = AnyTap::open(device, &TapOptions::default())?;
    if let AnyTap::Plain(_) = tap {
        warn!(port = %name, "no vnet header on this system: frames one by one, without superpackets");
    }
    Ok(Opened::Tap(tap))
}

impl Opened {
    fn name(&self) -> &str {
        match self {
            Self::Tap(tap) => tap.name(),
            Self::Packet(socket) => socket.name(),
        }
    }

    /// Largest frame of an ordinary packet, Ethernet header included.
    fn largest_frame(&self) -> FrameLen {
        FrameLen(netlink::link(self.name()).map_or(USUAL_MTU, |link| link.mtu) + ETHERNET_LEN)
    }

    /// Within a tokio runtime.
    fn put_to_work(self) -> anyhow::Result<Box<dyn Port>> {
        Ok(match self {
            Self::Tap(tap) => tap.into_port()?,
            Self::Packet(socket) => Box::new(PacketPort::new(socket)?),
        })
    }
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

async fn shape(
    args: &RunArgs,
    [lan, wan]: [Opened; 2],
    socket: Option<Socket>,
) -> anyhow::Result<()> {
    let names = [(&args.lan, &lan), (&args.wan, &wan)].map(|(name, opened)| {
        let device = opened.name().to_owned();
        Named { port: name.with_device(&device).to_string(), device }
    });
    let cake = |words: &Words, egress: &Opened, handle| {
        let config = Config::default().changed_by(&words.change);
        Egress::cake(config, handle, egress.largest_frame(), crate::secret())
    };
    let up = cake(&args.up, &wan, FIRST_HANDLE);
    let down = cake(&args.down, &lan, FIRST_HANDLE + 1);
    let (lan, wan) = (lan.put_to_work()?, wan.put_to_work()?);
    let mut bridge = Bridge::new(lan, wan, up, down)
        .with_hash_key(crate::secret().hash_key)
        .with_coalescing(args.coalesce.into());
    bridge.set_doorbell(args.doorbell.into());
    let mut timer = Timer::new().context("cannot make a timer")?;
    let (commands, mut inbox) = mpsc::channel(4);
    let desk = Desk::new(names.clone(), commands.clone(), FIRST_HANDLE + 2);
    let control = socket.map(|socket| Control::start(socket, desk)).transpose()?;
    let signals = tokio::spawn(obey_signals(commands, names.clone())?);
    info!(lan = %args.lan, wan = %args.wan, "shaping");
    let outcome = driver::run(&mut bridge, &mut timer, &mut inbox).await;
    signals.abort();
    drop(control);
    crate::print(&table(&mut bridge, &names));
    info!("stopped");
    Ok(outcome?)
}

/// What to do about signals, handlers in place. SIGUSR1: the table; SIGINT, SIGTERM: the end.
fn obey_signals(
    commands: mpsc::Sender<Command<Egress<FrameBuf>>>,
    names: [Named; 2],
) -> anyhow::Result<impl Future<Output = ()> + Send> {
    let watch = |kind| signal(kind).context("cannot watch for signals");
    let mut show = watch(SignalKind::user_defined1())?;
    let mut interrupt = watch(SignalKind::interrupt())?;
    let mut terminate = watch(SignalKind::terminate())?;
    Ok(async move {
        loop {
            let command = tokio::select! {
                _ = show.recv() => {
                    let names = names.clone();
                    let show = move |bridge: &mut Egresses| crate::print(&table(bridge, &names));
                    Command::With(Box::new(show))
                }
                _ = interrupt.recv() => Command::Stop,
                _ = terminate.recv() => Command::Stop,
            };
            let last = matches!(command, Command::Stop);
            if commands.send(command).await.is_err() || last {
                return;
            }
        }
    })
}

/// Statistics of both directions: what leaves through WAN, then what leaves through LAN.
fn table(bridge: &mut Egresses, names: &[Named; 2]) -> String {
    let [lan, wan] = bridge.snapshot().ports;
    let now = bridge.now();
    let direction = |name: &Named, egress: &Egress<FrameBuf>| {
        let Named { port, device } = name.clone();
        let state = egress.state(false, now);
        verbs::everything(&Shown { port, device, handle: egress.handle(), state })
    };
    let [lan_name, wan_name] = names;
    let up = direction(wan_name, bridge.up());
    let down = direction(lan_name, bridge.down());
    format!("{up}{down}{}{}\n", port(&lan), port(&wan))
}

/// What the ports themselves counted; of this `tc` knows nothing.
fn port(port: &PortSnapshot) -> String {
    let Counters { frames_in, bytes_in, frames_out, bytes_out, write_errors, truncated, .. } =
        &port.counters;
    let refused: u64 = port.counters.refused.iter().map(|(_, count)| count).sum();
    let lost = port.lost_before_reading.map_or_else(|| "?".to_owned(), |lost| lost.to_string());
    let DqlStats { limit, in_flight, stops, stopped } = port.dql;
    format!(
        "port {}: read {bytes_in} bytes {frames_in} frames (refused {}, lost before reading {lost}), \
         wrote {bytes_out} bytes {frames_out} frames (failed {}, too long {})\n \
         segments {} doorbell {} runs_refused {} byte_limit {limit} in_flight {in_flight} \
         stopped {stops} times {}\n",
        port.name,
        refused + truncated,
        write_errors.total() - write_errors.too_long,
        write_errors.too_long,
        port.counters.segments_out,
        port.rings,
        port.counters.runs_refused,
        value::time(stopped),
    )
}
