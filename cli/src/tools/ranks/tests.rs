//! Files of ranks, as they are read.

#![cfg(test)]

use super::*;
use codedgrad_shell::output::Notes;
use tempfile::TempDir;

/// Steps of 0.3 s from the second on, of which `forward` are the forward pass, as older releases
/// wrote them.
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

/// A file with a step for each set of own seconds, behind one that has not begun; others are waited
/// for until the step has taken a second.
fn parted(rank: u64, notes: &str, steps: &[[f64; PARTS]]) -> String {
    let mut text = format!("# host h, rank {rank} of 4, torch 2.9.0, cpu, sharded\n");
    text += &format!("{},{}\n{notes}", COLUMNS.join(","), SECONDS.join(","));
    text += "0,,0.1,0.2,0.3,0.4,0,0,0,0,0,0,0\n";
    for (step, parts) in (1..).zip(steps) {
        let own: Vec<String> = parts.iter().map(f64::to_string).collect();
        let waiting = 1.0 - parts.iter().sum::<f64>();
        text += &format!("{step},1,2,3,4,5,{},{waiting}\n", own.join(","));
    }
    text
}

#[test]
fn a_place_is_named_and_waits_are_no_ranks_own() {
    let usual = [0.1, 0.1, 0.02, 0.0, 0.1, 0.01];
    for (part, place) in PLACES.into_iter().enumerate() {
        let mut late = usual;
        late[part] += 0.3;
        let (found, notes) = read(&[
            ("rank-0.csv", parted(0, "", &[usual; 3])),
            ("rank-1.csv", parted(1, "", &[late; 3])),
            ("rank-2.csv", parted(2, "", &[usual; 3])),
            ("rank-3.csv", parted(3, "", &[usual; 3])),
        ]);
        let Ranks { rows, called, .. } = found.unwrap();
        assert!(called.not_seen.is_empty(), "{:?}", called.not_seen);
        let near = |time: f64, is: f64| (time - is).abs() < 1e-9;
        assert!(rows.iter().all(|row| near(row[0], 0.33) && near(row[1], 0.63)), "{rows:?}");
        assert!(notes.starts_with("rank 1: 0.630 s a step, of them"), "{notes}");
        assert!(notes.ends_with(&format!("It takes 0.300 s longer for {place}\n")), "{notes}");
    }
    // By a tenth of the step, where that is so each time, or in few steps.
    let late = usual.map(|part| 1.3 * part);
    for (steps, is_named) in [(12, true), (3, false)] {
        let (_, notes) = read(&[
            ("rank-0.csv", parted(0, "", &vec![usual; steps])),
            ("rank-1.csv", parted(1, "", &vec![late; steps])),
            ("rank-2.csv", parted(2, "", &vec![usual; steps])),
        ]);
        assert_eq!(notes.starts_with("rank 1: 0.429 s a step"), is_named, "{notes}");
    }
    // More by half, but of a step that is spent in waiting for all.
    let short = usual.map(|part| part / 10.0);
    let (_, notes) = read(&[
        ("rank-0.csv", parted(0, "", &[short; 3])),
        ("rank-1.csv", parted(1, "", &[short.map(|part| 1.5 * part); 3])),
        ("rank-2.csv", parted(2, "", &[short; 3])),
    ]);
    assert_eq!(notes, "");
}

#[test]
fn a_rank_without_steps_is_the_one_to_look_for() {
    let steps = [[0.1; PARTS]; 3];
    for silent in [String::new(), parted(2, "", &[]), "# host h, ra".into()] {
        let (found, _) = read(&[
            ("rank-0.csv", parted(0, "", &steps)),
            ("rank-1.csv", parted(1, "", &steps)),
            ("rank-2.csv", silent),
            ("rank-3.csv", parted(3, "", &steps)),
        ]);
        let Ranks { rows, called, .. } = found.unwrap();
        assert_eq!((rows.len(), called.workers.len()), (3, 3));
        let [silent] = &called.not_seen[..] else { panic!("{:?}", called.not_seen) };
        assert!(silent.starts_with("rank 2: its file has no step"), "{silent}");
    }
}

#[test]
fn what_is_bounded_is_said_once() {
    let note = "# bounded: the forward and backward pass: FSDP1 gathers parameters within them\n";
    let files = [0, 1, 2, 3].map(|rank| parted(rank, note, &[[0.1; PARTS]; 3]));
    let names = ["rank-0.csv", "rank-1.csv", "rank-2.csv", "rank-3.csv"];
    let (found, _) = read(&names.into_iter().zip(files).collect::<Vec<_>>());
    let called = found.unwrap().called;
    let [bound] = &called.not_seen[..] else { panic!("{:?}", called.not_seen) };
    assert!(
        bound.starts_with("who is slow within the forward and backward pass: FSDP1"),
        "{bound}"
    );
}

#[test]
fn each_host_may_have_a_folder() {
    let hosts = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let steps = [[0.1; PARTS]; 3];
    for (host, rank) in [(0, 0), (0, 1), (1, 3)] {
        let path = hosts[host].path().join(format!("rank-{rank}.csv"));
        fs::write(path, parted(rank, "", &steps)).unwrap();
    }
    let mut notes = Vec::new();
    let mut read = |folders: &[&Path]| {
        let mut out = Vec::new();
        Ranks::read(folders, &mut Output { out: &mut out, notes: Notes::Kept(&mut notes) })
    };
    let [one, two] = [0, 1].map(|host: usize| hosts[host].path());
    let called = read(&[one, two]).unwrap().called;
    assert_eq!(called.workers, ["0", "1", "3"]);
    assert_eq!(called.not_seen, ["1 of 4 ranks have no file here: 2"]);
    let twice = read(&[one, one]).err().map(|error| error.to_string()).unwrap();
    assert!(twice.contains("are of the same rank"), "{twice}");
    let empty = TempDir::new().unwrap();
    let none = read(&[one, empty.path()]).err().map(|error| error.to_string()).unwrap();
    assert!(none.contains("no file of a rank"), "{none}");
}

fn read(files: &[(&str, String)]) -> (Result<Ranks, Failure>, String) {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    assert_eq!(Ranks::is_in(folder.path()), !files.is_empty());
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut output = Output { out: &mut out, notes: Notes::Kept(&mut notes) };
    let found = Ranks::read(&[folder.path()], &mut output);
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
    let Ranks { rows, called, .. } = found.unwrap();
    assert_eq!(called.workers, ["0", "1", "2"]);
    assert_eq!(called.rounds.all_numbers(), Some(vec![1, 2, 3]));
    assert!(called.not_seen.is_empty(), "{:?}", called.not_seen);
    for row in rows {
        let rounded: Vec<f64> = row.iter().map(|time| (time * 1e6).round() / 1e6).collect();
        assert_eq!(rounded, [0.3, 0.3, 0.5]);
    }
    assert_eq!(
        notes,
        "rank 2: 0.500 s a step, of them 0.100 s loading, 0.300 s forward, 0.100 s backward, \
         0.000 s optimizer; the median rank takes 0.300 s. It takes 0.200 s longer for the \
         forward pass\n"
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
    assert_eq!(missing, "2 of 4 ranks have no file here: 1, 2");
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
    assert!(refused("").contains("no step with a gradient"));
}
