//! CAKE (the Linux queue discipline `sch_cake`) as a library.

#[cfg(feature = "io")]
pub mod io;
pub mod packet;
pub mod qdisc;
pub mod sim;
pub mod time;
pub mod units;
