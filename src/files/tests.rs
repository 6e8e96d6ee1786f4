//! What is opened, and how much of it is read.

#![cfg(test)]

use super::*;
use std::os::unix::net::UnixListener;

#[test]
fn only_regular_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::os::unix::fs::symlink("/dev/zero", path("endless")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    let _socket = UnixListener::bind(path("socket")).unwrap();
    fs::create_dir(path("folder")).unwrap();
    for (name, what) in [
        ("endless", "a device or a socket"),
        ("socket", "a device or a socket"),
        ("pipe", "a pipe"),
        ("folder", "a folder"),
    ] {
        let errors = [read(&path(name), 9).unwrap_err(), create(&path(name)).unwrap_err()];
        for error in errors {
            let problem = format!("it is {what}, where a regular file is needed");
            assert_eq!(error.to_string(), problem, "{name}");
        }
    }
    assert_eq!(read(&path("none"), 9).unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_file_is_read_up_to_its_bound() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "1,0\n1").unwrap();
    assert_eq!(read_text(&path, 5).unwrap(), "1,0\n1");
    let told = |error: io::Error| assert!(error.to_string().contains("more than 4 bytes"));
    told(read(&path, 4).unwrap_err());
    fs::write(&path, "1,\u{ff}").unwrap();
    assert_eq!(read(&path, 4).unwrap().len(), 4);
    fs::write(&path, b"1,\xff").unwrap();
    assert_eq!(read_text(&path, 4).unwrap_err().to_string(), "it is not text");
    let mut growing = BoundedReader::open(&path, 4).unwrap();
    fs::write(&path, "1,0\n1").unwrap();
    told(growing.read_to_end(&mut Vec::new()).unwrap_err());
    growing.rewind().unwrap();
    growing.read_exact(&mut [0; 4]).unwrap();
}

#[test]
fn a_pipe_is_read_up_to_its_bound_where_it_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let write = |text: &'static str| {
        let path = path.clone();
        std::thread::spawn(move || fs::write(path, text).unwrap())
    };
    for (text, fits) in [("0,1\n", true), ("0,1\n0", false)] {
        let writer = write(text);
        let mut found = String::new();
        let read = BoundedReader::open_or_wait(&path, 4).unwrap().read_to_string(&mut found);
        writer.join().unwrap();
        assert_eq!(read.is_ok(), fits, "{text}: {read:?}");
        assert!(!fits || found == text);
    }
}
