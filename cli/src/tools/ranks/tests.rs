//! Files of ranks, as they are read.

#![cfg(test)]

use super::*;
use codedgrad_shell::output::Notes;
use tempfile::TempDir;

/// Steps of 0.3 s from the second on, of which `forward` are the forward pass.
fn rank(world: u32, kind: &str, forward: f64, steps: u64) -> String {
    let mut text =
        format!("# host h, rank 0 of {world}, torch 2.9.0, cpu, {kind}\n{}\n", COLUMNS.join(","));
    for step in 0..steps {
        let began = step as f64;
        let shown = if step == 0 { String::new() } else { format!("{began:.6}") };
        let first = began + 0.1 + forward;
        text += &format!(
            "{step},{shown},{:.6},{first:.6},{:.6},{:.6}\n",
            began + 0.1,
            first + 0.1,
            first + 0.2
        );
    }
    text
}

fn read(files: &[(&str, String)]) -> (Result<Ranks, Failure>, String) {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    assert_eq!(Ranks::is_in(folder.path()), !files.is_empty());
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut output = Output { out: &mut out, notes: Notes::Kept(&mut notes) };
    let found = Ranks::read(folder.path(), &mut output);
    (found, String::from_utf8(notes).unwrap())
}

#[test]
fn ranks_are_joined_by_steps_and_the_slow_ones_part_is_named() {
    let cut = rank(3, "replicated", 0.1, 4) + "4,4.0,4.1";
    let (found, notes) = read(&[
        ("rank-0.csv", cut),
        ("rank-1.csv", rank(3, "replicated", 0.1, 4)),
        ("rank-2.csv", rank(3, "replicated", 0.3, 4)),
    ]);
    let Ranks { rows, called } = found.unwrap();
    assert_eq!(called.workers, ["0", "1", "2"]);
    assert_eq!(called.rounds.all_numbers(), Some(vec![1, 2, 3]));
    assert!(called.not_seen.is_empty(), "{:?}", called.not_seen);
    for row in rows {
        let rounded: Vec<f64> = row.iter().map(|time| (time * 1e6).round() / 1e6).collect();
        assert_eq!(rounded, [0.3, 0.3, 0.5]);
    }
    assert_eq!(
        notes,
        "rank 2: 0.500 s a step, of them 0.100 s loading, 0.300 s forward, 0.100 s backward; \
         the median rank takes 0.300 s\n"
    );
}

#[test]
fn of_two_ranks_the_slow_ones_part_is_named() {
    let files = [0.1, 0.3].map(|forward| rank(2, "replicated", forward, 4));
    let [fast, slow] = files;
    let (_, notes) = read(&[("rank-0.csv", fast), ("rank-1.csv", slow)]);
    assert!(notes.starts_with("rank 1: 0.500 s a step"), "{notes}");
}

#[test]
fn what_was_not_recorded_is_said() {
    let sharded = || rank(4, "sharded", 0.1, 3);
    let (found, notes) = read(&[
        ("rank-0.csv", rank(4, "replicated", 0.1, 9)),
        ("rank-0.start-1.csv", sharded()),
        ("rank-3.start-1.csv", sharded()),
    ]);
    let called = found.unwrap().called;
    assert_eq!(called.workers, ["0", "3"]);
    let [missing, bound] = &called.not_seen[..] else { panic!("{:?}", called.not_seen) };
    assert_eq!(missing, "2 of 4 ranks have no file here, rank 1 among them");
    assert!(bound.contains("upper bounds"), "{bound}");
    assert!(notes.starts_with("the job was started 2 times"), "{notes}");
}

#[test]
fn what_holds_no_steps_is_refused() {
    let refused = |text: &str| match read(&[("rank-0.csv", text.to_owned())]).0.err() {
        Some(Failure::Input(error)) => format!("{error:#}"),
        other => panic!("{other:?}"),
    };
    assert!(refused(&rank(1, "replicated", 0.1, 1)).contains("no step with a gradient"));
    assert!(refused("a,b\n1,2\n").contains("expected the columns step,began,forward"));
    assert!(refused("").contains("expected the columns"));
}
