//! The supervisor: it holds the ports open and sees to it that somebody handles their frames.
//!
//! Problem: a program that reads every frame of a line will one day end where it should not, and must not take the
//! line with it: taps disappear with their last descriptor, and what waits in them is lost.
//! Source: issue "A line one can live on", survival; the measures are those of every supervisor tree.
//! Law: the supervisor opens, and reads no frame; the data process reads frames, and opens nothing. When that one
//! ends, or says nothing for a second and a half, another is started with the same descriptors and all that was last
//! known. The newest program takes the supervisor's own place without any descriptor being closed.
//! Left out: what to try after how many ends ([`health`]), who does the work ([`worker`], [`data`]), how one program
//! follows another ([`upgrade`]).

mod data;
mod handover;
mod health;
mod link;
mod reload;
mod service;
pub(crate) mod state;
mod upgrade;
mod worker;

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};
use ucake::io::inherited;
use ucake_cli::sandbox::Report;

use crate::control::Socket;
use crate::run::aside;
use crate::signals::{Asked, Signals};
use crate::translation;
use crate::work;
pub(crate) use data::main as data;
use health::{Health, Mode};
use link::Link;
use reload::Reload;
use state::{Kept, News, Order};
pub(crate) use upgrade::{ask as ask_to_upgrade, resume};
use worker::Worker;

/// How often silence is looked for. Ticks are counted, not time: after both processes were stopped, as a whole
/// machine may be, the data process gets as long as ever to say something.
const TICK: Duration = Duration::from_millis(250);
/// Ticks without a word after which one that was heard of is taken to hang: 1.5 s.
const SILENCE: u32 = 6;
/// The same for one that has just started: 5 s.
const START: u32 = 20;
/// The same for one that was told to stop: 2 s.
const STOP: u32 = 8;
/// How often the data process is told what ports' devices lost before it read them: it has no right to ask.
const LOOK: Duration = Duration::from_secs(1);
/// Between two relays, of which nobody knows why they end, at first; it doubles each time …
const RELAY_PAUSE: Duration = Duration::from_millis(100);
/// … up to this.
const LONGEST_RELAY_PAUSE: Duration = Duration::from_secs(10);

/// Supervises until a signal says stop. `ports` are as [`Kept`] has them, without the listener.
///
/// # Errors
/// The work cannot go on.
pub(crate) fn run(
    mut kept: Kept,
    ports: Vec<OwnedFd>,
    socket: Option<Socket>,
) -> anyhow::Result<ExitCode> {
    // After an upgrade nobody has done so yet.
    kept.log.into_iter().for_each(crate::log::set_level);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    if let Err(error) = inherited::keep_from_children() {
        debug!(%error, "the data process gets whatever was open when we were started");
    }
    runtime.context("cannot start")?.block_on(async {
        let signals = Signals::watch().context("cannot watch for signals")?;
        aside::stand_aside(&mut kept.bridges);
        let health = Health::new();
        let supervisor = Supervisor {
            kept,
            ports,
            socket,
            health,
            signals,
            stuck: Vec::new(),
            candidate: None,
            relay_pause: RELAY_PAUSE,
            told_of_rights: false,
            told_ready: false,
        };
        supervisor.run().await
    })?;
    Ok(ExitCode::SUCCESS)
}

struct Supervisor {
    kept: Kept,
    ports: Vec<OwnedFd>,
    socket: Option<Socket>,
    health: Health,
    signals: Signals,
    /// Those that could not be waited for.
    stuck: Vec<Worker>,
    /// A newer program that is being tried.
    candidate: Option<JoinHandle<Result<(), String>>>,
    relay_pause: Duration,
    /// Whether it was said which rights could not be given up.
    told_of_rights: bool,
    /// Whether whoever started us knows that we work.
    told_ready: bool,
}

/// Why somebody does the work no longer.
#[derive(Debug)]
enum End {
    /// It was told to stop for good.
    Stopped,
    /// It was told to make room for a newer program.
    Retired,
    /// It was told to make room for one that does all of it.
    Retry,
    /// It ended unasked.
    Died,
    /// It said nothing any more.
    Hung,
    /// Nobody could do it.
    Failed(String),
}

impl Supervisor {
    async fn run(mut self) -> anyhow::Result<()> {
        let outcome = self.supervise().await;
        aside::undo(&self.kept.bridges);
        outcome
    }

    async fn supervise(&mut self) -> anyhow::Result<()> {
        loop {
            let end = match self.start() {
                Ok((worker, link)) => self.watch(worker, &link).await,
                Err(error) => {
                    warn!(%error, "cannot start a data process");
                    End::Died
                }
            };
            match end {
                End::Stopped => return Ok(()),
                End::Failed(message) => anyhow::bail!(message),
                End::Retired => self.upgrade(),
                End::Retry => {
                    self.health.retry(Instant::now());
                    info!("CAKE is tried again");
                }
                End::Died => self.count_end(false).await,
                End::Hung => self.count_end(true).await,
            }
        }
    }

    /// Starts somebody to do the work.
    fn start(&mut self) -> anyhow::Result<(Worker, Link)> {
        let mode = self.health.mode();
        self.kept.supervision.passing_through = mode != Mode::Shape;
        let (ours, theirs) = link::pair()?;
        let conntrack = translation::start();
        self.kept.conntrack = conntrack.is_some();
        let mut fds = self.descriptors();
        fds.extend(conntrack.iter().map(|fd| fd.as_fd()));
        handover::send(&ours, &self.kept.write(), &fds)?;
        let worker = match mode {
            Mode::Relay => Worker::thread(theirs)?,
            Mode::Shape | Mode::PassThrough => Worker::process(&self.kept.program, theirs)?,
        };
        debug!(pid = worker.pid(), ?mode, "somebody handles the frames");
        Ok((worker, Link::new(ours)?))
    }

    /// Everything that is handed over, in its order.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let listener = self.socket.iter().map(|socket| socket.as_fd());
        listener.chain(self.ports.iter().map(|port| port.as_fd())).collect()
    }

    /// Hears what the worker has to say until it ends.
    async fn watch(&mut self, mut worker: Worker, link: &Link) -> End {
        let (mut missed, mut patience) = (0, START);
        let mut looked = None;
        let mut told: Option<End> = None;
        let end = loop {
            let retry = self.health.retry_at().filter(|_| told.is_none());
            tokio::select! {
                news = link.next::<News>() => match news {
                    Ok(Some(News::Alive)) => {
                        (missed, self.relay_pause) = (0, RELAY_PAUSE);
                        service::ready_once(&mut self.told_ready);
                        service::alive();
                        if told.is_none() {
                            patience = SILENCE;
                            self.tell_lost(link, &mut looked);
                        }
                    }
                    Ok(Some(News::Sandboxed(report))) => self.tell_of_rights(&report),
                    Ok(Some(News::Failed(message))) => break End::Failed(message),
                    Ok(Some(news)) => if !self.kept.note(news) {
                        debug!("the data process tells of ports that there are not");
                    },
                    Ok(None) => break told.unwrap_or(End::Died),
                    Err(error) => {
                        debug!(%error, "the data process makes no sense");
                        break told.unwrap_or(End::Died);
                    }
                },
                () = tokio::time::sleep(TICK) => {
                    missed += 1;
                    self.stuck.retain_mut(|worker| worker.ended().is_none());
                    if missed >= patience {
                        break told.unwrap_or(End::Hung);
                    }
                }
                what = self.signals.next() => match (what, told.is_some()) {
                    (Asked::Stop, true) => break End::Stopped,
                    (Asked::Show, _) => order(link, &Order::Show { lost: self.lost() }),
                    (Asked::Stop, false) => {
                        (missed, patience, told) = (0, STOP, Some(End::Stopped));
                        service::stopping();
                        order(link, &Order::Stop { lost: self.lost() });
                    }
                    (Asked::Reload, true) => {}
                    (Asked::Reload, false) => if let Err(error) = self.reload(link) {
                        warn!(%error, "the data process does not listen");
                        break End::Hung;
                    },
                    (Asked::Upgrade, false) => self.try_candidate(),
                    (Asked::Upgrade, true) => {}
                },
                outcome = candidate(&mut self.candidate) => {
                    self.candidate = None;
                    match outcome {
                        Ok(()) if told.is_none() => {
                            (missed, patience, told) = (0, STOP, Some(End::Retired));
                            order(link, &Order::Retire);
                        }
                        Ok(()) => {}
                        Err(reason) => {
                            self.refuse_upgrade(&reason);
                            order(link, &Order::Know(self.kept.supervision));
                        }
                    }
                }
                () = until(retry), if retry.is_some() => {
                    (missed, patience, told) = (0, STOP, Some(End::Retry));
                    order(link, &Order::Retire);
                }
            }
        };
        // Whatever it does now nobody wants any more.
        worker.kill();
        match worker.end().await {
            Ok(fate) => info!(fate, ?end, "the data process ended"),
            Err(worker) => {
                warn!(pid = worker.pid(), "the data process cannot be ended; going on without");
                self.stuck.push(worker);
            }
        }
        end
    }

    /// Reads the file again and has done what is new in it; or says why not, and changes nothing.
    ///
    /// # Errors
    /// The data process takes no orders. It is known what the next one is to do.
    fn reload(&mut self, link: &Link) -> std::io::Result<()> {
        service::reloading();
        let outcome = match reload::reload(&self.kept, &self.ports) {
            Ok(reload) => {
                let Reload { mut kept, ports, orders } = reload;
                aside::undo_gone(&self.kept.bridges, &kept.bridges);
                aside::stand_aside(&mut kept.bridges);
                if kept.log != self.kept.log {
                    kept.log.into_iter().for_each(crate::log::set_level);
                }
                (self.kept, self.ports) = (kept, ports);
                info!(changes = orders.len(), "the configuration was read again");
                orders.iter().try_for_each(|(order, fds)| {
                    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
                    link.tell_with(order, &fds)
                })
            }
            Err(error) => {
                warn!(reason = %crate::explain(&error), "nothing is changed");
                Ok(())
            }
        };
        service::ready();
        outcome
    }

    /// What each port's device lost before it was read, by now.
    fn lost(&mut self) -> work::Lost {
        let ports = self.kept.bridges.iter_mut().flat_map(|bridge| &mut bridge.ports);
        for (port, fd) in ports.zip(&self.ports) {
            work::count_lost(port, fd.as_fd());
        }
        self.kept.lost()
    }

    /// Tells what ports' devices lost, if it is time again.
    fn tell_lost(&mut self, link: &Link, looked: &mut Option<Instant>) {
        if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            *looked = Some(Instant::now());
            order(link, &Order::Lost(self.lost()));
        }
    }

    /// Counts and tells of one that ended unasked.
    async fn count_end(&mut self, hung: bool) {
        let before = self.health.mode();
        let mode = self.health.ended(Instant::now());
        let packets = self.kept.lose_queues();
        let supervision = &mut self.kept.supervision;
        if hung {
            supervision.hung += 1;
            warn!(times = supervision.hung, packets, "the data process hung; another one goes on");
        } else {
            supervision.died += 1;
            warn!(times = supervision.died, packets, "the data process died; another one goes on");
        }
        if mode != before {
            match mode {
                Mode::Shape => {}
                Mode::PassThrough => warn!("too many ended: frames pass without CAKE for a while"),
                Mode::Relay => warn!("too many ended: the supervisor passes frames on for a while"),
            }
        }
        if mode == Mode::Relay && before == Mode::Relay {
            tokio::time::sleep(self.relay_pause).await;
            self.relay_pause = (2 * self.relay_pause).min(LONGEST_RELAY_PAUSE);
        }
    }

    fn tell_of_rights(&mut self, report: &Report) {
        for measure in &report.measures {
            debug!(%measure, given_up = measure.outcome.is_ok(), "rights of the data process");
        }
        if self.told_of_rights {
            return;
        }
        self.told_of_rights = true;
        for measure in report.failures() {
            warn!(%measure, "the data process could not give this up");
        }
    }
}

/// One that has no room for an order hangs, and is found out by its silence.
fn order(link: &Link, order: &Order) {
    if let Err(error) = link.tell(order) {
        debug!(%error, "the data process takes no orders");
    }
}

/// What came of trying a newer program; never if none is tried.
async fn candidate(task: &mut Option<JoinHandle<Result<(), String>>>) -> Result<(), String> {
    match task {
        Some(task) => task.await.unwrap_or_else(|error| Err(error.to_string())),
        None => std::future::pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
