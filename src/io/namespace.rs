//! Network namespaces that live as long as a value, and root for those who are not.
//!
//! Problem: a test or a laboratory needs networks of its own and must leave nothing behind, not
//! even when it is killed.
//! Law: a namespace is held by a thread that lives in it; no name, no mount, no file. Threads,
//! sockets and taps made inside hold it too.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rustix::io::Errno;

use super::netlink::{self, LinkOptions, NetlinkError};
use super::sys;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace of our own, with its loopback up.
pub struct Namespace {
    jobs: Option<mpsc::Sender<Job>>,
    resident: Option<JoinHandle<()>>,
}

/// Why there is no namespace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamespaceError {
    /// Not allowed.
    #[error("cannot make a network namespace: not permitted; run as root or with CAP_SYS_ADMIN")]
    NotPermitted,
    /// The user namespace was refused.
    #[error(
        "cannot become root in a user namespace: this system forbids it (see the sysctls \
         kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns and \
         user.max_user_namespaces); run as root instead"
    )]
    UserForbidden,
    /// Too late.
    #[error("cannot become root in a user namespace: the process has started threads already")]
    ManyThreads,
    /// The user namespace was entered, but the ids could not be mapped.
    #[error("cannot become root in a user namespace: writing {file}: {source}")]
    Mapping {
        /// The file under /proc.
        file: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// Loopback would not come up.
    #[error(transparent)]
    Loopback(#[from] NetlinkError),
    /// Anything else.
    #[error("cannot make a network namespace: {0}")]
    System(#[source] io::Error),
}

impl Namespace {
    /// A fresh namespace. `label` names its thread, for whoever looks at the process from outside.
    ///
    /// # Errors
    /// Not permitted, or the system is out of something.
    pub fn new(label: &str) -> Result<Self, NamespaceError> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (report, outcome) = mpsc::channel();
        let live = move || {
            let moved_in = move_in();
            let alive = moved_in.is_ok();
            // Whoever asked may be gone; then there is no one to tell.
            let _ = report.send(moved_in);
            if alive {
                inbox.into_iter().for_each(|job| job());
            }
        };
        let resident = thread::Builder::new()
            .name(label.into())
            .spawn(live)
            .map_err(NamespaceError::System)?;
        let namespace = Self { jobs: Some(jobs), resident: Some(resident) };
        outcome.recv().expect("the thread reports before it ends")?;
        Ok(namespace)
    }

    /// Runs `job` inside and waits for it. A panic of `job` is passed on.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, outcome) = mpsc::channel();
        let job = move || {
            // The receiver waits until this is sent.
            let _ = done.send(catch_unwind(AssertUnwindSafe(job)));
        };
        let jobs = self.jobs.as_ref().expect("present until dropped");
        jobs.send(Box::new(job)).expect("the thread lives as long as its handle");
        match outcome.recv().expect("the thread answers every job") {
            Ok(value) => value,
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Starts a thread inside. Threads and processes that it starts are inside too.
    ///
    /// # Errors
    /// The system has no room for another thread.
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        let name = name.to_owned();
        self.run(move || thread::Builder::new().name(name).spawn(job))
    }

    /// The namespace as a file, to move devices into.
    ///
    /// # Errors
    /// /proc is not mounted.
    pub fn file(&self) -> io::Result<std::fs::File> {
        self.run(|| std::fs::File::open("/proc/thread-self/ns/net"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(resident) = self.resident.take() {
            // It ends when its jobs do; a panic of one was passed on already.
            let _ = resident.join();
        }
    }
}

fn move_in() -> Result<(), NamespaceError> {
    sys::unshare_network().map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::PERM) => NamespaceError::NotPermitted,
        _ => NamespaceError::System(error),
    })?;
    let up = LinkOptions { up: Some(true), ..LinkOptions::default() };
    Ok(netlink::configure("lo", &up)?)
}

/// Makes this process root of a user namespace and a network namespace of its own, where it may do
/// what root may: open taps, make further namespaces. Call before any thread is started.
///
/// # Errors
/// Threads were started, or the system does not let users do this.
pub fn become_root_in_user_namespace() -> Result<(), NamespaceError> {
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    sys::unshare_user_and_network().map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::INVAL) => NamespaceError::ManyThreads,
        Some(Errno::PERM | Errno::NOSPC | Errno::USERS | Errno::ACCESS) => {
            NamespaceError::UserForbidden
        }
        _ => NamespaceError::System(error),
    })?;
    // A user without privilege may map groups only after giving up setgroups (user_namespaces(7)).
    write_map("/proc/self/setgroups", "deny")?;
    write_map("/proc/self/uid_map", &format!("0 {uid} 1"))?;
    write_map("/proc/self/gid_map", &format!("0 {gid} 1"))
}

fn write_map(file: &'static str, line: &str) -> Result<(), NamespaceError> {
    std::fs::write(file, line).map_err(|source| match source.kind() {
        // AppArmor lets the namespace be made and then grants nothing inside it.
        io::ErrorKind::PermissionDenied => NamespaceError::UserForbidden,
        _ => NamespaceError::Mapping { file, source },
    })
}
