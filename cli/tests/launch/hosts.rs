//! Workers of several hosts, each with a launcher; here all of them are this one.

use crate::launched::{Launched, wait_for};
use std::net::TcpListener;
use std::process::Command;

#[test]
fn two_launchers_make_one_run() {
    let folder = tempfile::tempdir().unwrap();
    let keygen = ["keygen", "keys", "--workers", "3"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
    assert!(command.args(keygen).current_dir(folder.path()).status().unwrap().success());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let run = [("STEPS", "40"), ("PAUSE_MS", "20")];
    let start = |name: &str, flags: String| {
        let flags = format!("-n 3 --nodes 2 --keys keys --scheme uncoded --out run {flags}");
        Launched::start_in(folder.path(), name, &flags, &run)
    };
    let second = start("second", format!("--node 1 --join 127.0.0.1:{port}"));
    let first = start("first", format!("--node 0 --listen 127.0.0.1:{port}"));
    wait_for("steps", || (first.steps().len() > 5).then_some(()));
    assert!(second.children().iter().all(|child| !child.has("CODEDGRAD_WORKER=0")));
    second.worker(2).signal("-KILL");
    let mut both = [first, second];
    for launched in &mut both {
        assert_eq!(launched.ends_itself(), Some(0), "{}", launched.said());
    }
    both[0].is_whole(3, 40);
    assert!(both[1].said().contains("worker 2 was killed"), "{}", both[1].said());
    assert!(both[0].printed().contains("[0] joined") && !both[0].printed().contains("[1] "));
}
