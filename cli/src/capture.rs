//! Captures, and what CAKE would have done to them.
//!
//! Problem: somebody has a capture of a link and asks what CAKE would have made of it, and why a packet waited.
//! Source: the pcap and pcapng file formats (draft-ietf-opsawg-pcap, draft-ietf-opsawg-pcapng); reading them is the
//! business of `pcap-parser`.
//! Law: frames come at their captured times to the same core that runs on live ports; its clock is virtual. The
//! same capture, words and seed give the same bytes.
//! Left out: files and terminals, which belong to the command.

pub mod play;
pub mod read;
pub mod trace;
pub mod write;
