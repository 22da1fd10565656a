//! Least privilege for whoever handles frames.
//!
//! Problem: frames come from strangers. If one of them should ever get the better of the code that reads it, the
//! process that runs it must be worth nothing.
//! Source: setresuid(2), capabilities(7), prctl(2), seccomp(2), landlock(7).
//! Law: whoever holds all its descriptors needs no rights. User, capabilities, new privileges, files and system
//! calls are given up in this order, each where the kernel lets us; what could not be given up is told. All of it
//! is the calling thread's, and that of threads it starts afterwards: enter before there are any.
//! Left out: limits of memory and processor time, which whoever starts the program sets (cgroups).

use std::collections::BTreeMap;
use std::{fmt, fs};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetCreated,
    RulesetStatus, Scope,
};
use rustix::fs::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
    set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use serde::{Deserialize, Serialize};

/// The newest landlock whose rights are given up; an older kernel has fewer.
const LANDLOCK: ABI = ABI::V6;

/// Who to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
}

impl User {
    /// Whom Linux gives to those who are nobody.
    pub const NOBODY: Self = Self { uid: 65534, gid: 65534 };

    /// A user by name, or by number, whose group then has the same one.
    pub fn find(name: &str) -> Option<Self> {
        if let Ok(uid) = name.parse() {
            return Some(Self { uid, gid: uid });
        }
        let table = fs::read_to_string("/etc/passwd").unwrap_or_default();
        // A system without such a table has nobody all the same.
        Self::find_in(&table, name).or((name == "nobody").then_some(Self::NOBODY))
    }

    /// Looks a name up in the form of `/etc/passwd`.
    fn find_in(table: &str, name: &str) -> Option<Self> {
        table.lines().find_map(|line| {
            let mut fields = line.split(':');
            if fields.next() != Some(name) {
                return None;
            }
            let (uid, gid) = (fields.nth(1)?, fields.next()?);
            Some(Self { uid: uid.parse().ok()?, gid: gid.parse().ok()? })
        })
    }
}

/// What was given up, and what could not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// One for each kind of privilege, in the order they were given up.
    pub measures: Vec<Measure>,
}

/// One kind of privilege.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// `user`, `capabilities`, `no new privileges`, `landlock` or `seccomp`.
    pub name: String,
    /// What is left of it, or why it could not be given up.
    pub outcome: Result<String, String>,
}

impl Report {
    /// What could not be given up.
    pub fn failures(&self) -> impl Iterator<Item = &Measure> {
        self.measures.iter().filter(|measure| measure.outcome.is_err())
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Ok(text) | Err(text)) = &self.outcome;
        write!(f, "{}: {text}", self.name)
    }
}

/// Gives up, for the calling thread and those it will start, whatever is not needed to handle frames by
/// descriptors that are open; of capabilities all but `keep`.
pub fn enter(user: User, keep: CapabilitySet) -> Report {
    let mut measures = Vec::new();
    let mut note = |name: &str, outcome| measures.push(Measure { name: name.to_owned(), outcome });
    // Needs a capability, hence first; without it there is nothing a new program could gain either.
    drop_bounding_set(keep);
    note("user", become_user(user, keep).map_err(|error| error.to_string()));
    note("capabilities", drop_capabilities(keep).map_err(|error| error.to_string()));
    let no_new_privs = set_no_new_privs(true).map(|()| "none".to_owned());
    note("no new privileges", no_new_privs.map_err(|error| error.to_string()));
    note("landlock", restrict_files());
    note("seccomp", restrict_calls());
    Report { measures }
}

fn drop_bounding_set(keep: CapabilitySet) {
    let all = (0..64).map(|number| CapabilitySet::from_bits_retain(1 << number));
    for capability in all.filter(|one| !keep.contains(*one)) {
        // Those that this kernel does not know are an error.
        if capability_is_in_bounding_set(capability).unwrap_or(false) {
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
}

/// All three are tried even if one is refused: in a user namespace groups may be what cannot be given up.
fn become_user(User { uid, gid }: User, keep: CapabilitySet) -> rustix::io::Result<String> {
    let now = rustix::process::geteuid();
    if now == Uid::from_raw(uid) {
        return Ok(uid.to_string());
    }
    if !keep.is_empty() {
        set_keep_capabilities(true)?;
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let groups = set_thread_groups(&[]).and(set_thread_res_gid(gid, gid, gid));
    match groups.and(set_thread_res_uid(uid, uid, uid)) {
        Ok(()) => Ok(uid.as_raw().to_string()),
        Err(errno) if now.is_root() => Err(errno),
        // Whoever is not root has nothing to give up.
        Err(_) => Ok(format!("{} as before", now.as_raw())),
    }
}

fn drop_capabilities(keep: CapabilitySet) -> rustix::io::Result<String> {
    // Kernels before 4.3 have no such set.
    let _ = clear_ambient_capability_set();
    let permitted = rustix::thread::capabilities(None)?.permitted & keep;
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable })?;
    let names: Vec<_> = permitted.iter_names().map(|(name, _)| name).collect();
    Ok(if names.is_empty() { "none".to_owned() } else { names.join(", ") })
}

/// No path may be opened any more, no address bound or connected to, and nobody outside signalled.
fn restrict_files() -> Result<String, String> {
    let restricted = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(LANDLOCK)))
        .and_then(|rules| rules.scope(Scope::from_all(LANDLOCK)))
        .and_then(Ruleset::create)
        .and_then(RulesetCreated::restrict_self);
    match restricted.map(|status| status.ruleset) {
        Ok(RulesetStatus::FullyEnforced) => Ok("no files".to_owned()),
        Ok(RulesetStatus::PartiallyEnforced) => {
            Ok("no files, as far as this kernel goes".to_owned())
        }
        Ok(RulesetStatus::NotEnforced) => Err("this kernel has it not".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Only system calls that handling frames needs; others fail with `EPERM`.
fn restrict_calls() -> Result<String, String> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| error.to_string())?;
    let (new_style, allowed) = filters(arch).map_err(|error| error.to_string())?;
    seccompiler::apply_filter(&new_style)
        .and_then(|()| seccompiler::apply_filter(&allowed))
        .map_err(|error| error.to_string())?;
    Ok(format!("{} system calls", rules().len()))
}

fn filters(arch: TargetArch) -> Result<(BpfProgram, BpfProgram), seccompiler::BackendError> {
    // What it is to clone stands in memory, where no filter looks; without it the C library takes the older one.
    let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let not_here = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let new_style = SeccompFilter::new(clone3, SeccompAction::Allow, not_here, arch)?;
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let allowed = SeccompFilter::new(rules(), refused, SeccompAction::Allow, arch)?;
    Ok((new_style.try_into()?, allowed.try_into()?))
}

/// Allowed whatever their arguments are: none of them opens, binds, connects, signals or starts anything.
const CALLS: &[libc::c_long] = &[
    // frames, requests, the supervisor
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    // the control socket listens already
    libc::SYS_accept4,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_shutdown,
    // descriptors
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    // waiting
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // memory
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // threads, signals, the end
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    // the rest
    libc::SYS_getrandom,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];

/// The requests of `ioctl` that ports make, as every architecture has them that is filtered here.
const IOCTLS: [u64; 6] = [
    // TIOCOUTQ, by its other name SIOCOUTQ
    0x5411,
    // FIONBIO
    0x5421,
    // SIOCGIFNAME, SIOCGIFFLAGS, SIOCGIFMTU
    0x8910,
    0x8913,
    0x8921,
    // TUNSETOFFLOAD
    0x4004_54d0,
];

fn rules() -> BTreeMap<i64, Vec<SeccompRule>> {
    let small = |number: libc::c_int| u64::from(number.unsigned_abs());
    let no_bit =
        |argument, bits: libc::c_int| rule(argument, SeccompCmpOp::MaskedEq(small(bits)), 0);
    let thread = small(libc::CLONE_THREAD);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        CALLS.iter().map(|&call| (call, Vec::new())).collect();
    rules.extend([
        (libc::SYS_ioctl, IOCTLS.map(|request| rule(1, SeccompCmpOp::Eq, request)).to_vec()),
        // Nothing that could be run.
        (libc::SYS_mmap, vec![no_bit(2, libc::PROT_EXEC)]),
        (libc::SYS_mprotect, vec![no_bit(2, libc::PROT_EXEC)]),
        // Threads, no processes.
        (libc::SYS_clone, vec![rule(0, SeccompCmpOp::MaskedEq(thread), thread)]),
        // Names of threads.
        (libc::SYS_prctl, vec![rule(0, SeccompCmpOp::Eq, small(libc::PR_SET_NAME))]),
        // Limits are read, not set.
        (libc::SYS_prlimit64, vec![null(2)]),
        // What tokio wakes itself with on a signal.
        (libc::SYS_socketpair, vec![rule(0, SeccompCmpOp::Eq, small(libc::AF_UNIX))]),
    ]);
    rules
}

fn rule(argument: u8, operator: SeccompCmpOp, value: u64) -> SeccompRule {
    condition(argument, SeccompCmpArgLen::Dword, operator, value)
}

fn null(argument: u8) -> SeccompRule {
    condition(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

fn condition(
    argument: u8,
    len: SeccompCmpArgLen,
    operator: SeccompCmpOp,
    value: u64,
) -> SeccompRule {
    let condition = SeccompCondition::new(argument, len, operator, value);
    let condition = condition.expect("system calls have six arguments, and this one exists");
    SeccompRule::new(vec![condition]).expect("it has a condition")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::net::UdpSocket;
    use std::os::unix::net::UnixStream;
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    use rustix::io::Errno;

    use super::*;

    /// What became of a thread of its own in there.
    fn inside<T: Send + 'static>(job: impl FnOnce(Report) -> T + Send + 'static) -> T {
        let thread = thread::spawn(move || job(enter(User::NOBODY, CapabilitySet::empty())));
        thread.join().expect("it does nothing that ends a thread")
    }

    fn works(report: &Report, name: &str) -> bool {
        report.measures.iter().any(|measure| measure.name == name && measure.outcome.is_ok())
    }

    #[test]
    fn users_are_found_by_name_and_by_number() {
        let table = "root:x:0:0:root:/root:/bin/sh\nann:x:1000:100::/:\nbroken\nodd:x:a:b:\n";
        assert_eq!(User::find_in(table, "ann"), Some(User { uid: 1000, gid: 100 }));
        for name in ["an", "broken", "odd", ""] {
            assert_eq!(User::find_in(table, name), None, "{name}");
        }
        assert_eq!(User::find("123"), Some(User { uid: 123, gid: 123 }));
        assert!(User::find("nobody").is_some() && User::find("no such user").is_none());
    }

    #[test]
    fn inside_there_are_no_rights_left_and_whoever_is_outside_keeps_theirs() {
        let before = rustix::thread::capabilities(None).expect("ours");
        let (report, sets) = inside(|report| (report, rustix::thread::capabilities(None)));
        assert_eq!(report.measures.len(), 5, "{report:?}");
        assert!(works(&report, "capabilities") && works(&report, "no new privileges"));
        // With seccomp one may not even ask.
        match sets.map(|sets| sets.permitted | sets.effective | sets.inheritable) {
            Ok(sets) => assert!(sets.is_empty(), "{sets:?}"),
            Err(errno) => assert_eq!(errno, Errno::PERM),
        }
        assert_eq!(rustix::thread::capabilities(None).expect("ours"), before);
    }

    #[test]
    fn inside_nothing_is_opened_connected_or_started() {
        let (report, refused) = inside(|report| {
            let refused = [
                ("open", File::open("/etc/passwd").is_err()),
                ("socket", UdpSocket::bind("127.0.0.1:0").is_err()),
                ("connect", UnixStream::connect("/run/none.sock").is_err()),
                ("program", Command::new("/bin/true").status().is_err()),
                ("signal", rustix::process::test_kill_process(rustix::process::getpid()).is_err()),
            ];
            (report, refused)
        });
        if works(&report, "seccomp") {
            for (what, refused) in refused {
                assert!(refused, "{what}");
            }
        }
    }

    #[test]
    fn inside_threads_memory_timers_and_sockets_that_are_open_work() {
        let (mut near, mut far) = UnixStream::pair().expect("two ends");
        near.write_all(b"hello").expect("there is room");
        let echo = move || {
            let mut bytes = vec![0; 1 << 20];
            far.read_exact(&mut bytes[..5])?;
            far.write_all(&bytes[..5])
        };
        let (echoed, slept) = inside(move |_| {
            let helper = thread::Builder::new().name("helper".to_owned()).spawn(echo);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let sleep = || tokio::time::sleep(Duration::from_millis(1));
            let slept = runtime.map(|runtime| runtime.block_on(async { sleep().await }));
            (helper.map(|thread| thread.join().is_ok_and(|echoed| echoed.is_ok())), slept)
        });
        assert!(matches!((&echoed, &slept), (Ok(true), Ok(()))), "{echoed:?} {slept:?}");
        let mut answer = [0; 5];
        near.read_exact(&mut answer).expect("it was echoed");
        assert_eq!(&answer, b"hello");
    }
}
