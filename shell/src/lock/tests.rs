//! Two programs and one folder.

#![cfg(test)]

use super::*;

#[test]
fn a_folder_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let lock = FolderLock::take(folder.path()).unwrap();
    let Failure::Input(error) = FolderLock::take(folder.path()).unwrap_err() else {
        panic!("no usage error")
    };
    let who = format!("in use by process {} on {}, for ", std::process::id(), host_name());
    assert!(error.to_string().contains(&who), "{error}");
    fs::write(folder.path().join(OWNER), "half of a").unwrap();
    let Failure::Input(error) = FolderLock::take(folder.path()).unwrap_err() else {
        panic!("no usage error")
    };
    assert!(error.to_string().contains("in use by another command"), "{error}");
    drop(lock);
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        usize::from(cfg!(not(unix))),
        "nothing is left behind"
    );
    drop(FolderLock::take(folder.path()).unwrap());
    fs::write(folder.path().join(OWNER), r#"{"host":"elsewhere","pid":1,"since":0}"#).unwrap();
    let lock = FolderLock::take(folder.path()).unwrap();
    assert!(
        fs::read_to_string(folder.path().join(OWNER)).unwrap().contains(&host_name()),
        "that one was killed"
    );
    drop(lock);
}

/// The file is locked by who took it away: another one is the lock now.
#[cfg(unix)]
#[test]
fn a_lock_that_was_taken_away_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(LOCK);
    let gone = File::create(&path).unwrap();
    assert!(is_at(&gone, &path));
    fs::remove_file(&path).unwrap();
    assert!(!is_at(&gone, &path));
    let lock = FolderLock::take(folder.path()).unwrap();
    assert!(!is_at(&gone, &path) && is_at(lock.held.as_ref().unwrap(), &path));
}

#[test]
fn where_there_are_no_locks_a_run_goes_on() {
    let folder = Path::new("somewhere");
    let tried = |error| may_go_on(folder, &Err(error));
    assert!(tried(TryLockError::Error(io::ErrorKind::Unsupported.into())).unwrap());
    assert!(!tried(TryLockError::WouldBlock).unwrap());
    assert!(may_go_on(folder, &Ok(())).unwrap());
    if cfg!(target_os = "linux") {
        assert!(tried(TryLockError::Error(io::Error::from_raw_os_error(37))).unwrap());
    }
    let Failure::Input(error) =
        tried(TryLockError::Error(io::ErrorKind::PermissionDenied.into())).unwrap_err()
    else {
        panic!("no usage error")
    };
    assert!(error.to_string().contains("cannot lock somewhere"), "{error}");
}
