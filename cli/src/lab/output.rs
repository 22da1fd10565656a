//! Files of results: opened before anything runs, written at the end.
//!
//! Problem: a bad path shall cost no time, and a run that is broken off shall leave nothing empty behind.
//! Law: what was there before keeps its contents until there is something new; what was not there before is
//! removed if nothing came.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A file that is written at once or not at all.
#[derive(Debug)]
pub(super) struct OutputFile {
    path: PathBuf,
    file: File,
    /// Made by us, and nothing is in it.
    is_left_over: bool,
}

impl OutputFile {
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let made = OpenOptions::new().write(true).create_new(true).open(path);
        let opened = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                OpenOptions::new().write(true).open(path).map(|file| (file, false))
            }
            made => made.map(|file| (file, true)),
        };
        let (file, is_left_over) =
            opened.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file, is_left_over })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces what is in it.
    pub(super) fn write(mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.is_left_over = false;
        self.replace(bytes).with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        // Pipes and devices have no length.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(bytes)
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_left_over {
            // Whoever removed it before has done it for us.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_empty_is_left_and_nothing_old_is_lost() {
        let directory = std::env::temp_dir().join(format!("ucake-output-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let [new, old] = ["new", "old"].map(|name| directory.join(name));
        fs::write(&old, "results of yesterday").expect("a file");
        drop([&new, &old].map(|path| OutputFile::open(path).expect("they can be written")));
        assert!(!new.exists(), "it would be empty");
        assert_eq!(fs::read(&old).expect("it is there"), b"results of yesterday");
        for path in [&new, &old] {
            let file = OutputFile::open(path).expect("they can be written");
            file.write(b"today").expect("there is room");
            assert_eq!(fs::read(path).expect("it is there"), b"today");
        }
        fs::remove_dir_all(directory).expect("our directory");
    }

    #[test]
    fn a_device_is_written_and_stays() {
        let null = Path::new("/dev/null");
        drop(OutputFile::open(null).expect("everybody may write there"));
        let file = OutputFile::open(null).expect("everybody may write there");
        file.write(b"nothing").expect("it takes all");
        assert!(null.exists());
    }
}
