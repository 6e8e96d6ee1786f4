//! Who works in a folder: one command at a time, for as long as it runs.
//!
//! The lock is the operating system's on an open file, so it ends with the process however that
//! ends, and a command that was killed leaves nothing to be cleared away. Processes that a command
//! starts do not inherit it: the file is closed in them. The program starts itself again for
//! candle's threads before it takes the lock, never after.

use crate::clock::time_of_day;
use crate::failure::{Failure, OrInput};
use crate::output::alert;
use anyhow::{Context, anyhow};
use codedgrad::files;
use codedgrad::transport::tcp::host_name;
use indicatif::HumanDuration;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// The file that is locked.
const LOCK: &str = "lock";
/// The file that names the locking process: some systems let no other read a locked file.
const OWNER: &str = "lock.owner";
/// Many times what it holds.
const OWNER_BYTES_MAX: u64 = 64 << 10;

/// A folder in which no other command works while this lives.
#[derive(Debug)]
pub struct FolderLock {
    /// Locked, where the file system has locks.
    held: Option<File>,
    folder: PathBuf,
}

impl FolderLock {
    /// Takes a folder for this command.
    pub fn take(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join(LOCK);
        loop {
            let mut options = File::options();
            let open = files::open_regular(&path, options.create(true).truncate(false).write(true));
            let file =
                open.with_context(|| format!("cannot open {}", path.display())).or_input()?;
            let tried = file.try_lock();
            if !may_go_on(folder, &tried)? {
                return Err(Failure::Input(anyhow!("{}", in_use(folder))));
            }
            if tried.is_err() {
                return Ok(Self { held: None, folder: folder.into() });
            }
            // The process that had it may have taken the file away just before: then another one is
            // the lock.
            if is_at(&file, &path) {
                write_owner(folder);
                return Ok(Self { held: Some(file), folder: folder.into() });
            }
        }
    }
}

impl FolderLock {
    /// Whether the folder is there still, under another name.
    pub fn is_moved(&self) -> bool {
        let elsewhere = |file| !is_at(file, &self.folder.join(LOCK)) && has_a_name(file);
        self.held.as_ref().is_some_and(elsewhere)
    }

    /// Removes the folder itself, which must be empty but for the lock.
    pub fn remove_folder(&self) -> io::Result<()> {
        for name in [OWNER, LOCK] {
            match fs::remove_file(self.folder.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::remove_dir(&self.folder)
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        let path = self.folder.join(LOCK);
        // With the folder removed, another one may be there by now.
        if !self.held.as_ref().is_some_and(|file| is_at(file, &path)) {
            return;
        }
        let _ = fs::remove_file(self.folder.join(OWNER));
        // Still locked: a process that opened it sees, once it can be locked, that it is no longer
        // there.
        #[cfg(unix)]
        let _ = fs::remove_file(path);
    }
}

/// Whether a command may work in the folder: not where another one has the lock, but, with a
/// warning, where there are no locks.
fn may_go_on(folder: &Path, tried: &Result<(), TryLockError>) -> Result<bool, Failure> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) if has_no_locks(error) => {
            alert!(
                "warning: {} is on a file system without locks ({error}): see to it that no other \
                 command works in it",
                folder.display()
            );
            Ok(true)
        }
        Err(TryLockError::Error(error)) => {
            Err(Failure::Input(anyhow!("cannot lock {}: {error}", folder.join(LOCK).display())))
        }
    }
}

/// Whether another command works in a folder.
pub fn is_taken(folder: &Path) -> bool {
    let lock = files::open_regular(&folder.join(LOCK), File::options().read(true));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

/// Locks one of a folder's files too, while it is open: this keeps other commands out even if a
/// user has removed the folder's lock.
pub fn hold(file: &File, path: &Path) -> Result<(), Failure> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Failure::Input(anyhow!(
            "{} is in use by another command, though the folder's lock was removed: wait until \
             that has ended, or end it first",
            path.display()
        ))),
        // Where there are no locks the folder's own has said so.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

/// Network file systems without a lock service say `ENOLCK`, for which the library has no kind.
fn has_no_locks(error: &io::Error) -> bool {
    const NO_LOCKS: Option<i32> = if cfg!(target_os = "linux") { Some(37) } else { Some(77) };
    error.kind() == io::ErrorKind::Unsupported || cfg!(unix) && error.raw_os_error() == NO_LOCKS
}

/// Whether an open file is still the one at its path.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(mine), Ok(there)) => place(mine) == place(there),
        _ => false,
    }
}

/// Whether an open file is in some folder.
#[cfg(unix)]
fn has_a_name(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|metadata| metadata.nlink() > 0)
}

/// Elsewhere a folder with an open file is not moved.
#[cfg(not(unix))]
fn has_a_name(_: &File) -> bool {
    false
}

/// Elsewhere the file is never taken away.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

/// Who works in a folder.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Owner {
    host: String,
    pid: u32,
    /// Seconds since 1970, by that host's clock.
    since: u64,
}

/// Leaves word for those who are refused. The lock holds without it, so a failure is none of the
/// run.
fn write_owner(folder: &Path) {
    let owner = Owner { host: host_name(), pid: std::process::id(), since: now().as_secs() };
    let half = folder.join(format!("{OWNER}.part"));
    let write = || -> anyhow::Result<()> {
        files::write(&half, (serde_json::to_string(&owner)? + "\n").as_bytes())?;
        Ok(fs::rename(&half, folder.join(OWNER))?)
    };
    if let Err(error) = write() {
        let _ = fs::remove_file(&half);
        tracing::warn!("cannot write {}: {error:#}", folder.join(OWNER).display());
    }
}

/// Says who works in a folder, as far as that is known.
fn in_use(folder: &Path) -> String {
    let text = files::read(&folder.join(OWNER), OWNER_BYTES_MAX);
    let read = || serde_json::from_slice::<Owner>(&text.ok()?).ok();
    let who = match read() {
        None => "another command".into(),
        Some(Owner { host, pid, since }) => {
            let length = now()
                .checked_sub(Duration::from_secs(since))
                .map(|length| format!(", for {}", HumanDuration(length)));
            format!("process {pid} on {}{}", host.escape_debug(), length.unwrap_or_default())
        }
    };
    format!("{} is in use by {who}: wait until that has ended, or end it first", folder.display())
}

/// Since 1970.
fn now() -> Duration {
    time_of_day().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests;
