//! Where the socket is, who may use it, and what to do about one that is there already.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener as StdListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tracing::info;

/// Where sockets are when nobody says where.
pub(crate) const DEFAULT_DIRECTORY: &str = "/run/ucake";
/// The first one's name there.
const DEFAULT_NAME: &str = "control.sock";
/// Who may connect: the owner and the group.
const MODE: u32 = 0o660;
/// Clients that connected and were not yet accepted.
const BACKLOG: i32 = 128;

/// A bound socket; its path goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: StdListener,
    path: PathBuf,
}

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// Another process answers there.
    #[error("cannot open the control socket {0}: another ucake answers there; choose another path")]
    Live(PathBuf),
    /// Something else is there.
    #[error(
        "cannot open the control socket {0}: there is a file of that name, and it is no socket"
    )]
    NotASocket(PathBuf),
    /// There is no such group.
    #[error("cannot open the control socket: there is no group \"{0}\"")]
    Group(String),
    /// The system refused.
    #[error("cannot open the control socket {path}: {source}")]
    System {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Socket {
    /// The socket that `listener` is already, opened by [`open`] in another process or before an upgrade.
    pub(crate) fn from_fd(listener: OwnedFd, path: PathBuf) -> Self {
        Self { listener: listener.into(), path }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// To accept clients with.
    pub(crate) fn listener(&self) -> io::Result<StdListener> {
        self.listener.try_clone()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Somebody may have removed it already.
        let _ = fs::remove_file(&self.path);
    }
}

/// Opens a socket where somebody wants it.
///
/// # Errors
/// Another process answers there, something else is there, there is no such group, or the system refuses.
pub(crate) fn open(path: &Path, group: Option<&str>) -> Result<Socket, SocketError> {
    let gid = group.map(group_id).transpose()?;
    let _lock = lock_directory(path);
    crate::run::patiently(|| make_room(path), |error| matches!(error, SocketError::Live(_)))?;
    let system = |source| SocketError::System { path: path.to_owned(), source };
    let listener = bind(path, gid).map_err(system)?;
    info!(path = %path.display(), "control socket");
    Ok(Socket { listener, path: path.to_owned() })
}

/// Opens a socket where clients look if nobody says where: the usual one, or beside it if that is taken.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_default(group: Option<&str>) -> Result<Socket, SocketError> {
    let directory = Path::new(DEFAULT_DIRECTORY);
    let system = |source| SocketError::System { path: directory.to_owned(), source };
    if !directory.exists() {
        match DirBuilder::new().mode(0o755).create(directory) {
            // Another ucake was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            outcome => outcome.map_err(system)?,
        }
    }
    sweep(directory);
    match open(&directory.join(DEFAULT_NAME), group) {
        Err(SocketError::Live(_)) => {
            open(&directory.join(format!("control-{}.sock", std::process::id())), group)
        }
        outcome => outcome,
    }
}

/// Holds up other ucakes that want a socket in the same directory until the file is dropped: one that is bound
/// and does not listen yet looks as if a dead process had left it. Where the directory cannot be locked, that
/// is a risk of microseconds.
fn lock_directory(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or(Path::new("."))).ok()?;
    flock(&directory, FlockOperation::LockExclusive).ok()?;
    Some(directory)
}

/// Removes what dead processes left in the usual directory.
fn sweep(directory: &Path) {
    let _lock = lock_directory(&directory.join(DEFAULT_NAME));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        // What is alive, is no socket, or may not be removed stays.
        let _ = make_room(&entry.path());
    }
}

/// Removes what a dead process left at `path`.
fn make_room(path: &Path) -> Result<(), SocketError> {
    let system = |source| SocketError::System { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(SocketError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(system)
        }
        // It is being removed by whoever left it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(system(error)),
        Ok(_) => Err(SocketError::Live(path.to_owned())),
    }
}

/// Nobody can connect before the permissions are right: a bound socket refuses until it listens.
fn bind(path: &Path, gid: Option<u32>) -> io::Result<StdListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let finished = fs::set_permissions(path, Permissions::from_mode(MODE))
        .and_then(|()| gid.map_or(Ok(()), |gid| chown(path, None, Some(gid))))
        .and_then(|()| Ok(net::listen(&socket, BACKLOG)?));
    if let Err(error) = finished {
        // What is left there would refuse everybody.
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(StdListener::from(socket))
}

/// The number of a group, by name or as it stands.
fn group_id(group: &str) -> Result<u32, SocketError> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let table = fs::read_to_string("/etc/group").unwrap_or_default();
    find_group(&table, group).ok_or_else(|| SocketError::Group(group.to_owned()))
}

/// Looks a name up in the form of `/etc/group`.
fn find_group(table: &str, group: &str) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(group) {
            return None;
        }
        fields.nth(1)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that goes with the value.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ucake-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a directory");
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_group_is_found_by_its_name() {
        let table = "root:x:0:\nwheel:x:998:ann,bob\nbroken\nodd:x:y:\n";
        assert_eq!(find_group(table, "wheel"), Some(998));
        assert_eq!(find_group(table, "root"), Some(0));
        for name in ["whee", "broken", "odd", ""] {
            assert_eq!(find_group(table, name), None, "{name}");
        }
    }

    #[test]
    fn a_live_socket_is_refused_a_stale_one_replaced_and_ours_removed() {
        let directory = Directory::new("sockets");
        let path = directory.0.join("control.sock");
        let first = open(&path, None).expect("there is nothing");
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let error = open(&path, None).expect_err("the first listens");
        assert!(matches!(error, SocketError::Live(_)), "{error}");
        drop(first);
        assert!(!path.exists());
        drop(StdListener::bind(&path).expect("there is nothing"));
        assert!(path.exists(), "what a dead process leaves");
        let second = open(&path, None).expect("nobody answers");
        UnixStream::connect(&path).expect("it listens");
        drop(second);
    }

    #[test]
    fn what_dead_processes_left_goes_and_the_rest_stays() {
        let directory = Directory::new("sweep");
        let [dead, live, file] =
            ["control-1.sock", "control-2.sock", "file"].map(|name| directory.0.join(name));
        drop(StdListener::bind(&dead).expect("there is nothing"));
        let listener = StdListener::bind(&live).expect("there is nothing");
        fs::write(&file, "precious").expect("a file");
        sweep(&directory.0);
        assert_eq!([dead, live, file].map(|path| path.exists()), [false, true, true]);
        drop(listener);
    }

    #[test]
    fn a_file_is_left_alone_and_a_directory_that_is_not_there_is_named() {
        let directory = Directory::new("files");
        let path = directory.0.join("file");
        fs::write(&path, "precious").expect("a file");
        let error = open(&path, None).expect_err("it is no socket");
        assert!(matches!(error, SocketError::NotASocket(_)), "{error}");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "precious");
        let error = open(&directory.0.join("none/control.sock"), None).expect_err("no directory");
        assert!(error.to_string().contains("none/control.sock"), "{error}");
        let error = open(&path, Some("no such group")).expect_err("no group");
        assert!(error.to_string().contains("no such group"), "{error}");
        let long = directory.0.join("x".repeat(200));
        assert!(matches!(open(&long, None), Err(SocketError::System { .. })));
    }
}
