//! The other end of the control socket: finds the ucake that is meant and asks it.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;
use ucake_cli::protocol::{self, PortLine, Reply, Request};

use crate::control::DEFAULT_DIRECTORY;

/// A bridge answers between two batches; one that does not in this time is in trouble.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest reply that is read: the statistics of 16384 queues have a fifth of it.
const LONGEST_REPLY: u64 = 32 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// Nobody is there.
    #[error("no running ucake to ask (looked for {}); start one with \"ucake run\", or name its socket with --control PATH", .0.display())]
    Nobody(PathBuf),
    /// Somebody is, but not for us.
    #[error("may not connect to {}: not permitted; its owner and group may, see \"ucake run --control-group\"", .0.display())]
    NotPermitted(PathBuf),
    /// It stopped or is in trouble.
    #[error("no answer from {}: {source}", path.display())]
    Broken {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It answers and will not.
    #[error("{} refuses: {message}", path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// It speaks otherwise.
    #[error("cannot understand the answer from {}: {message}", path.display())]
    Strange {
        /// Where.
        path: PathBuf,
        /// Why.
        message: String,
    },
}

/// A connection to a running ucake.
pub(crate) struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to every running ucake that there is, or to the one at `path`.
    ///
    /// # Errors
    /// There is none, or none that lets us in.
    pub(crate) fn all(path: Option<&Path>) -> Result<Vec<Self>, ClientError> {
        if let Some(path) = path {
            return Ok(vec![Self::connect(path)?]);
        }
        let mut clients = Vec::new();
        let mut failure = ClientError::Nobody(DEFAULT_DIRECTORY.into());
        for path in sockets(Path::new(DEFAULT_DIRECTORY)) {
            match Self::connect(&path) {
                Ok(client) => clients.push(client),
                // A dead process left it there.
                Err(ClientError::Nobody(_)) => {}
                Err(error) => failure = error,
            }
        }
        if clients.is_empty() { Err(failure) } else { Ok(clients) }
    }

    fn connect(path: &Path) -> Result<Self, ClientError> {
        let connected = UnixStream::connect(path).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        });
        let path = path.to_owned();
        match connected {
            Ok(stream) => Ok(Self { path, stream: BufReader::new(stream) }),
            Err(error) => Err(match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    ClientError::Nobody(path)
                }
                io::ErrorKind::PermissionDenied => ClientError::NotPermitted(path),
                _ => ClientError::Broken { path, source: error },
            }),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The process that listens there, by the kernel's word.
    ///
    /// # Errors
    /// The kernel does not tell, or that process has no number here.
    pub(crate) fn listener(&self) -> io::Result<Pid> {
        let credentials = socket_peercred(self.stream.get_ref())?;
        Ok(credentials.pid)
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// There is none, or none that makes sense.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let line = protocol::write_request(request);
        // One that turned us away has said why and closed: its word is worth more than our failure to write.
        let written = self.stream.get_mut().write_all(line.as_bytes());
        match self.next() {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => {
                let source = written.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
                Err(ClientError::Broken { path: self.path.clone(), source })
            }
            Err(error) => Err(error),
        }
    }

    /// The next reply; `None` once the other side has gone.
    ///
    /// # Errors
    /// The connection broke, or what came makes no sense.
    pub(crate) fn next(&mut self) -> Result<Option<Reply>, ClientError> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(LONGEST_REPLY).read_until(b'\n', &mut line);
        let path = || self.path.clone();
        match read {
            Ok(0) => Ok(None),
            Ok(_) => protocol::read_reply(&line)
                .map(Some)
                .map_err(|message| ClientError::Strange { path: path(), message }),
            Err(source) => Err(ClientError::Broken { path: path(), source }),
        }
    }

    /// Waits for replies as long as it takes.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn wait_forever(&self) -> Result<(), ClientError> {
        let set = self.stream.get_ref().set_read_timeout(None);
        set.map_err(|source| ClientError::Broken { path: self.path.clone(), source })
    }

    /// The ports of this one.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub(crate) fn ports(&mut self) -> Result<Vec<PortLine>, ClientError> {
        match self.ask(&Request::Ports)? {
            Reply::Ports { ports } => Ok(ports),
            other => Err(self.strange(&other)),
        }
    }

    /// An answer to another question, or a refusal where none is due.
    pub(crate) fn strange(&self, reply: &Reply) -> ClientError {
        let path = self.path.clone();
        match reply {
            Reply::Refused(refusal) => {
                ClientError::Refused { path, message: refusal.message.clone() }
            }
            other => {
                let message = format!("{other:?}").chars().take(80).collect();
                ClientError::Strange { path, message }
            }
        }
    }
}

/// The sockets in a directory, the usual one first.
fn sockets(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_socket =
        |entry: &fs::DirEntry| entry.file_type().is_ok_and(|file_type| file_type.is_socket());
    let mut paths: Vec<_> = entries.filter(is_socket).map(|entry| entry.path()).collect();
    // "control.sock" is longer than none and sorts behind "control-7.sock".
    paths.sort_by_key(|path| (path.as_os_str().len(), path.clone()));
    paths
}
