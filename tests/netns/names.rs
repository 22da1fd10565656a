//! Devices made the way other programs make them.

use std::process::Command;

/// A tap that outlives whoever holds it, in the calling thread's namespace.
pub(crate) fn make_persistent_tap(name: &str) {
    let made = Command::new("ip").args(["tuntap", "add", "dev", name, "mode", "tap"]).status();
    assert!(made.expect("iproute2 is installed").success());
}
