//! The host's own stack, made to stand aside on a device whose frames are passed on.
//!
//! Problem: what a packet socket hears the host hears as well. It answers ARP there for every address it has anywhere,
//! makes itself an address of each router advertisement that comes by, and speaks IPv6 into a line that is not its own.
//! And a device that joins arriving frames for good (LRO) hands over frames that nobody sent.
//! Source: the kernel's ip-sysctl (`arp_ignore`, `disable_ipv6`); ethtool.
//! Law: on a device without addresses of its own the host is silent in ARP and IPv6, and LRO is off. What was changed is
//! remembered, and put back if it is still so. A device with addresses is in use by somebody, and left as it is.
//! Left out: frames to everybody, which a server of the host may still answer (DHCP); bridges, queue disciplines and
//! XDP, which are somebody's intention: who asks [`super::netlink::company`] is told of them.

use std::fs;
use std::io;
use std::net::IpAddr;

use rustix::net::netdevice::{index_to_name, name_to_index};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::netlink::{self, NetlinkError};
use super::offload;

/// What the host does on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Habit {
    /// It answers ARP (`net.ipv4.conf.DEVICE.arp_ignore`).
    Arp,
    /// It takes part in IPv6 (`net.ipv6.conf.DEVICE.disable_ipv6`).
    Ipv6,
    /// The device joins frames for good.
    LargeReceive,
}

impl Habit {
    const ALL: [Self; 3] = [Self::Arp, Self::Ipv6, Self::LargeReceive];

    /// The value by which the host stands aside.
    const fn aside(self) -> &'static str {
        match self {
            // No answer to anybody, for any address.
            Self::Arp => "8",
            Self::Ipv6 => "1",
            Self::LargeReceive => "off",
        }
    }

    /// What to type for it, on the device `name`.
    #[must_use]
    pub fn command(self, name: &str) -> String {
        // In a path, for names may have dots.
        match self {
            Self::Arp => format!("sysctl -w net/ipv4/conf/{name}/arp_ignore=8"),
            Self::Ipv6 => format!("sysctl -w net/ipv6/conf/{name}/disable_ipv6=1"),
            Self::LargeReceive => format!("ethtool -K {name} lro off"),
        }
    }

    /// `None` where this kernel or device has no such thing.
    fn read(self, name: &str) -> io::Result<Option<String>> {
        let found = match self.file(name) {
            Some(file) => fs::read_to_string(file).map(|text| text.trim().to_owned()),
            None => offload::joins_for_good(name).map(|on| if on { "on" } else { "off" }.into()),
        };
        match found {
            Ok(value) => Ok(Some(value)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(self, name: &str, value: &str) -> io::Result<()> {
        match self.file(name) {
            Some(file) => fs::write(file, value),
            None => offload::set_joins_for_good(name, value == "on"),
        }
    }

    fn file(self, name: &str) -> Option<String> {
        match self {
            Self::Arp => Some(format!("/proc/sys/net/ipv4/conf/{name}/arp_ignore")),
            Self::Ipv6 => Some(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6")),
            Self::LargeReceive => None,
        }
    }
}

fn is_absence(error: &io::Error) -> bool {
    let no_such = [libc::EOPNOTSUPP, libc::ENODEV, libc::ENOTTY];
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error().is_some_and(|errno| no_such.contains(&errno))
}

/// A device on which the host stands aside, and what has to be put back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Aside {
    /// Number of the device: its name may change.
    index: u32,
    changed: Vec<(Habit, String)>,
}

/// Why the host does not stand aside.
#[derive(Debug, thiserror::Error)]
pub enum AsideError {
    /// Somebody uses the device otherwise.
    #[error("{device} has the address {address}: this host takes part in what goes through it")]
    Addresses {
        /// The device.
        device: String,
        /// One of its addresses.
        address: IpAddr,
    },
    /// The system refuses.
    #[error("cannot do \"{}\": {source}", habit.command(device))]
    Refused {
        /// The device.
        device: String,
        /// What was to be changed.
        habit: Habit,
        /// Why not.
        source: io::Error,
    },
    /// Nothing is known of the device.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

/// Makes the host stand aside on the device `name` of the calling thread's network namespace. What could be done is
/// done, whatever else fails.
///
/// # Errors
/// Beside what was done: all that was not, each with its reason.
pub fn stand_aside(name: &str) -> (Aside, Vec<AsideError>) {
    let address = netlink::company(name).map(|company| company.addresses.first().copied());
    let found = match address {
        Ok(None) => index_of(name).map_err(|source| refused(name, Habit::Arp, source)),
        Ok(Some((address, _))) => Err(AsideError::Addresses { device: name.into(), address }),
        Err(error) => Err(error.into()),
    };
    let mut aside = Aside::default();
    match found {
        Ok(index) => aside.index = index,
        Err(error) => return (aside, vec![error]),
    }
    let mut errors = Vec::new();
    for habit in Habit::ALL {
        match give_up(habit, name) {
            Ok(None) => {}
            Ok(Some(was)) => aside.changed.push((habit, was)),
            Err(source) => errors.push(refused(name, habit, source)),
        }
    }
    (aside, errors)
}

/// What it was, if that had to be changed.
fn give_up(habit: Habit, name: &str) -> io::Result<Option<String>> {
    match habit.read(name)? {
        Some(was) if was != habit.aside() => habit.write(name, habit.aside()).map(|()| Some(was)),
        _ => Ok(None),
    }
}

fn refused(name: &str, habit: Habit, source: io::Error) -> AsideError {
    AsideError::Refused { device: name.into(), habit, source }
}

/// What the host still does on the device `name` that it would give up there.
#[must_use]
pub fn habits(name: &str) -> Vec<Habit> {
    let kept =
        |habit: &Habit| matches!(habit.read(name), Ok(Some(value)) if value != habit.aside());
    Habit::ALL.into_iter().filter(kept).collect()
}

impl Aside {
    /// Whether nothing had to be changed.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    /// Puts back what was changed, unless somebody has changed it again. A device that is gone needs nothing.
    ///
    /// # Errors
    /// What could not be put back, each with its reason.
    pub fn undo(&self) -> Vec<AsideError> {
        let Ok(name) = name_of(self.index) else { return Vec::new() };
        let put_back = |(habit, was): &(Habit, String)| {
            let ours = matches!(habit.read(&name), Ok(Some(value)) if value == habit.aside());
            let outcome = if ours { habit.write(&name, was) } else { Ok(()) };
            outcome.err().map(|source| refused(&name, *habit, source))
        };
        self.changed.iter().filter_map(put_back).collect()
    }
}

fn index_of(name: &str) -> io::Result<u32> {
    Ok(name_to_index(any_socket()?, name)?)
}

fn name_of(index: u32) -> io::Result<String> {
    Ok(index_to_name(any_socket()?, index)?)
}

fn any_socket() -> io::Result<std::os::fd::OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_typed_names_the_device_whatever_it_is_called() {
        assert_eq!(Habit::Ipv6.command("eth0.7"), "sysctl -w net/ipv6/conf/eth0.7/disable_ipv6=1");
        assert_eq!(Habit::LargeReceive.command("lan0"), "ethtool -K lan0 lro off");
    }

    #[test]
    fn a_device_that_is_not_there_is_told_and_one_that_is_gone_needs_nothing() {
        let (aside, errors) = stand_aside("no-such-device");
        assert!(aside.is_empty(), "{aside:?}");
        assert!(matches!(errors[..], [AsideError::Netlink(_)]), "{errors:?}");
        let gone = Aside { index: u32::MAX >> 1, changed: vec![(Habit::Arp, "0".to_owned())] };
        assert!(gone.undo().is_empty());
        assert!(habits("no-such-device").is_empty());
    }
}
