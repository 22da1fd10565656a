//! The checks. Those that look return what those that judge make of it; only the latter are tested.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::path::Path;
use std::{fs, io, thread};

use rustix::thread::CapabilitySet;
use ucake::io::namespace::{Namespace, NamespaceError};
use ucake::io::packet_socket::PacketSocket;
use ucake::io::plain_tap::AnyTap;
use ucake::io::tap::{OpenError, TapOptions};
use ucake::io::timer::Timer;
use ucake::io::{clock, netlink};
use ucake::qdisc::Config;
use ucake::time::Span;

use super::Finding;
use crate::sandbox::{self, Measure, User};
use crate::value;

/// Numbers of capabilities (capabilities(7)) and what they are for.
const CAPABILITIES: [(u32, &str); 2] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW")];

pub fn privileges() -> Finding {
    judge_privileges(&fs::read_to_string("/proc/self/status").unwrap_or_default())
}

/// Judges by the mask of effective capabilities in `/proc/self/status`.
fn judge_privileges(status: &str) -> Finding {
    const CHECK: &str = "privileges";
    const ADVICE: &str =
        "run as root, or: setcap cap_net_admin,cap_net_raw+ep \"$(command -v ucake)\"";
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(mask) = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()) else {
        return Finding::limited(CHECK, "this system does not tell its capabilities", ADVICE);
    };
    let (has, lacks): (Vec<_>, Vec<_>) =
        CAPABILITIES.into_iter().partition(|(number, _)| mask & (1 << number) != 0);
    let names = |list: &[(u32, &'static str)]| {
        list.iter().map(|&(_, name)| name).collect::<Vec<_>>().join(" and ")
    };
    if lacks.is_empty() {
        Finding::good(CHECK, names(&has))
    } else {
        Finding::missing(CHECK, format!("no {}", names(&lacks)), ADVICE)
    }
}

pub fn namespaces() -> Finding {
    let users_may = fs::read_to_string("/proc/sys/user/max_user_namespaces")
        .is_ok_and(|count| count.trim() != "0");
    judge_namespaces(Namespace::new("doctor").map(drop), users_may)
}

/// Judges by whether one could be made, and whether users may make some of their own.
fn judge_namespaces(made: Result<(), NamespaceError>, users_may: bool) -> Finding {
    const CHECK: &str = "namespaces";
    match made {
        Ok(()) => Finding::good(CHECK, "network namespaces can be made: ucake lab works"),
        Err(NamespaceError::NotPermitted) if users_may => Finding::limited(
            CHECK,
            "not permitted to this user, other than in a user namespace",
            "ucake lab tries that; should it fail, run it as root",
        ),
        Err(error) => {
            let advice =
                "ucake run works without; for ucake lab run as root, outside of a container";
            Finding::limited(CHECK, one_line(&error), advice)
        }
    }
}

/// An error in one line.
fn one_line(error: &impl ToString) -> String {
    error.to_string().replace('\n', " ")
}

/// What the process that handles frames gives up, tried on a thread that ends right after.
pub fn sandbox() -> Finding {
    let tried = thread::spawn(|| sandbox::enter(User::NOBODY, CapabilitySet::empty())).join();
    judge_sandbox(tried.map_or_else(|_| Vec::new(), |report| report.measures))
}

/// Judges by what could be given up.
fn judge_sandbox(measures: Vec<Measure>) -> Finding {
    const CHECK: &str = "sandbox";
    let (kept, given_up): (Vec<_>, Vec<_>) =
        measures.into_iter().partition(|measure| measure.outcome.is_err());
    let list = |measures: &[Measure]| measures.iter().map(one_line).collect::<Vec<_>>().join(", ");
    if kept.is_empty() && !given_up.is_empty() {
        return Finding::good(CHECK, list(&given_up));
    }
    let found = format!("frames are handled with more rights than needed ({})", list(&kept));
    let advice = "run as root outside of a user namespace, on a kernel with seccomp and landlock";
    Finding::limited(CHECK, found, advice)
}

/// What a tap turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// With a vnet header and these offloads.
    Vnet(u32),
    /// Without.
    Plain,
}

/// A tap opened where it disturbs nobody; where that cannot be had, whether the driver can be reached at all.
pub fn taps() -> Vec<Finding> {
    let Ok(namespace) = Namespace::new("doctor") else {
        let device = fs::File::options().read(true).write(true).open("/dev/net/tun");
        return vec![judge_tun(&device.map(drop))];
    };
    let opened = namespace.run(|| {
        AnyTap::open("doctor0", &TapOptions::default()).map(|tap| match tap {
            AnyTap::Vnet(tap) => Kind::Vnet(tap.offloads()),
            AnyTap::Plain(_) => Kind::Plain,
        })
    });
    judge_taps(opened)
}

/// Judges by the device file alone.
fn judge_tun(device: &io::Result<()>) -> Finding {
    const CHECK: &str = "tun";
    let load = "modprobe tun, or pass the device into the container";
    match device {
        Ok(()) => Finding::limited(
            CHECK,
            "/dev/net/tun can be opened; whether a tap can be made was not tried",
            "run ucake doctor as root to have it tried",
        ),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Finding::missing(CHECK, "/dev/net/tun may not be opened", "run as root")
        }
        Err(error) => Finding::missing(CHECK, format!("/dev/net/tun: {error}"), load),
    }
}

/// Judges by a tap that was opened, or not.
fn judge_taps(opened: Result<Kind, OpenError>) -> Vec<Finding> {
    match opened {
        Ok(Kind::Vnet(bits)) => vec![
            Finding::good("tun", "taps can be made"),
            Finding::good("vnet header", "superpackets are read and written whole"),
            judge_offloads(bits),
        ],
        Ok(Kind::Plain) => vec![
            Finding::good("tun", "taps can be made"),
            Finding::limited(
                "vnet header",
                "taps have none: frames are read and written one by one",
                "nothing needs to be done; for more speed use a kernel whose tun driver has IFF_VNET_HDR",
            ),
        ],
        // Its messages say what to do behind a semicolon.
        Err(error) => {
            let message = one_line(&error);
            let (found, advice) = message.split_once("; ").unwrap_or((&message, "run as root"));
            vec![Finding::missing("tun", found, advice)]
        }
    }
}

/// Bits `TUN_F_*` of linux/if_tun.h, and what each leaves to us.
const OFFLOADS: [(u32, &str); 4] =
    [(0x01, "checksums"), (0x06, "TCP"), (0x08, "TCP with ECN"), (0x60, "UDP")];

fn judge_offloads(bits: u32) -> Finding {
    const CHECK: &str = "offloads";
    let (has, lacks): (Vec<_>, Vec<_>) =
        OFFLOADS.into_iter().partition(|(mask, _)| bits & mask == *mask);
    let names = |list: &[(u32, &'static str)]| {
        list.iter().map(|&(_, name)| name).collect::<Vec<_>>().join(", ")
    };
    if lacks.is_empty() {
        return Finding::good(CHECK, names(&has));
    }
    let advice = "nothing needs to be done; Linux 6.2 and later have all of them";
    Finding::limited(CHECK, format!("{}; without {}", names(&has), names(&lacks)), advice)
}

pub fn packet_sockets() -> Finding {
    let opened = Namespace::new("doctor").ok().map(|namespace| {
        namespace.run(|| {
            netlink::add_veth("doctor0", "doctor1").map_err(|error| one_line(&error))?;
            PacketSocket::open("doctor0").map(drop).map_err(|error| one_line(&error))
        })
    });
    judge_packet_sockets(opened)
}

/// Judges by one that was opened on a pair of veth, or not tried.
fn judge_packet_sockets(opened: Option<Result<(), String>>) -> Finding {
    const CHECK: &str = "packet sockets";
    match opened {
        Some(Ok(())) => Finding::good(CHECK, "packet:IFACE ports work"),
        Some(Err(error)) => Finding::limited(CHECK, error, "use tap:NAME ports, which do without"),
        None => Finding::limited(
            CHECK,
            "not tried, for want of a namespace to try it in",
            "run ucake doctor as root to have it tried",
        ),
    }
}

/// Wake-ups to measure, and how far apart.
const WAKE_UPS: usize = 250;
const APART: Span = Span::from_millis(1);

pub fn timer() -> Finding {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    judge_timer(runtime.and_then(|runtime| runtime.block_on(lateness())))
}

/// By how much each of a number of wake-ups was late.
async fn lateness() -> io::Result<Vec<Span>> {
    let mut timer = Timer::new()?;
    let mut late = Vec::with_capacity(WAKE_UPS);
    for _ in 0..WAKE_UPS {
        let due = clock::now() + APART;
        timer.set(Some(due))?;
        poll_fn(|cx| timer.poll_fired(cx)).await?;
        late.push(clock::now() - due);
    }
    Ok(late)
}

/// Judges by how late wake-ups were.
fn judge_timer(late: io::Result<Vec<Span>>) -> Finding {
    const CHECK: &str = "timer";
    let mut late = match late {
        Ok(late) if !late.is_empty() => late,
        Ok(_) => return Finding::missing(CHECK, "it never fired", "use another kernel"),
        Err(error) => return Finding::missing(CHECK, one_line(&error), "use another kernel"),
    };
    late.sort_unstable();
    let rank = |percent: usize| late[(late.len() - 1) * percent / 100];
    let [median, most, worst] = [50, 99, 100].map(rank);
    let found = format!(
        "wake-ups are late by {} (median), {} (99 %), {} (worst)",
        value::time(median),
        value::time(most),
        value::time(worst)
    );
    // What a run may take by default is what lateness may take without being felt.
    if most <= Config::DEFAULT_BURST {
        return Finding::good(CHECK, found);
    }
    let advice = "leave a processor to it, without deep sleep and power saving (in a virtual machine: of the \
                  host); auto-split-gso makes up for lateness";
    Finding::limited(CHECK, found, advice)
}

pub fn governor() -> Finding {
    judge_governor(&policies(Path::new("/sys/devices/system/cpu/cpufreq")))
}

/// Driver and governor of each policy of frequencies, without repetitions.
fn policies(folder: &Path) -> BTreeSet<(String, String)> {
    let read = |path: &Path, name: &str| {
        fs::read_to_string(path.join(name)).map(|text| text.trim().to_owned()).ok()
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let path = entry.path();
            let governor = read(&path, "scaling_governor")?;
            Some((read(&path, "scaling_driver").unwrap_or_default(), governor))
        })
        .collect()
}

/// Judges by the governors in use.
fn judge_governor(policies: &BTreeSet<(String, String)>) -> Finding {
    const CHECK: &str = "processor";
    // With these drivers "powersave" is the name of what goes faster on demand.
    let self_governed = |driver: &str| matches!(driver, "intel_pstate" | "amd-pstate-epp");
    let slow = policies.iter().find(|(driver, governor)| match governor.as_str() {
        "powersave" => !self_governed(driver),
        "conservative" | "ondemand" => true,
        _ => false,
    });
    let names: BTreeSet<&str> = policies.iter().map(|(_, governor)| governor.as_str()).collect();
    match (slow, names.is_empty()) {
        (Some((_, governor)), _) => Finding::limited(
            CHECK,
            format!("governor {governor}: it is slow to speed up"),
            "cpupower frequency-set -g performance, if throughput or delay is wanting",
        ),
        (None, true) => Finding::good(CHECK, "its frequency is nothing this system decides"),
        (None, false) => {
            let names: Vec<&str> = names.into_iter().collect();
            Finding::good(CHECK, format!("governor {}", names.join(", ")))
        }
    }
}

pub fn sch_cake() -> Finding {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    let release = release.trim();
    let modules = Path::new("/lib/modules").join(release);
    let lists = ["modules.builtin", "modules.dep"]
        .map(|name| fs::read_to_string(modules.join(name)).unwrap_or_default());
    judge_sch_cake(release, &read("/proc/modules"), &lists)
}

/// Judges by the modules that are loaded, and the lists of those that could be. Either answer is good.
fn judge_sch_cake(release: &str, loaded: &str, lists: &[String]) -> Finding {
    const CHECK: &str = "sch_cake";
    let is_loaded = loaded.lines().any(|line| line.split(' ').next() == Some(CHECK));
    let found = if is_loaded {
        format!("Linux {release} has it loaded; tc can do this in the kernel too")
    } else if lists.iter().any(|list| list.contains("/sch_cake.ko")) {
        format!("Linux {release} has it; tc can do this in the kernel too")
    } else {
        format!("not found in Linux {release}; ucake does without")
    };
    Finding::good(CHECK, found)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn what_cannot_be_given_up_is_told() {
        let measure = |name: &str, outcome| Measure { name: name.to_owned(), outcome };
        let user = measure("user", Ok("65534".to_owned()));
        let good = judge_sandbox(vec![user.clone()]);
        assert_eq!((good.state, &*good.found), (State::Good, "user: 65534"));
        let files = measure("landlock", Err("this kernel has it not".to_owned()));
        let limited = judge_sandbox(vec![user, files]);
        assert_eq!(limited.state, State::Limited);
        assert!(limited.found.contains("(landlock: this kernel has it not)"), "{limited:?}");
        assert_eq!(judge_sandbox(Vec::new()).state, State::Limited);
    }

    #[test]
    fn privileges_are_read_off_the_mask() {
        let of = |mask: &str| judge_privileges(&format!("Name:\tx\nCapEff:\t{mask}\n"));
        assert_eq!(of("000001ffffffffff").state, State::Good);
        let raw_only = of("0000000000002000");
        assert_eq!((raw_only.state, &*raw_only.found), (State::Missing, "no CAP_NET_ADMIN"));
        assert_eq!(of("0000000000000000").found, "no CAP_NET_ADMIN and CAP_NET_RAW");
        assert_eq!(judge_privileges("").state, State::Limited);
    }

    #[test]
    fn users_without_namespaces_are_told_what_else_there_is() {
        assert_eq!(judge_namespaces(Ok(()), false).state, State::Good);
        let of = |users| judge_namespaces(Err(NamespaceError::NotPermitted), users);
        assert!(of(true).found.contains("user namespace"));
        assert!(of(false).advice.expect("there is some").contains("root"));
    }

    #[test]
    fn a_tap_tells_of_header_and_offloads() {
        let all = judge_taps(Ok(Kind::Vnet(0x6f)));
        assert!(all.iter().all(|finding| finding.state == State::Good), "{all:?}");
        assert_eq!(all[2].found, "checksums, TCP, TCP with ECN, UDP");
        let old = judge_taps(Ok(Kind::Vnet(0x0f)));
        assert_eq!((old[2].state, old[2].found.ends_with("; without UDP")), (State::Limited, true));
        let plain = judge_taps(Ok(Kind::Plain));
        assert_eq!((plain.len(), plain[1].state), (2, State::Limited));
    }

    #[test]
    fn without_the_driver_the_message_is_divided_into_what_is_and_what_to_do() {
        let findings = judge_taps(Err(OpenError::NoTun { name: "doctor0".into() }));
        let [Finding { state, found, advice, .. }] = &findings[..] else { panic!("one is enough") };
        assert_eq!(*state, State::Missing);
        assert!(found.ends_with("there is no /dev/net/tun"), "{found}");
        assert!(advice.as_deref().is_some_and(|text| text.starts_with("load the module")));
        let absent = judge_tun(&Err(io::ErrorKind::NotFound.into()));
        assert!(absent.advice.is_some_and(|advice| advice.starts_with("modprobe tun")));
        let closed = judge_tun(&Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!((closed.state, closed.advice.as_deref()), (State::Missing, Some("run as root")));
    }

    #[test]
    fn late_wake_ups_are_told_with_their_ranks() {
        let of = |micros: i64| {
            judge_timer(Ok((1..=100).map(|n| Span::from_micros(n * micros)).collect()))
        };
        let prompt = of(1);
        assert_eq!(prompt.state, State::Good);
        let found = "wake-ups are late by 50us (median), 99us (99 %), 100us (worst)";
        assert_eq!(prompt.found, found);
        assert_eq!(of(10).state, State::Limited);
        assert_eq!(judge_timer(Err(io::ErrorKind::Other.into())).state, State::Missing);
    }

    #[test]
    fn governors_that_are_slow_to_speed_up_are_named() {
        let of = |driver: &str, governor: &str| {
            judge_governor(&BTreeSet::from([(driver.to_owned(), governor.to_owned())])).state
        };
        assert_eq!(of("acpi-cpufreq", "performance"), State::Good);
        assert_eq!(of("acpi-cpufreq", "ondemand"), State::Limited);
        assert_eq!(of("acpi-cpufreq", "powersave"), State::Limited);
        assert_eq!(of("intel_pstate", "powersave"), State::Good);
        assert_eq!(judge_governor(&BTreeSet::new()).state, State::Good);
    }

    #[test]
    fn the_module_is_found_loaded_or_on_a_list() {
        let of = |loaded: &str, list: &str| judge_sch_cake("7.2", loaded, &[list.to_owned()]).found;
        assert!(of("sch_cake 45056 0 - Live 0x0", "").contains("loaded"));
        assert!(of("", "kernel/net/sched/sch_cake.ko.xz:").starts_with("Linux 7.2 has it;"));
        assert!(of("sch_cake_mq 1 0", "kernel/net/sched/sch_codel.ko:").starts_with("not found"));
    }
}
