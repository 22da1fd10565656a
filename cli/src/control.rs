//! The control socket of running bridges.
//!
//! Problem: others want to look and to change things, some of them broken or hostile, and the bridge must not
//! notice.
//! Law: a thread of its own with a runtime of its own; the data thread sees nothing but finished commands,
//! one at a time, between batches. Lines are bounded, clients are counted, who does not read is dropped, and who says
//! nothing keeps nobody out.
//! Left out: what is said (`ucake_cli::protocol`).

mod desk;
mod lines;
mod socket;

use std::cell::Cell;
use std::os::unix::net::UnixListener as StdListener;
use std::rc::{Rc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, broadcast, oneshot};
use tokio::task::LocalSet;
use tracing::{debug, warn};
use ucake_cli::protocol::{self, Class, Refusal, Reply, Request};

pub(crate) use desk::{Desk, Whose, following};
use lines::{LineError, Lines};
pub(crate) use socket::{DEFAULT_DIRECTORY, Socket, open, open_default};

/// Clients at once; what one holds is a socket, a task and the line it is at.
const MOST_CLIENTS: usize = 64;
/// A client that has said nothing at all for so long gives its place to the next one, should that find none.
const MUTE: Duration = Duration::from_secs(1);
/// A client that takes nothing of a reply for so long is dropped.
const READ_PATIENCE: Duration = Duration::from_secs(5);
/// After a failure to accept, which is most likely for want of descriptors, others get time to close some.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A control socket at work; it stops when this is dropped.
pub(crate) struct Control {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Answers at `listener` for the bridges behind `desk`.
    pub(crate) fn start(listener: StdListener, desk: Desk) -> anyhow::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the control socket")?;
        let work = move || {
            let local = LocalSet::new();
            local.block_on(&runtime, async {
                tokio::select! {
                    () = serve(listener, desk) => {}
                    // An error is as good: whoever held the other end is gone.
                    _ = stopped => {}
                }
            });
        };
        let thread = thread::Builder::new()
            .name("control".to_owned())
            .spawn(work)
            .context("cannot start the control socket")?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in there was reported where it happened, and the bridge did its work without.
            let _ = thread.join();
        }
    }
}

async fn serve(listener: StdListener, desk: Desk) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return warn!(%error, "the control socket does not work"),
    };
    let desk = Rc::new(desk);
    let mut seats = Seats::default();
    loop {
        let stream = next_client(&listener).await;
        let (desk, seat) = (Rc::clone(&desk), seats.take());
        tokio::task::spawn_local(async move {
            let outcome = match seat {
                Some(seat) => attend(&stream, &seat, &desk).await,
                None => turn_away(&stream).await,
            };
            if let Err(error) = outcome {
                debug!(%error, "a control client was dropped");
            }
        });
    }
}

/// The place of a client, for as long as it holds it.
struct Seat {
    since: Instant,
    /// Whether it has said anything yet.
    spoke: Cell<bool>,
    /// Another one is to have it.
    wanted: Notify,
}

/// Those that are taken, the oldest first.
#[derive(Default)]
struct Seats(Vec<Weak<Seat>>);

impl Seats {
    /// One that is free, or that of a client that says nothing; `None` if there is none.
    fn take(&mut self) -> Option<Rc<Seat>> {
        self.0.retain(|seat| seat.strong_count() > 0);
        if self.0.len() >= MOST_CLIENTS {
            let is_mute = |seat: &Seat| !seat.spoke.get() && seat.since.elapsed() >= MUTE;
            let mute =
                self.0.iter().position(|seat| seat.upgrade().is_some_and(|s| is_mute(&s)))?;
            if let Some(seat) = self.0.remove(mute).upgrade() {
                seat.wanted.notify_one();
            }
        }
        let (since, spoke, wanted) = (Instant::now(), Cell::new(false), Notify::new());
        let seat = Rc::new(Seat { since, spoke, wanted });
        self.0.push(Rc::downgrade(&seat));
        Some(seat)
    }
}

async fn next_client(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                debug!(%error, "cannot accept a control client");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One too many.
async fn turn_away(stream: &UnixStream) -> Result<(), LineError> {
    let message = format!("{MOST_CLIENTS} clients are connected already; try again later");
    lines::send(stream, &refused(Class::Busy, message), READ_PATIENCE).await
}

/// Answers one client until it goes, or is to go because it says nothing.
async fn attend(stream: &UnixStream, seat: &Seat, desk: &Desk) -> Result<(), LineError> {
    let mut lines = Lines::new(protocol::LONGEST_REQUEST);
    loop {
        let line = tokio::select! {
            line = lines.next(stream) => line,
            () = seat.wanted.notified(), if !seat.spoke.get() => return turn_away(stream).await,
        };
        seat.spoke.set(true);
        let line = match line {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(LineError::TooLong) => {
                let message = format!("a line has at most {} bytes", protocol::LONGEST_REQUEST);
                return lines::send(stream, &refused(Class::Protocol, message), READ_PATIENCE)
                    .await;
            }
            Err(error) => return Err(error),
        };
        let reply = match protocol::read_request(&line) {
            Ok(Request::Watch) => return watch(stream, &mut lines, desk.changes()).await,
            Ok(request) => desk.answer(request).await,
            Err(refusal) => protocol::write_reply(&Reply::Refused(refusal)).into(),
        };
        lines::send_line(stream, &reply, READ_PATIENCE).await?;
    }
}

/// Tells of changes until the client goes; what it says meanwhile is not heard.
async fn watch(
    stream: &UnixStream,
    lines: &mut Lines,
    mut changes: broadcast::Receiver<Reply>,
) -> Result<(), LineError> {
    lines::send(stream, &Reply::Watching, READ_PATIENCE).await?;
    loop {
        tokio::select! {
            change = changes.recv() => match change {
                Ok(change) => lines::send(stream, &change, READ_PATIENCE).await?,
                // It did not keep up: better no word than a wrong one.
                Err(_) => return Ok(()),
            },
            heard = lines.next(stream) => if heard?.is_none() { return Ok(()) },
        }
    }
}

fn refused(class: Class, message: impl Into<String>) -> Reply {
    Reply::Refused(Refusal::new(class, message))
}
