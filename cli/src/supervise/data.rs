//! The data process: it handles frames, has no rights, and is worth nothing.
//!
//! Problem: it must be possible to end it at any moment, and it must not be possible to do harm with it.
//! Law: it starts from what is handed over, gives up every right before it reads the first frame, and says a few
//! times a second that it is alive: the bridge itself says so, between two turns, so that one that does not turn is
//! silent. It ends when the supervisor does.
//! Left out: what it does ([`crate::work`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context as _;
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::CapabilitySet;
use tokio::task::LocalSet;
use ucake_cli::sandbox;

use super::handover;
use super::link::Link;
use super::state::{HEARTBEAT, Kept, News, Order};
use crate::control::Whose;
use crate::signals::Signals;
use crate::work::{Handle, Work};

/// The data process; what is handed over comes from standard input.
///
/// # Errors
/// Nothing usable was handed over, or the work cannot go on.
pub(crate) fn main() -> anyhow::Result<()> {
    let end = io::stdin().as_fd().try_clone_to_owned().context("standard input is closed")?;
    serve(end, Rights::Drop)
}

/// What to do about rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rights {
    /// Give them up: the process is for this alone.
    Drop,
    /// Keep them: the process does other things too.
    Keep,
}

/// Does the work until whoever is at the other end of `end` says so or is gone.
///
/// # Errors
/// Nothing usable was handed over, or the work cannot go on.
pub(crate) fn serve(end: OwnedFd, rights: Rights) -> anyhow::Result<()> {
    let (text, fds) = handover::receive(&end).context("nothing was handed over")?;
    let kept = Kept::read(&text).map_err(anyhow::Error::msg)?;
    let supervisor = match rights {
        Rights::Drop => rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get()),
        Rights::Keep => rustix::process::getpid().as_raw_nonzero().get(),
    };
    let report = (rights == Rights::Drop).then(|| {
        let report = sandbox::enter(kept.user, CapabilitySet::empty());
        // A change of user takes it back, hence behind.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        report
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let link = Arc::new(Link::new(end)?);
        if let Some(report) = report {
            let _ = link.tell(&News::Sandboxed(report));
            // The supervisor says when it is time. Once there are handlers they stay.
            drop(Signals::watch()?);
        }
        let whose = Whose::new(supervisor.unsigned_abs(), true);
        if let Some(level) = kept.log {
            crate::log::set_level(level);
        }
        let work = Work::new(&kept, fds, whose)?;
        work.handle.set_supervision(kept.supervision);
        work.handle.set_lost(kept.lost());
        obey(work, &link).await
    })
}

async fn obey(mut work: Work, link: &Arc<Link>) -> anyhow::Result<()> {
    let beating = tokio::task::spawn_local(beat(work.handle.clone(), Arc::clone(link)));
    let last = Rc::new(RefCell::new(None));
    let orders = take_orders(work.handle.clone(), Arc::clone(link), Rc::clone(&last));
    let orders = tokio::task::spawn_local(orders);
    let outcome = work.run().await;
    beating.abort();
    orders.abort();
    for news in work.news() {
        let _ = link.tell(&news);
    }
    match (outcome, last.take()) {
        (Err(error), _) => {
            crate::print(&work.table(false));
            // The supervisor says it to people.
            let _ = link.tell(&News::Failed(crate::explain(&error)));
            Ok(())
        }
        (Ok(()), order) => {
            if let Some(Order::Stop { lost }) = order {
                work.handle.set_lost(lost);
                crate::print(&work.table(false));
            }
            let _ = link.tell(&News::Stopped);
            Ok(())
        }
    }
}

/// Says that it is alive, and what has changed, until something else ends.
async fn beat(handle: Handle, link: Arc<Link>) {
    let mut told = BTreeMap::new();
    loop {
        for news in handle.news().await {
            let Ok(text) = serde_json::to_string(&news) else { continue };
            let News::Port(port) = news else { continue };
            let told: &mut String = told.entry((port.bridge, port.port)).or_default();
            if *told != text && link.tell_line(&text).is_ok() {
                *told = text;
            }
        }
        // If there is no room the supervisor is late itself, and will not wonder.
        let _ = link.tell(&News::Alive);
        // What somebody changed is not to be forgotten; what is counted may wait.
        tokio::select! {
            () = tokio::time::sleep(HEARTBEAT) => {}
            () = handle.changed() => {}
        }
    }
}

/// Does what the supervisor says; ends the work when it says so or is gone.
async fn take_orders(work: Handle, link: Arc<Link>, last: Rc<RefCell<Option<Order>>>) {
    loop {
        // What makes no sense is as bad as nobody there.
        let (order, fds) = match link.next_with::<Order>().await {
            Ok(Some((order, fds))) => (Some(order), fds),
            _ => (None, Vec::new()),
        };
        match order {
            Some(Order::Configure { bridge, port, handle, config }) => {
                work.configure(bridge, port, handle, config).await;
            }
            Some(Order::Remove(bridges)) => work.remove(&bridges).await,
            Some(Order::Add(bridge)) => work.add(*bridge, fds),
            Some(Order::Log(level)) => crate::log::set_level(level),
            Some(Order::Know(supervision)) => work.set_supervision(supervision),
            Some(Order::Lost(lost)) => work.set_lost(lost),
            Some(Order::Show { lost }) => {
                work.set_lost(lost);
                crate::print(&work.table(false).await);
            }
            order => {
                *last.borrow_mut() = order;
                return work.stop();
            }
        }
    }
}
