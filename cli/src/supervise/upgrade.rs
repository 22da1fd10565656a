//! A newer program takes the place of the one that runs.
//!
//! Problem: whoever ends a supervisor to start its successor takes the line down, and a successor that does not start
//! leaves it down.
//! Source: execve(2), which keeps process and descriptors; unix(7), `SO_PEERCRED`.
//! Law: what stands where the program was started from is tried first, on all that is known but without any
//! descriptor. If it says it could go on, the data process ends in order, and then the process is the new program.
//! Who asks has to be allowed to send signals to the supervisor: root and its own user; whoever may use the control
//! socket may not for that. Whom to signal the kernel tells, not the data process.
//! Left out: where newer programs come from.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tracing::warn;
use ucake_cli::protocol::{Reply, Request, Supervision};

use super::state::Kept;
use super::{Supervisor, handover, link, run};
use crate::args::{ResumeArgs, UpgradeArgs};
use crate::client::Client;
use crate::control::Socket;

/// A program that has not said in this time whether it could go on cannot.
const TRIAL: Duration = Duration::from_secs(5);
/// Bytes of what it says about that.
const LONGEST_EXCUSE: u64 = 4096;
/// How long an upgrade may take, trial included.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(10);

impl Supervisor {
    /// Has a newer program tried, unless one is.
    pub(super) fn try_candidate(&mut self) {
        let (program, text) = (self.kept.program.clone(), self.kept.write());
        self.candidate
            .get_or_insert_with(|| tokio::spawn(async move { try_program(&program, &text).await }));
    }

    pub(super) fn refuse_upgrade(&mut self, reason: &str) {
        self.kept.supervision.upgrades_failed += 1;
        warn!(reason, "no upgrade; going on as before");
    }

    /// Becomes the newer program. Comes back only if that cannot be.
    pub(super) fn upgrade(&mut self) {
        self.kept.lose_queues();
        let error = self.exec().unwrap_or_else(|error| error);
        self.refuse_upgrade(&error.to_string());
    }

    fn exec(&self) -> io::Result<io::Error> {
        let (ours, theirs) = link::pair()?;
        handover::send(&ours, &self.kept.write(), &self.descriptors())?;
        let mut command = Command::new(&self.kept.program);
        // The old arguments are there for people to see.
        command.arg0("ucake").args(["resume", "--"]).args(&self.kept.arguments);
        Ok(command.stdin(Stdio::from(theirs)).exec())
    }
}

/// Whether a program could go on from `text`; why not.
async fn try_program(program: &Path, text: &str) -> Result<(), String> {
    let told = |error: io::Error| format!("{}: {error}", program.display());
    check_owner(program)?;
    let (ours, theirs) = link::pair().map_err(told)?;
    handover::send(&ours, text, &[]).map_err(told)?;
    let mut command = Command::new(program);
    command.args(["resume", "--check"]).stdin(Stdio::from(theirs));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(told)?;
    let begun = Instant::now();
    while begun.elapsed() < TRIAL {
        if let Some(status) = child.try_wait().map_err(told)? {
            return judge(&status, &mut child);
        }
        tokio::time::sleep(LOOK).await;
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(format!("{} does not say whether it could go on", program.display()))
}

fn judge(status: &ExitStatus, child: &mut Child) -> Result<(), String> {
    if status.success() {
        return Ok(());
    }
    let mut excuse = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.take(LONGEST_EXCUSE).read_to_string(&mut excuse);
    }
    let excuse = excuse.trim();
    Err(if excuse.is_empty() { format!("the new program {status}") } else { excuse.to_owned() })
}

/// What others may write root does not run.
fn check_owner(program: &Path) -> Result<(), String> {
    let path = program.display();
    let metadata = fs::metadata(program).map_err(|error| format!("{path}: {error}"))?;
    let us = rustix::process::geteuid().as_raw();
    if ![0, us].contains(&metadata.uid()) {
        return Err(format!("{path} belongs to user {}, not to root", metadata.uid()));
    }
    if us == 0 && metadata.permissions().mode() & 0o022 != 0 {
        return Err(format!("others than root may write {path}; type chmod go-w {path}"));
    }
    Ok(())
}

/// The newer program, once it is there; or whether it could go on.
///
/// # Errors
/// Nothing usable was handed over, or the work cannot go on.
pub(crate) fn resume(args: &ResumeArgs) -> anyhow::Result<ExitCode> {
    let (text, mut fds) = handover::receive(io::stdin()).context("nothing was handed over")?;
    let mut kept = Kept::read(&text).map_err(anyhow::Error::msg)?;
    if args.check {
        return Ok(ExitCode::SUCCESS);
    }
    kept.supervision.upgraded += 1;
    let listener = kept.socket.as_ref().map(|_| fds.remove(0));
    let socket = listener.zip(kept.socket.clone()).map(|(fd, path)| Socket::from_fd(fd, path));
    run(kept, fds, socket)
}

/// `ucake upgrade`.
///
/// # Errors
/// There is nobody to upgrade or more than one, this is not permitted, or the new program is no good.
pub(crate) fn ask(args: &UpgradeArgs) -> anyhow::Result<ExitCode> {
    let clients = Client::all(args.control.as_deref())?;
    let Ok([mut client]) = <[Client; 1]>::try_from(clients) else {
        bail!("more than one ucake runs; say which one with --control PATH");
    };
    let pid = client.listener().context("cannot tell which process it is")?;
    let process = pidfd_open(pid, PidfdFlags::empty()).context("cannot reach the process")?;
    // It answers now that the process is held: its number is of nobody else.
    let before = supervision(&mut client)?;
    pidfd_send_signal(&process, Signal::USR2).map_err(|errno| match errno {
        Errno::PERM => {
            anyhow::anyhow!("not permitted; upgrades are for root and for whoever runs it")
        }
        other => other.into(),
    })?;
    let path = client.path().to_owned();
    drop(client);
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        thread::sleep(LOOK);
        // Meanwhile nobody may answer, or one that ends.
        let now = Client::all(Some(&path)).ok().and_then(|mut all| supervision(&mut all[0]).ok());
        match now {
            Some(now) if now.upgraded > before.upgraded => return Ok(ExitCode::SUCCESS),
            Some(now) if now.upgrades_failed > before.upgrades_failed => {
                bail!(
                    "the new program could not take over; the old one goes on, and its log says why"
                )
            }
            _ => {}
        }
    }
    bail!("no answer from {} since it was asked to upgrade", path.display())
}

fn supervision(client: &mut Client) -> anyhow::Result<Supervision> {
    match client.ask(&Request::Hello)? {
        Reply::Hello { supervision: Some(supervision), .. } => Ok(supervision),
        Reply::Hello { .. } => bail!("it runs without a supervisor; stop it and start it again"),
        other => Err(client.strange(&other).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_may_write_is_not_run() {
        let path = std::env::temp_dir().join(format!("ucake-program-{}", std::process::id()));
        fs::write(&path, "").expect("a file");
        let set =
            |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        set(0o755);
        assert_eq!(check_owner(&path), Ok(()));
        if rustix::process::geteuid().is_root() {
            for mode in [0o775, 0o757] {
                set(mode);
                assert!(check_owner(&path).is_err(), "{mode:o}");
            }
        }
        fs::remove_file(&path).expect("ours");
        assert!(check_owner(&path).is_err(), "it is gone");
    }
}
