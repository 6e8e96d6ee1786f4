//! Workers of several hosts, each with a launcher; here all of them are this one.

use crate::launched::{Launched, wait_for};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

#[test]
fn a_host_alone_sees_that_its_run_is_over() {
    let folder = tempfile::tempdir().unwrap();
    keygen(folder.path(), "4");
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    // One has left, or was there to the end; its neighbour dies, and calls in vain.
    let script = r#"[ "$CODEDGRAD_WORKER" = 2 ] && exit 0; [ "$CODEDGRAD_EPOCH" = 0 ] && exit 1
        exec sleep 600"#;
    let program = ["sh", "-c", script].map(str::to_owned);
    let flags = format!("-n 4 --nodes 2 --node 1 --keys keys --join 127.0.0.1:{port} --out run");
    let mut launched = Launched::start_program(folder.path(), "it", &flags, &program, &[]);
    launched.waits_for_words("worker 2 ended with status 0");
    launched.waits_for_words("worker 3 ended with status 1: started again in 1 s");
    assert_eq!(launched.ends(), Some(0), "{}", launched.said());
    assert!(launched.said().contains("the run is over, it seems"), "{}", launched.said());
}

fn keygen(folder: &Path, workers: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_codedgrad"));
    command.args(["keygen", "keys", "--workers", workers]).current_dir(folder);
    assert!(command.status().unwrap().success());
}

#[test]
fn two_launchers_make_one_run() {
    let folder = tempfile::tempdir().unwrap();
    keygen(folder.path(), "3");
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
