//! Ports, buffers, timer, clock and the loop that drives them: everything that touches the system.
//!
//! From here the way to a discipline is short: [`driver::run`] sleeps, [`driver::Bridge::turn`]
//! feeds and drains. All `unsafe` code of the crate lives in one private file, `sys.rs`.

pub mod aside;
pub mod batch;
pub mod clock;
pub mod conntrack;
pub mod delayed;
pub mod driver;
mod handed;
pub mod inherited;
pub mod lateness;
pub mod namespace;
pub mod netlink;
pub mod offload;
pub mod packet_socket;
pub mod pair;
pub mod plain_tap;
pub mod pool;
pub mod port;
mod sys;
pub mod tap;
pub mod timer;
