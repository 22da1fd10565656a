//! Where a plan comes from: the arguments, or the file.
//!
//! Law: whatever is wrong with either is told before anything is opened.
//! Left out: what may stand in the file (`ucake_cli::config`).

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use ucake_cli::config::{self, LONGEST};
use ucake_cli::plan::{BridgePlan, ControlPlan, Plan};

use crate::args::RunArgs;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanError {
    /// The file says nothing that could be run; where and why, with its name.
    #[error("{0}")]
    File(String),
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// Which.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The arguments ask for the impossible.
    #[error("{0}")]
    Arguments(String),
}

/// What the arguments ask for, or the file that they name.
pub(crate) fn plan(args: &RunArgs) -> Result<Plan, PlanError> {
    match (&args.config, &args.lan, &args.wan) {
        (Some(path), ..) => read(path),
        (None, Some(lan), Some(wan)) => {
            if lan.device() == wan.device() {
                let message = format!("LAN and WAN are both {lan}; give two different ports");
                return Err(PlanError::Arguments(message));
            }
            let bridge = BridgePlan {
                lan: lan.clone(),
                wan: wan.clone(),
                up: args.up.clone(),
                down: args.down.clone(),
                coalesce: args.coalesce,
                doorbell: args.doorbell,
            };
            let control =
                ControlPlan { path: args.control.clone(), group: args.control_group.clone() };
            Ok(Plan { bridges: vec![bridge], control, ..Plan::default() })
        }
        _ => Err(PlanError::Arguments("give LAN and WAN, or --config FILE".to_owned())),
    }
}

/// What a file asks for.
pub(crate) fn read(path: &Path) -> Result<Plan, PlanError> {
    let shown = path.display().to_string();
    let bytes =
        read_bytes(path).map_err(|source| PlanError::Unreadable { path: shown.clone(), source })?;
    config::parse(&bytes).map_err(|error| PlanError::File(format!("{shown}:{error}")))
}

fn read_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One more than is taken, for that to be noticed.
    File::open(path)?.take(LONGEST as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
