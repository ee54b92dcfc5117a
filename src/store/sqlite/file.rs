//! The file behind the connection. SQLite goes on writing into a file that was removed or replaced:
//! what is written there is gone, and another process that opens the path holds another lock.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::copy::with_ending;
use super::failure::{refused, unavailable};
use crate::store::StoreError;

/// How a file is told from another one with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    links: u64,
}

impl Identity {
    /// `None` when no file has the name.
    fn of(path: &Path) -> std::io::Result<Option<Self>> {
        match std::fs::metadata(path) {
            Ok(found) => {
                Ok(Some(Identity { device: found.dev(), inode: found.ino(), links: found.nlink() }))
            }
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn is_same_file(self, other: Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// The files that a connection has open, as they were when it opened them. They are looked at by
/// name: a second descriptor of the file would drop SQLite's locks when it is closed.
#[derive(Debug)]
pub struct Opened {
    location: String,
    files: Vec<(PathBuf, Identity)>,
}

impl Opened {
    /// Makes a connection to `path` by `open`, and knows its file.
    ///
    /// # Errors
    /// When it can't be opened, is replaced meanwhile, or has another name as well.
    pub fn by<T>(
        path: &Path,
        mut open: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<(T, Self), StoreError> {
        let location = path.display().to_string();
        let look = || Identity::of(path).map_err(|e| unseen(&location, path, &e));
        // A name may belong to another file after the first opening for writing (overlay file
        // systems copy it then), or because another program replaces it right now.
        for _ in 0..3 {
            let before = look()?;
            let connection = open()?;
            let after = look()?;
            if let (Some(before), Some(after)) = (before, after)
                && before.is_same_file(after)
            {
                if after.links > 1 {
                    return Err(refused(&location, linked(path, after.links)));
                }
                let files = vec![(path.to_owned(), after)];
                return Ok((connection, Opened { location, files }));
            }
        }
        Err(refused(
            &location,
            "the file was removed or replaced while it was being opened; nothing was changed. Find out what replaces it, then start tpu-watchdog again".into(),
        ))
    }

    /// Knows the write-ahead log and its index as well: SQLite has them open from its first read
    /// on, and removes them only with the last connection.
    ///
    /// # Errors
    /// When they can't be looked at.
    pub fn with_log(mut self, path: &Path) -> Result<Self, StoreError> {
        // SQLite puts them where a link to the file leads.
        let real = std::fs::canonicalize(path).map_err(|e| unseen(&self.location, path, &e))?;
        for ending in ["-wal", "-shm"] {
            let file = with_ending(&real, ending);
            let found = Identity::of(&file).map_err(|e| unseen(&self.location, &file, &e))?;
            self.files.extend(found.map(|identity| (file, identity)));
        }
        Ok(self)
    }

    /// Whether each name still leads to the file that is open.
    ///
    /// # Errors
    /// Refused when one does not, or leads there from another name as well; unavailable when that
    /// can't be found out.
    pub fn check(&self) -> Result<(), StoreError> {
        let Some((main, _)) = self.files.first() else { return Ok(()) };
        for (path, opened) in &self.files {
            let found = Identity::of(path).map_err(|e| unseen(&self.location, path, &e))?;
            let cause = match found {
                Some(found) if found == *opened => continue,
                None => removed(path, main),
                Some(found) if !found.is_same_file(*opened) => replaced(path, main),
                Some(found) if found.links > opened.links => linked(path, found.links),
                // Its name is there, so a link that went was another one.
                Some(_) => continue,
            };
            return Err(refused(&self.location, cause));
        }
        Ok(())
    }
}

const NOTHING_WRITTEN: &str = "nothing more is written, and this process gives the lock up";

fn removed(path: &Path, main: &Path) -> String {
    format!(
        "{} was removed or moved away while it was in use; {NOTHING_WRITTEN}. If {main} was moved, move it back, with its -wal; if it was deleted, restore a copy; then start tpu-watchdog again",
        path.display(),
        main = main.display()
    )
}

fn replaced(path: &Path, main: &Path) -> String {
    format!(
        "{} was replaced by another file while it was in use; {NOTHING_WRITTEN}. Stop every tpu-watchdog, see that {main} is the state that you want, with a -wal of its own or none, then start tpu-watchdog again",
        path.display(),
        main = main.display()
    )
}

fn linked(path: &Path, links: u64) -> String {
    format!(
        "{path} has {links} names (hard links); {NOTHING_WRITTEN}: two programs that open it by different names would not see each other's lock. Remove the others (`find FOLDER -samefile {path}`; copy with `cp`, not `ln`), then start tpu-watchdog again",
        path = path.display()
    )
}

fn unseen(location: &str, path: &Path, error: &std::io::Error) -> StoreError {
    unavailable(
        location,
        format!(
            "{} can't be looked at ({error}); nothing is done to any TPU until it can: check the permissions of its folder",
            path.display()
        ),
    )
}
