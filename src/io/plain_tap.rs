//! A tap without a vnet header: one frame a read, one frame a write, checksums finished.
//!
//! Problem: some kernels, and what passes for one in a sandbox, refuse the vnet header. Slow is better than
//! not at all there.
//! Source: the tun driver in its oldest form, by way of the crate `tun-tap`.
//! Law: what comes is a plain frame; what leaves is a plain frame, so a superpacket of the other port is
//! split and its segments' checksums are finished here.
//! Left out: superpackets in either direction.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use tokio::io::unix::AsyncFd;
use tun_tap::{Iface, Mode};

use super::batch::{Batch, Run, Slices};
use super::pool::{Pool, Scratch};
use super::port::{Counters, Port, PortError, Recv, Sent};
use super::sys;
use super::tap::{self, OpenError, TapOptions};
use crate::packet::split::Checksums;
use crate::packet::vnet::VnetHeader;

/// An open tap without vnet header.
#[derive(Debug)]
pub struct PlainTap {
    fd: OwnedFd,
    name: String,
}

impl PlainTap {
    /// Opens the tap `name`, creating it if there is none, in the calling thread's network namespace. A
    /// `%d` in the name stands for the first free number.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(name: &str, options: &TapOptions) -> Result<Self, OpenError> {
        tap::check_name(name)?;
        let iface = Iface::without_packet_info(name, Mode::Tap)
            .map_err(|error| tap::plain_error(name, error))?;
        iface
            .set_non_blocking()
            .map_err(|source| OpenError::System { name: name.into(), source })?;
        tap::set_up(iface.name(), options)?;
        let name = iface.name().to_owned();
        // A descriptor of our own: the crate's is one by number only.
        Ok(Self { fd: sys::into_owned_fd(iface), name })
    }

    /// The tap that `fd` is already, opened by [`PlainTap::open`] in another process.
    #[must_use]
    pub const fn from_fd(fd: OwnedFd, name: String) -> Self {
        Self { fd, name }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl AsFd for PlainTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A plain tap at work.
pub struct PlainTapPort {
    name: String,
    fd: AsyncFd<OwnedFd>,
    scratch: Scratch,
    counters: Counters,
}

impl PlainTapPort {
    /// Puts a plain tap to work. Call within a tokio runtime.
    ///
    /// # Errors
    /// The system is out of resources.
    pub fn new(tap: PlainTap) -> Result<Self, PortError> {
        let PlainTap { fd, name } = tap;
        let refused = |source| PortError::Refused { port: name.clone(), doing: "watch", source };
        // Offloads belong to the device: one that was used before may have some, and they are of no use now.
        // A kernel that knows none refuses, which is as well.
        let _ = sys::tun_set_offload(&fd, 0);
        let fd = sys::register(fd).map_err(refused)?;
        Ok(Self { name, fd, scratch: Scratch::new(), counters: Counters::default() })
    }

    fn write(&mut self, run: Run<'_>) -> Result<(), PortError> {
        let Some(slices) = run.slices(Checksums::Complete, &mut self.scratch) else {
            self.counters.write_errors.invalid += 1;
            return Ok(());
        };
        let Slices { parts, frame_len } = slices.without_vnet();
        match rustix::io::retry_on_intr(|| rustix::io::writev(self.fd.get_ref(), &parts)) {
            Ok(_) => self.counters.count_sent(1, frame_len),
            Err(errno) => tap::count_lost(&self.name, &mut self.counters.write_errors, errno, 1)?,
        }
        Ok(())
    }
}

impl Port for PlainTapPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn try_recv(&mut self, pool: &Pool) -> Result<Recv, PortError> {
        let fd = &self.fd;
        let fill = pool.fill(|buffer| {
            let (vnet, frame) = buffer.split_at_mut(VnetHeader::LEN);
            vnet.copy_from_slice(&VnetHeader::PLAIN.encode());
            let len = fd.try_io(tokio::io::Interest::READABLE, |fd| {
                Ok(rustix::io::read(fd, &mut *frame)?)
            })?;
            Ok(VnetHeader::LEN + len)
        });
        tap::received(&self.name, &mut self.counters, fill)
    }

    fn send(&mut self, batch: &Batch) -> Result<Sent, PortError> {
        let before = self.counters.write_errors;
        let mut runs = 0;
        for run in batch.runs() {
            runs += 1;
            for single in run.singles() {
                if single.is_sealed() {
                    self.counters.write_errors.invalid += 1;
                } else {
                    self.write(Run::of(&single))?;
                }
            }
        }
        Ok(Sent::all(runs, &before, &self.counters.write_errors))
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<(), PortError>> {
        tap::poll_readable(&self.name, &self.fd, cx)
    }

    fn lost_before_reading(&self) -> Option<u64> {
        tap::lost_before_reading(&self.name, self.fd.get_ref().as_fd())
    }

    fn counters(&self) -> Counters {
        self.counters.clone()
    }
}

/// Which kind of tap it became.
pub enum AnyTap {
    /// With superpackets.
    Vnet(tap::Tap),
    /// Without.
    Plain(PlainTap),
}

impl AnyTap {
    /// Opens the tap `name` as [`tap::Tap::open`] does; without superpackets where the system's taps have no
    /// vnet header.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(name: &str, options: &TapOptions) -> Result<Self, OpenError> {
        match tap::Tap::open(name, options) {
            Err(OpenError::NoVnetHeader { .. }) => PlainTap::open(name, options).map(Self::Plain),
            opened => opened.map(Self::Vnet),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Vnet(tap) => tap.name(),
            Self::Plain(tap) => tap.name(),
        }
    }

    /// Puts it to work. Call within a tokio runtime.
    ///
    /// # Errors
    /// The system is out of resources.
    pub fn into_port(self) -> Result<Box<dyn Port>, PortError> {
        Ok(match self {
            Self::Vnet(tap) => Box::new(tap::TapPort::new(tap)?),
            Self::Plain(tap) => Box::new(PlainTapPort::new(tap)?),
        })
    }
}

impl AsFd for AnyTap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Vnet(tap) => tap.as_fd(),
            Self::Plain(tap) => tap.as_fd(),
        }
    }
}
