//! Ports: who else has to do with their devices.
//!
//! Problem: a device that passes frames on is still a device of the host, of a bridge, of a queue discipline or of a program in
//! the kernel, each of which may answer, pass on a second time, slow down or take away what goes through it.
//! Law: one finding for each of them, or one that says that there are none.

use ucake::io::aside::{self, Habit};
use ucake::io::netlink::{self, Company, NetlinkError};

use super::{Finding, Patient};
use crate::plan::PortName;

/// Disciplines with a rate of their own, or that hold back.
const SLOW: [&str; 8] = ["tbf", "htb", "hfsc", "cake", "cake_mq", "cbq", "netem", "plug"];
/// Where frames that arrive may be led elsewhere.
const INGRESS: [&str; 2] = ["ingress", "clsact"];

/// What is to be known of a port.
pub(super) fn examine(patient: &Patient) -> Vec<Finding> {
    let device = patient.port.device();
    let habits = match patient.port {
        PortName::Packet(_) => aside::habits(device),
        PortName::Tap(_) => Vec::new(),
    };
    judge(patient, netlink::company(device), &habits)
}

/// Judges by who there is, and by what the host does.
fn judge(
    patient: &Patient,
    company: Result<Company, NetlinkError>,
    habits: &[Habit],
) -> Vec<Finding> {
    let check = patient.port.to_string();
    let company = match (company, &patient.port) {
        (Ok(company), _) => company,
        (Err(NetlinkError::NoDevice { .. }), PortName::Tap(_)) => {
            return vec![Finding::good(check, "not there yet: ucake run makes it")];
        }
        (Err(error), _) => {
            let advice = "ip link shows what is here; a device of another namespace is not";
            return vec![Finding::missing(check, error.to_string(), advice)];
        }
    };
    let device = patient.port.device();
    let mut faults = everybody(device, &company);
    if let PortName::Packet(_) = patient.port {
        faults.extend(on_a_wire(device, &company));
        if patient.is_running {
            faults.extend(habits.iter().map(|habit| keeps(*habit, device)));
        }
    }
    if faults.is_empty() {
        return vec![Finding::good(check, sound(patient, &company))];
    }
    let limited = |(found, advice)| Finding::limited(check.clone(), found, advice);
    faults.into_iter().map(limited).collect()
}

fn sound(patient: &Patient, company: &Company) -> String {
    let mtu = company.mtu;
    match (&patient.port, patient.is_running) {
        (PortName::Tap(_), _) => format!("up, MTU {mtu}; nobody else sees its frames"),
        (PortName::Packet(_), true) => format!("up, MTU {mtu}; the host stands aside"),
        (PortName::Packet(_), false) => format!("up, MTU {mtu}; the host will stand aside"),
    }
}

type Fault = (String, String);

/// Faults of any device.
fn everybody(device: &str, company: &Company) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !company.up {
        faults.push(("down: nothing goes through it".into(), format!("ip link set {device} up")));
    }
    if let Some(kind) = company.qdiscs.iter().find(|kind| SLOW.contains(&kind.as_str())) {
        let found = format!("the kernel has a {kind} on it, below ucake: the queue stands there");
        faults.push((found, format!("tc qdisc del dev {device} root (sqm-scripts: stop them)")));
    }
    faults
}

/// Faults of a device that is heard by a packet socket.
fn on_a_wire(device: &str, company: &Company) -> Vec<Fault> {
    let mut faults = Vec::new();
    if let Some(controller) = &company.controller {
        let found = format!("a port of {controller}, which passes its frames on as well");
        faults.push((found, format!("ip link set {device} nomaster")));
    }
    if let Some((address, prefix)) = company.addresses.first() {
        let found =
            format!("has the address {address}/{prefix}: the host answers beside forwarding");
        let advice =
            format!("ip address flush dev {device}, and reach this machine by another device");
        faults.push((found, advice));
    }
    if company.has_xdp {
        let found = "an XDP program sees its frames first, and may keep them";
        faults.push((found.into(), format!("ip link set {device} xdp off")));
    }
    if let Some(kind) = company.qdiscs.iter().find(|kind| INGRESS.contains(&kind.as_str())) {
        let found = format!("has a qdisc {kind}: what it leads elsewhere arrives twice");
        faults.push((found, format!("tc qdisc del dev {device} {kind} (sqm-scripts: stop them)")));
    }
    faults
}

/// What the host should have given up.
fn keeps(habit: Habit, device: &str) -> Fault {
    let found = match habit {
        Habit::Arp => "the host answers ARP there",
        Habit::Ipv6 => "the host takes part in IPv6 there",
        Habit::LargeReceive => "it joins arriving frames for good (LRO)",
    };
    (found.into(), habit.command(device))
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn patient(port: &str, is_running: bool) -> Patient {
        Patient { port: port.parse().expect("a port"), is_running }
    }

    fn quiet() -> Company {
        let qdiscs = vec!["mq".to_owned(), "fq_codel".to_owned()];
        Company { up: true, mtu: 1500, qdiscs, ..Company::default() }
    }

    #[test]
    fn a_device_that_nobody_else_uses_is_good() {
        for (port, running) in [("packet:wan0", false), ("packet:wan0", true), ("tap:lan0", true)] {
            let findings = judge(&patient(port, running), Ok(quiet()), &[]);
            assert_eq!((findings.len(), findings[0].state), (1, State::Good), "{findings:?}");
            assert_eq!(findings[0].check, port);
        }
    }

    #[test]
    fn everybody_who_has_to_do_with_a_device_is_told_with_what_to_type() {
        let company = Company {
            up: false,
            controller: Some("br0".into()),
            has_xdp: true,
            addresses: vec![([192, 0, 2, 1].into(), 24)],
            qdiscs: vec!["htb".into(), "ingress".into()],
            ..quiet()
        };
        let habits = [Habit::Arp, Habit::Ipv6, Habit::LargeReceive];
        let findings = judge(&patient("packet:wan0", true), Ok(company.clone()), &habits);
        let advice: Vec<_> =
            findings.iter().map(|finding| finding.advice.as_deref().unwrap_or_default()).collect();
        assert_eq!(
            advice,
            [
                "ip link set wan0 up",
                "tc qdisc del dev wan0 root (sqm-scripts: stop them)",
                "ip link set wan0 nomaster",
                "ip address flush dev wan0, and reach this machine by another device",
                "ip link set wan0 xdp off",
                "tc qdisc del dev wan0 ingress (sqm-scripts: stop them)",
                "sysctl -w net/ipv4/conf/wan0/arp_ignore=8",
                "sysctl -w net/ipv6/conf/wan0/disable_ipv6=1",
                "ethtool -K wan0 lro off",
            ]
        );
        let tap = judge(&patient("tap:wan0", true), Ok(company), &[]);
        assert_eq!(tap.len(), 2, "a tap is the host's own: {tap:?}");
    }

    #[test]
    fn a_device_that_is_not_there_is_missing_unless_it_will_be_made() {
        let gone = || Err(NetlinkError::NoDevice { device: "wan0".into() });
        let of = |port| judge(&patient(port, false), gone(), &[])[0].state;
        assert_eq!((of("packet:wan0"), of("tap:wan0")), (State::Missing, State::Good));
    }
}
