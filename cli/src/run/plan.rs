//! What is to be run, as a value.
//!
//! Problem: it is said on the command line or in a file, looked at before anything is opened, and compared with what
//! runs when the file has changed.
//! Law: a plan that exists can be run as far as can be known without asking the system: its names are names of ports,
//! its words mean something, no port is in it twice.
//! Left out: the file ([`super::file`]), and whether the system has what is asked for ([`super::open`]).

use std::path::PathBuf;

use ucake_cli::sandbox::User;

use crate::args::{Bell, Coalesce, PortName, RunArgs, Words};

/// What is to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// One at least.
    pub(crate) bridges: Vec<BridgePlan>,
    /// Where it is to be shown and changed.
    pub(crate) control: ControlPlan,
    /// Whom frames are handled as.
    pub(crate) user: User,
}

/// Two ports and what is to leave through them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BridgePlan {
    /// On the side of the hosts.
    pub(crate) lan: PortName,
    /// On the side of the bottleneck.
    pub(crate) wan: PortName,
    /// CAKE for what leaves through `wan`.
    pub(crate) up: Words,
    /// CAKE for what leaves through `lan`.
    pub(crate) down: Words,
    /// Which frames are joined.
    pub(crate) coalesce: Coalesce,
    /// When a port sends.
    pub(crate) doorbell: Bell,
}

/// Where the control socket is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControlPlan {
    /// Its path; the usual one if it is not said.
    pub(crate) path: Option<PathBuf>,
    /// Who may use it besides the owner.
    pub(crate) group: Option<String>,
}

impl Plan {
    /// What the arguments ask for.
    ///
    /// # Errors
    /// They ask for the impossible; for people to read.
    pub(crate) fn from_args(args: &RunArgs) -> Result<Self, String> {
        let bridge = BridgePlan {
            lan: args.lan.clone(),
            wan: args.wan.clone(),
            up: args.up.clone(),
            down: args.down.clone(),
            coalesce: args.coalesce,
            doorbell: args.doorbell,
        };
        if bridge.lan.device() == bridge.wan.device() {
            return Err(format!("LAN and WAN are both {}; give two different ports", bridge.lan));
        }
        let control = ControlPlan { path: args.control.clone(), group: args.control_group.clone() };
        Ok(Self { bridges: vec![bridge], control, user: args.user })
    }
}
