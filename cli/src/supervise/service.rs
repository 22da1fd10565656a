//! What a service manager is told.
//!
//! Problem: whoever listens may be slow or stuck, and the supervisor must not wait for it.
//! Source: sd_notify(3). Where nobody listens, nothing happens.
//! Law: a thread of its own does the telling; what it has no time for is not told. Ready means that frames are
//! handled. Alive is said only when the data process has just said so of itself, so that a manager with a watchdog
//! notices what the supervisor does not.
//! Left out: the manager's own file, contrib/ucake.service.

use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use sd_notify::{NotifyState, notify, watchdog_enabled};
use tracing::debug;

type Words = Vec<NotifyState<'static>>;

/// What waits to be told at most.
const MOST_WAITING: usize = 32;

/// The way to whoever listens, if somebody does.
fn manager() -> Option<&'static SyncSender<Words>> {
    static MANAGER: OnceLock<Option<SyncSender<Words>>> = OnceLock::new();
    MANAGER.get_or_init(start).as_ref()
}

fn start() -> Option<SyncSender<Words>> {
    std::env::var_os("NOTIFY_SOCKET")?;
    let (sender, words) = sync_channel::<Words>(MOST_WAITING);
    let tell = move || {
        for words in words {
            if let Err(error) = notify(&words) {
                debug!(%error, "the service manager does not listen");
            }
        }
    };
    let started = thread::Builder::new().name("service".to_owned()).spawn(tell);
    started.ok().map(|_| sender)
}

fn tell(words: Words) {
    // What there is no room for is for one that does not listen.
    let _ = manager().map(|manager| manager.try_send(words));
}

/// Frames are handled, as the configuration says.
pub(super) fn ready() {
    tell(vec![NotifyState::Ready]);
}

/// The same for the first time.
pub(super) fn ready_once(told: &mut bool) {
    if !std::mem::replace(told, true) {
        ready();
    }
}

/// Every bridge has just taken a turn.
pub(super) fn alive() {
    static WANTED: OnceLock<bool> = OnceLock::new();
    if *WANTED.get_or_init(|| watchdog_enabled().is_some()) {
        tell(vec![NotifyState::Watchdog]);
    }
}

/// The configuration is being read again.
pub(super) fn reloading() {
    let now = NotifyState::monotonic_usec_now().ok();
    tell([NotifyState::Reloading].into_iter().chain(now).collect());
}

/// We are about to end.
pub(super) fn stopping() {
    tell(vec![NotifyState::Stopping]);
}
