//! A file is read when it is another.

#![cfg(test)]

use super::*;
use codedgrad_shell::folder::DRAIN;

#[test]
fn a_file_is_read_when_it_is_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(DRAIN);
    let mut file = DrainFile::at(path.clone());
    file.begins(8);
    assert_eq!(file.changed(), None, "there is none");
    fs::write(&path, "7\n# what is slow\n\n 3 # host 1\n8\nx\n-1\n").unwrap();
    assert_eq!(file.changed(), Some(vec![Worker(7), Worker(3)]));
    let told = ["-1", "8", "x"].map(|it| format!("{it:?} is no worker's number (0 to 7)"));
    assert_eq!(file.told, told.into());
    assert_eq!(file.changed(), None, "it is the same");
    fs::write(&path, "3\n").unwrap();
    assert_eq!(file.changed(), Some(vec![Worker(3)]));
    fs::remove_file(&path).unwrap();
    assert_eq!((file.changed(), file.changed()), (Some(vec![]), None));
    fs::create_dir(&path).unwrap();
    assert_eq!((file.changed(), file.changed()), (None, None));
    let told = "this file is ignored: it is a folder, where a regular file is needed";
    assert_eq!(file.told, [told.to_owned()].into());
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "5\n").unwrap();
    assert_eq!(file.changed(), Some(vec![Worker(5)]));
}
