//! Devices as the kernel keeps them: find, set up, count, remove.
//!
//! Every call acts in the network namespace of the thread that made the [`Netlink`] or called
//! [`configure`].

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::pin::Pin;

use futures_util::{FutureExt, Stream, StreamExt, TryStreamExt};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    LinkAttribute, LinkFlags, LinkMessage, LinkXdp, VlanProtocol, XdpAttached,
};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use rtnetlink::packet_core::{
    DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use rtnetlink::{
    Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, LinkVlan, MulticastGroup,
    RouteMessageBuilder,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::task::JoinHandle;

use crate::units::Rate;

/// Why the kernel did not do as asked.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// No netlink at all.
    #[error("cannot talk to the kernel about devices: {0}")]
    Socket(#[source] io::Error),
    /// No such device.
    #[error("there is no device {device}")]
    NoDevice {
        /// Its name.
        device: String,
    },
    /// Refused.
    #[error("cannot {doing} {device}: {source}")]
    Refused {
        /// The device.
        device: String,
        /// What was asked.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A connection to the kernel. It lives on the tokio runtime it was made on.
pub struct Netlink {
    handle: Handle,
    connection: JoinHandle<()>,
}

/// Tells when something has changed about the devices of a network namespace: that of the thread that made it.
pub struct LinkWatch {
    changes: Pin<Box<dyn Stream<Item = ()>>>,
    connection: JoinHandle<()>,
}

impl LinkWatch {
    /// From now on. Call within a tokio runtime.
    ///
    /// # Errors
    /// The system has no netlink, or no descriptors left.
    pub fn new() -> Result<Self, NetlinkError> {
        let (connection, _, messages) =
            rtnetlink::new_multicast_connection(&[MulticastGroup::Link])
                .map_err(NetlinkError::Socket)?;
        let changes = Box::pin(messages.map(drop));
        Ok(Self { changes, connection: tokio::spawn(connection) })
    }

    /// Waits for the next change, and takes all that are told already for one: whoever wants to know what it was looks.
    /// Never ends once the kernel tells no more.
    pub async fn changed(&mut self) {
        if self.changes.next().await.is_none() {
            std::future::pending::<()>().await;
        }
        while self.changes.next().now_or_never().flatten().is_some() {}
    }
}

impl Drop for LinkWatch {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// A device, as it was when asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Largest frame without its Ethernet header.
    pub mtu: u32,
    /// Length of its queue.
    pub queue_len: u32,
    /// What it counted.
    pub stats: LinkStats,
}

/// What a device counted. Directions are the kernel's: what a tap *transmits* is what we read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames received and dropped.
    pub rx_dropped: u64,
    /// Frames transmitted.
    pub tx_packets: u64,
    /// Bytes transmitted.
    pub tx_bytes: u64,
    /// Frames dropped instead of transmitted. On a tap: lost in the device's own queue, before we
    /// could read them.
    pub tx_dropped: u64,
}

/// Who else has to do with a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Company {
    /// Whether it is up.
    pub up: bool,
    /// Largest frame without its Ethernet header.
    pub mtu: u32,
    /// The bridge or bond that it is a port of.
    pub controller: Option<String>,
    /// Whether a program sees its frames before anybody else (XDP).
    pub has_xdp: bool,
    /// Addresses that somebody gave it, with the length of their prefix: those that IPv6 makes by itself are not among
    /// them.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Kinds of its queue disciplines, `ingress` and `clsact` among them.
    pub qdiscs: Vec<String>,
}

/// What a device shall be like; what is `None` or empty stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkOptions {
    /// Largest frame without its Ethernet header.
    pub mtu: Option<u32>,
    /// Length of its queue.
    pub queue_len: Option<u32>,
    /// Up or down.
    pub up: Option<bool>,
    /// Addresses to add, with the length of their prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Routes through it to add.
    pub routes: Vec<Route>,
}

/// The tag of a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanTag {
    /// 802.1Q, with its number.
    Customer(u16),
    /// 802.1ad, the outer tag of two, with its number.
    Service(u16),
}

/// A route through a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to, with the length of the prefix; `0.0.0.0/0` or `::/0` for everywhere.
    pub destination: (IpAddr, u8),
    /// By way of whom; `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
}

/// Sets up a device from a thread that has no runtime, or has one: a short-lived thread does the
/// work, in the network namespace of the caller.
///
/// # Errors
/// See [`NetlinkError`].
pub fn configure(name: &str, options: &LinkOptions) -> Result<(), NetlinkError> {
    on_a_thread(async |netlink| netlink.configure(name, options).await)
}

/// Looks up a device, as [`configure`] does.
///
/// # Errors
/// See [`NetlinkError`].
pub fn link(name: &str) -> Result<Link, NetlinkError> {
    on_a_thread(async |netlink| netlink.link(name).await)
}

/// What a device in another network namespace is like.
///
/// # Errors
/// See [`NetlinkError`]; also if the namespace may not be entered.
pub fn link_in(namespace: BorrowedFd<'_>, name: &str) -> Result<Link, NetlinkError> {
    on_a_thread_in(Some(namespace), async |netlink| netlink.link(name).await)
}

/// Looks up who else has to do with a device, as [`configure`] does.
///
/// # Errors
/// See [`NetlinkError`].
pub fn company(name: &str) -> Result<Company, NetlinkError> {
    on_a_thread(async |netlink| netlink.company(name).await)
}

/// Makes two devices, each at the other end of the other's wire, as [`configure`] does.
///
/// # Errors
/// See [`NetlinkError`].
pub fn add_veth(name: &str, peer: &str) -> Result<(), NetlinkError> {
    on_a_thread(async |netlink| netlink.add_veth(name, peer).await)
}

/// Makes a device whose frames have a VLAN tag where they pass the device `parent`, as [`configure`] does.
///
/// # Errors
/// See [`NetlinkError`].
pub fn add_vlan(name: &str, parent: &str, tag: VlanTag) -> Result<(), NetlinkError> {
    on_a_thread(async |netlink| netlink.add_vlan(name, parent, tag).await)
}

/// Makes a bridge, as [`configure`] does: see [`Netlink::add_bridge`].
///
/// # Errors
/// See [`NetlinkError`].
pub fn add_bridge(name: &str, ports: &[&str]) -> Result<(), NetlinkError> {
    on_a_thread(async |netlink| netlink.add_bridge(name, ports).await)
}

/// Moves a device into a network namespace, as [`configure`] does.
///
/// # Errors
/// See [`NetlinkError`].
pub fn move_to(name: &str, namespace: impl AsFd + Sync) -> Result<(), NetlinkError> {
    on_a_thread(async |netlink| netlink.move_to(name, namespace.as_fd()).await)
}

/// Makes a device slow, as [`configure`] does: see [`Netlink::slow_down`].
///
/// # Errors
/// See [`NetlinkError`].
pub fn slow_down(name: &str, rate: Rate, room: u32) -> Result<(), NetlinkError> {
    on_a_thread(async |netlink| netlink.slow_down(name, rate, room).await)
}

/// Gives a device another name, as [`configure`] does. Older kernels want it to be down.
///
/// # Errors
/// See [`NetlinkError`].
pub fn rename(name: &str, to: &str) -> Result<(), NetlinkError> {
    on_a_thread(async |netlink| netlink.rename(name, to).await)
}

/// Removes a device, as [`configure`] does.
///
/// # Errors
/// See [`NetlinkError`].
pub fn delete(name: &str) -> Result<(), NetlinkError> {
    on_a_thread(async |netlink| netlink.delete(name).await)
}

/// Runs `ask` to its end on a thread of its own; blocking on a runtime within a runtime is not
/// allowed.
fn on_a_thread<T: Send>(
    ask: impl AsyncFnOnce(&Netlink) -> Result<T, NetlinkError> + Send,
) -> Result<T, NetlinkError> {
    on_a_thread_in(None, ask)
}

/// The same, in another network namespace than the caller's.
fn on_a_thread_in<T: Send>(
    namespace: Option<BorrowedFd<'_>>,
    ask: impl AsyncFnOnce(&Netlink) -> Result<T, NetlinkError> + Send,
) -> Result<T, NetlinkError> {
    let work = || {
        if let Some(namespace) = namespace {
            move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))
                .map_err(|errno| NetlinkError::Socket(errno.into()))?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(NetlinkError::Socket)?;
        runtime.block_on(async { ask(&Netlink::connect()?).await })
    };
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

impl Netlink {
    /// Connects. Call within a tokio runtime.
    ///
    /// # Errors
    /// The system has no netlink, or no descriptors left.
    pub fn connect() -> Result<Self, NetlinkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetlinkError::Socket)?;
        Ok(Self { handle, connection: tokio::spawn(connection) })
    }

    /// The device `name`.
    ///
    /// # Errors
    /// There is none, or the kernel refuses.
    pub async fn link(&self, name: &str) -> Result<Link, NetlinkError> {
        let mut answer = self.handle.link().get().match_name(name.to_owned()).execute();
        match answer.try_next().await {
            Ok(Some(message)) => Ok(link_from(name, message)),
            Ok(None) => Err(NetlinkError::NoDevice { device: name.into() }),
            Err(error) => Err(refused(name, "find", error)),
        }
    }

    /// Who else has to do with the device `name`.
    ///
    /// # Errors
    /// There is no such device, or the kernel refuses.
    pub async fn company(&self, name: &str) -> Result<Company, NetlinkError> {
        let mut answer = self.handle.link().get().match_name(name.to_owned()).execute();
        let message = match answer.try_next().await {
            Ok(Some(message)) => message,
            Ok(None) => return Err(NetlinkError::NoDevice { device: name.into() }),
            Err(error) => return Err(refused(name, "find", error)),
        };
        let index = message.header.index;
        let up = message.header.flags.contains(LinkFlags::Up);
        let mut company = Company { up, ..Company::default() };
        for attribute in message.attributes {
            match attribute {
                LinkAttribute::Mtu(mtu) => company.mtu = mtu,
                LinkAttribute::Xdp(about) => company.has_xdp = about.iter().any(is_attached),
                LinkAttribute::Controller(index) => {
                    company.controller = Some(self.name_of(index).await);
                }
                _ => {}
            }
        }
        company.addresses = self.addresses(name, index).await?;
        company.qdiscs = self.qdiscs(name, index, |_| true).await?;
        Ok(company)
    }

    /// The name of the device with this number; the number, if there is none any more.
    async fn name_of(&self, index: u32) -> String {
        let mut answer = self.handle.link().get().match_index(index).execute();
        let attributes = answer.try_next().await.ok().flatten().map(|message| message.attributes);
        let name = attributes.into_iter().flatten().find_map(|attribute| match attribute {
            LinkAttribute::IfName(name) => Some(name),
            _ => None,
        });
        name.unwrap_or_else(|| index.to_string())
    }

    /// Addresses that somebody gave a device.
    async fn addresses(&self, name: &str, index: u32) -> Result<Vec<(IpAddr, u8)>, NetlinkError> {
        let request = self.handle.address().get().set_link_index_filter(index);
        let all: Vec<AddressMessage> = request
            .execute()
            .try_collect()
            .await
            .map_err(|error| refused(name, "ask for the addresses of", error))?;
        Ok(all.into_iter().filter_map(given_address).collect())
    }

    /// Makes the device `name` as `options` say: sizes first, then addresses, up, routes.
    ///
    /// # Errors
    /// At the first thing the kernel refuses.
    pub async fn configure(&self, name: &str, options: &LinkOptions) -> Result<(), NetlinkError> {
        let index = self.link(name).await?.index;
        if let Some(mtu) = options.mtu {
            let change = LinkUnspec::new_with_index(index).mtu(mtu);
            self.set(name, "set the mtu of", change).await?;
        }
        if let Some(len) = options.queue_len {
            let change = LinkUnspec::new_with_index(index).txqueuelen(len);
            self.set(name, "set the queue length of", change).await?;
        }
        for (address, prefix) in &options.addresses {
            let request = self.handle.address().add(index, *address, *prefix);
            request.execute().await.map_err(|error| refused(name, "add an address to", error))?;
        }
        let change = LinkUnspec::new_with_index(index);
        match options.up {
            Some(true) => self.set(name, "set up", change.up()).await?,
            Some(false) => self.set(name, "take down", change.down()).await?,
            None => {}
        }
        for route in &options.routes {
            let message = route.message(index).ok_or_else(|| NetlinkError::Refused {
                device: name.into(),
                doing: "add a route by",
                source: io::ErrorKind::InvalidInput.into(),
            })?;
            let request = self.handle.route().add(message);
            request.execute().await.map_err(|error| refused(name, "add a route by", error))?;
        }
        Ok(())
    }

    /// Makes the devices `name` and `peer`, each at the other end of the other's wire.
    ///
    /// # Errors
    /// There is one of such a name, or the kernel refuses.
    pub async fn add_veth(&self, name: &str, peer: &str) -> Result<(), NetlinkError> {
        let request = self.handle.link().add(LinkVeth::new(name, peer).build());
        request.execute().await.map_err(|error| refused(name, "make", error))
    }

    /// Makes the device `name`, a bridge between the devices `ports`, and takes it up.
    ///
    /// # Errors
    /// There is one of such a name, a port is missing, or the kernel refuses.
    pub async fn add_bridge(&self, name: &str, ports: &[&str]) -> Result<(), NetlinkError> {
        let request = self.handle.link().add(LinkBridge::new(name).up().build());
        request.execute().await.map_err(|error| refused(name, "make", error))?;
        let bridge = self.link(name).await?.index;
        for port in ports {
            let index = self.link(port).await?.index;
            let message = LinkUnspec::new_with_index(index).controller(bridge).build();
            let request = self.handle.link().set(message);
            request.execute().await.map_err(|error| refused(port, "bridge", error))?;
        }
        Ok(())
    }

    /// Makes the device `name`, whose frames have a tag where they pass the device `parent`.
    ///
    /// # Errors
    /// There is one of such a name, no `parent`, or the kernel refuses.
    pub async fn add_vlan(
        &self,
        name: &str,
        parent: &str,
        tag: VlanTag,
    ) -> Result<(), NetlinkError> {
        let index = self.link(parent).await?.index;
        let (protocol, number) = match tag {
            VlanTag::Customer(number) => (VlanProtocol::Ieee8021Q, number),
            VlanTag::Service(number) => (VlanProtocol::Ieee8021Ad, number),
        };
        let message = LinkVlan::new(name, index, number).protocol(protocol).build();
        let request = self.handle.link().add(message);
        request.execute().await.map_err(|error| refused(name, "make", error))
    }

    /// Makes the device `name` as slow as `rate`, with `room` bytes for frames that wait and none to spare
    /// (`tbf`). What finds no room is dropped, and its sender told.
    ///
    /// # Errors
    /// There is no such device, the rate does not fit, or the kernel refuses.
    pub async fn slow_down(&self, name: &str, rate: Rate, room: u32) -> Result<(), NetlinkError> {
        let refused = |source| NetlinkError::Refused { device: name.into(), doing: "slow", source };
        let mut message = TcMessage::default();
        message.header.index = i32::try_from(self.link(name).await?.index).unwrap_or(i32::MAX);
        message.header.parent = TcHandle::ROOT;
        let rate = u32::try_from(rate.bits() / 8)
            .map_err(|_| refused(io::ErrorKind::InvalidInput.into()))?;
        message.attributes = token_bucket(rate, room);
        let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewQueueDiscipline(message));
        request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        let mut handle = self.handle.clone();
        let mut answers =
            handle.request(request).map_err(|error| refused(io::Error::other(error)))?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload
                && error.code.is_some()
            {
                return Err(refused(error.to_io()));
            }
        }
        Ok(())
    }

    /// Removes the device `name`.
    ///
    /// # Errors
    /// There is none, or the kernel refuses.
    pub async fn delete(&self, name: &str) -> Result<(), NetlinkError> {
        let index = self.link(name).await?.index;
        let request = self.handle.link().del(index);
        request.execute().await.map_err(|error| refused(name, "remove", error))
    }

    /// Gives the device `name` another name. Older kernels want it to be down.
    ///
    /// # Errors
    /// There is none, there is one of the other name, or the kernel refuses.
    pub async fn rename(&self, name: &str, to: &str) -> Result<(), NetlinkError> {
        let index = self.link(name).await?.index;
        let change = LinkUnspec::new_with_index(index).name(to.to_owned());
        self.set(name, "rename", change).await
    }

    /// Moves the device `name` into a network namespace.
    ///
    /// # Errors
    /// There is none, or the kernel refuses.
    pub async fn move_to(&self, name: &str, namespace: impl AsFd) -> Result<(), NetlinkError> {
        let index = self.link(name).await?.index;
        let fd = namespace.as_fd().as_raw_fd();
        let change = LinkUnspec::new_with_index(index).setns_by_fd(fd);
        self.set(name, "move", change).await
    }

    /// The kind of the device's root queue discipline (`cake`, `fq_codel`, …); `None` if it has
    /// none.
    ///
    /// # Errors
    /// There is no such device, or the kernel refuses.
    pub async fn qdisc_kind(&self, name: &str) -> Result<Option<String>, NetlinkError> {
        const ROOT: u32 = u32::MAX;
        let index = self.link(name).await?.index;
        let kinds = self.qdiscs(name, index, |qdisc| u32::from(qdisc.header.parent) == ROOT).await;
        Ok(kinds?.into_iter().next())
    }

    /// The kinds of those queue disciplines of a device that are `wanted`.
    async fn qdiscs(
        &self,
        name: &str,
        index: u32,
        wanted: impl Fn(&TcMessage) -> bool,
    ) -> Result<Vec<String>, NetlinkError> {
        let index = i32::try_from(index).unwrap_or(i32::MAX);
        let all: Vec<TcMessage> = self
            .handle
            .qdisc()
            .get()
            .index(index)
            .execute()
            .try_collect()
            .await
            .map_err(|error| refused(name, "ask for the qdisc of", error))?;
        // Some kernels tell of all devices.
        let these = all.into_iter().filter(|qdisc| qdisc.header.index == index && wanted(qdisc));
        let kind = |qdisc: TcMessage| {
            qdisc.attributes.into_iter().find_map(|attribute| match attribute {
                TcAttribute::Kind(kind) => Some(kind),
                _ => None,
            })
        };
        Ok(these.filter_map(kind).collect())
    }

    async fn set(
        &self,
        name: &str,
        doing: &'static str,
        change: LinkMessageBuilder<LinkUnspec>,
    ) -> Result<(), NetlinkError> {
        let request = self.handle.link().set(change.build());
        request.execute().await.map_err(|error| refused(name, doing, error))
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Route {
    /// Fails if the prefix is longer than its address, or the gateway of the other family.
    fn message(&self, index: u32) -> Option<RouteMessage> {
        let (to, prefix) = self.destination;
        let route = RouteMessageBuilder::<IpAddr>::new().output_interface(index);
        let route = route.destination_prefix(to, prefix).ok()?;
        let route = match self.gateway {
            Some(gateway) => route.gateway(gateway).ok()?,
            None => route,
        };
        Some(route.build())
    }
}

/// A `tbf` of `rate` bytes per second, with `room` bytes for what waits: `struct tc_tbf_qopt`.
fn token_bucket(rate: u32, room: u32) -> Vec<TcAttribute> {
    const TCA_TBF_PARMS: u16 = 1;
    const TCA_TBF_BURST: u16 = 6;
    // What passes at once after a pause: a superpacket. With less, kernels whose timers are late fall behind.
    const BURST: u32 = 70_000;
    const ETHERNET: u8 = 1;
    // Cell, link layer, overhead, alignment, least size: times are reckoned without a table.
    let unused_rate = [0; 12];
    let rate_spec = [&[0, ETHERNET, 0, 0, 0, 0, 0, 0][..], &rate.to_ne_bytes()].concat();
    // Burst and peak burst are given in bytes by themselves.
    let rest = [room, 0, 0].map(u32::to_ne_bytes);
    let parameters = [&rate_spec, &unused_rate[..], rest.as_flattened()].concat();
    let options = [(TCA_TBF_PARMS, parameters), (TCA_TBF_BURST, BURST.to_ne_bytes().to_vec())];
    let options = options.map(|(kind, bytes)| TcOption::Other(DefaultNla::new(kind, bytes)));
    vec![TcAttribute::Kind("tbf".into()), TcAttribute::Options(options.into())]
}

/// Whether this says that a program is there.
fn is_attached(about: &LinkXdp) -> bool {
    matches!(about, LinkXdp::Attached(kind) if !matches!(kind, XdpAttached::None))
}

/// The address, unless IPv6 made it by itself: one of the link, or one out of a router's advertisement, which does not
/// last.
fn given_address(message: AddressMessage) -> Option<(IpAddr, u8)> {
    let header = message.header;
    let address = message.attributes.into_iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(address),
        _ => None,
    })?;
    let lasts = header.flags.contains(AddressHeaderFlags::Permanent);
    let made = address.is_ipv6() && (!lasts || header.scope == AddressScope::Link);
    (!made).then_some((address, header.prefix_len))
}

fn link_from(name: &str, message: LinkMessage) -> Link {
    let mut link = Link {
        name: name.into(),
        index: message.header.index,
        mtu: 0,
        queue_len: 0,
        stats: LinkStats::default(),
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::TxQueueLen(len) => link.queue_len = len,
            LinkAttribute::Stats64(stats) => {
                link.stats = LinkStats {
                    rx_packets: stats.rx_packets,
                    rx_bytes: stats.rx_bytes,
                    rx_dropped: stats.rx_dropped,
                    tx_packets: stats.tx_packets,
                    tx_bytes: stats.tx_bytes,
                    tx_dropped: stats.tx_dropped,
                };
            }
            _ => {}
        }
    }
    link
}

fn refused(device: &str, doing: &'static str, error: rtnetlink::Error) -> NetlinkError {
    let device = device.to_owned();
    let source = match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    };
    if matches!(source.raw_os_error(), Some(libc::ENODEV)) {
        return NetlinkError::NoDevice { device };
    }
    NetlinkError::Refused { device, doing, source }
}
