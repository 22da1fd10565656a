//! The devices of all bridges, looked at whenever something may have changed.
//!
//! Problem: the data process may open nothing, and a bridge is not to end with its device.
//! Source: rtnetlink(7), the group of links; `ucake::io::device`.
//! Law: that the kernel tells of a change is a reason to look, and nothing more: what has changed the descriptors say
//! themselves, so that no word of the kernel may be lost or misread. Looks are some time apart, however much happens;
//! and there is one every now and then without a reason, for devices in other namespaces, of which nobody tells.
//! A device that is gone is opened again under the name that was asked for, a tap by making it; the descriptor goes to
//! the data process, whose bridge and counters have stayed.
//! Left out: what follows from what was seen ([`super::device`]).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};
use ucake::io::device::{self, Device};
use ucake::io::netlink::LinkWatch;

use super::Supervisor;
use super::device::{Event, Watched};
use super::link::Link;
use super::state::{BridgeId, KeptPort, Order, PortKind};
use crate::run::{aside, open};
use crate::work;

/// Between two looks, at the least.
const APART: Duration = Duration::from_millis(50);
/// Between two looks without a reason.
const IDLE: Duration = Duration::from_secs(1);

/// A port: its bridge, and its number in it.
type Place = (BridgeId, usize);

/// When to look, and what was seen.
pub(super) struct Devices {
    watched: BTreeMap<Place, Watched>,
    /// Tells when something has changed, if the system does.
    links: Option<LinkWatch>,
    last_look: Instant,
    next_look: Instant,
}

impl Devices {
    /// Call within a tokio runtime.
    pub(super) fn new() -> Self {
        let links = LinkWatch::new();
        let links = links.inspect_err(|error| debug!(%error, "devices are looked at by the clock"));
        let now = Instant::now();
        Self { watched: BTreeMap::new(), links: links.ok(), last_look: now, next_look: now }
    }

    /// Waits until it is time to look.
    pub(super) async fn due(&mut self) {
        loop {
            let changed = async {
                match &mut self.links {
                    Some(links) => links.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(self.next_look.into()) => return,
                () = changed => self.look_soon(),
            }
        }
    }

    /// There is a reason to look.
    pub(super) fn look_soon(&mut self) {
        self.next_look = self.next_look.min(self.last_look + APART);
    }

    /// What has happened to the devices of these ports by `now`, and which of them are to be opened again.
    fn look(&mut self, now: Instant, ports: &[(Place, &KeptPort, BorrowedFd<'_>)]) -> Seen {
        (self.last_look, self.next_look) = (now, now + IDLE);
        self.watched.retain(|place, _| ports.iter().any(|(port, ..)| port == place));
        let mut seen = Seen::default();
        for &(place, port, fd) in ports {
            let watched = self.watched.entry(place).or_insert_with(|| Watched::new(port.device()));
            match behind(port, fd) {
                Ok(device) => {
                    let events = watched.see(device.clone(), now);
                    seen.events
                        .extend(events.into_iter().map(|event| (place, event, device.clone())));
                }
                // It is looked at again.
                Err(error) => {
                    debug!(port = %port.name, %error, "cannot tell what has become of it");
                }
            }
            if watched.wants_another(now) {
                seen.wanted.push(place);
            } else if let Some(at) = watched.try_at() {
                self.next_look = self.next_look.min(at);
            }
        }
        seen
    }
}

/// What came of a look.
#[derive(Default)]
struct Seen {
    events: Vec<(Place, Event, Option<Device>)>,
    wanted: Vec<Place>,
}

fn behind(port: &KeptPort, fd: BorrowedFd<'_>) -> io::Result<Option<Device>> {
    match port.kind {
        PortKind::Tap { .. } | PortKind::PlainTap => device::behind_tap(fd),
        PortKind::Packet { .. } => device::behind_packet_socket(fd),
    }
}

impl Supervisor {
    /// Looks what has become of all devices, and does what is to be done about it.
    ///
    /// # Errors
    /// The data process takes no orders. It is known what the next one is to do.
    pub(super) fn look_at_devices(&mut self, link: &Link) -> io::Result<()> {
        let before = self.kept.supervision.devices;
        let bridges = self.kept.bridges.iter();
        let ports = bridges.flat_map(|bridge| {
            bridge.ports.iter().enumerate().map(|(number, port)| ((bridge.id, number), port))
        });
        let ports: Vec<_> =
            ports.zip(&self.ports).map(|((place, port), fd)| (place, port, fd.as_fd())).collect();
        let Seen { events, wanted } = self.devices.look(Instant::now(), &ports);
        for (place, event, device) in events {
            self.note_event(place, &event, device.as_ref(), link)?;
        }
        for place in wanted {
            self.open_again(place, link)?;
        }
        if self.kept.supervision.devices != before {
            link.tell(&Order::Know(self.kept.supervision))?;
        }
        Ok(())
    }

    fn note_event(
        &mut self,
        place: Place,
        event: &Event,
        device: Option<&Device>,
        link: &Link,
    ) -> io::Result<()> {
        event.count(&mut self.kept.supervision.devices);
        let Some((kept, _)) = self.place(place) else { return Ok(()) };
        let port = kept.name.clone();
        match event {
            Event::Gone => warn!(%port, "the device is gone; its bridge waits for it"),
            Event::Renamed(before) => {
                warn!(%port, before, now = device.map(|it| &*it.name), "the device was renamed");
            }
            Event::Resized { before, now } => {
                warn!(%port, before, now, "the device has another mtu");
            }
            // Taps are made for that; of another device one is told that it is gone.
            Event::Moved => info!(%port, "the device was moved to another network namespace"),
            Event::Down => warn!(%port, "the device is down, or its link"),
            // As soon as one is told that it is not, one wants to know.
            Event::Up { again: true } => warn!(%port, "the device is up again"),
            Event::Up { again: false } => info!(%port, "the device is up"),
            Event::Offloads(now) => warn!(%port, now, "offloads of the device were changed"),
        }
        let (Event::Renamed(_) | Event::Resized { .. }, Some(device)) = (event, device) else {
            return Ok(());
        };
        kept.set_device(&device.name);
        let mtu = device.state.map(|state| state.mtu);
        if let Some(mtu) = mtu {
            kept.largest_frame = work::largest_frame(mtu).bytes();
            if let PortKind::Packet { mtu: known, .. } = &mut kept.kind {
                *known = mtu as usize;
            }
        }
        let (bridge, port) = place;
        link.tell(&Order::Device { bridge, port, device: device.name.clone(), mtu })
    }

    /// The port in this place, and which descriptor it has.
    fn place(&mut self, (id, number): Place) -> Option<(&mut KeptPort, usize)> {
        let index = self.kept.bridges.iter().position(|bridge| bridge.id == id)?;
        let port = self.kept.bridges.get_mut(index)?.ports.get_mut(number)?;
        Some((port, 2 * index + number))
    }

    /// Opens another device in the place of one that is gone, if there is one.
    fn open_again(&mut self, place: Place, link: &Link) -> io::Result<()> {
        let Some((kept, index)) = self.place(place) else { return Ok(()) };
        let (outcome, port) = (open::again(kept), kept.name.clone());
        let now = Instant::now();
        let Some(watched) = self.devices.watched.get_mut(&place) else { return Ok(()) };
        let (new, fd) = match outcome {
            Ok(new) => new,
            Err(None) => {
                watched.missing(now + APART);
                return Ok(());
            }
            Err(Some(error)) => {
                let reason = crate::explain(&error);
                if watched.failed(&reason, now) {
                    warn!(%port, reason, "cannot open the device again; it is tried now and then");
                }
                return Ok(());
            }
        };
        watched.back(new.device(), now);
        warn!(%port, "the device is back");
        self.kept.supervision.devices.back += 1;
        let (bridge, number) = place;
        let order = Order::Plug { bridge, port: number, kept: Box::new(new.clone()) };
        // What it is like is yet to be seen.
        self.devices.look_soon();
        let told = link.tell_with(&order, &[fd.as_fd()]);
        if let Some(old) = self.ports.get_mut(index) {
            *old = fd;
        }
        if let Some((kept, _)) = self.place(place) {
            *kept = new;
        }
        // It is another one: what was done to the one before went with it.
        aside::stand_aside(&mut self.kept.bridges);
        told
    }
}
