//! What is said of dumps, and the times they give.

#![cfg(test)]

use super::*;
use codedgrad_shell::output::Notes;
use serde_json::{Value, json};
use std::iter::once;

/// Writes the dumps of ranks as JSON.
fn folder(dumps: &[(u64, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (rank, dump) in dumps {
        let path = folder.path().join(format!("trace_{rank}.json"));
        fs::write(path, dump.to_string()).unwrap();
    }
    folder
}

/// Calls of a rank: number, name, size, state.
type Calls<'a> = &'a [(u64, &'a str, u64, &'a str)];

/// A dump of groups, each a name, its ranks and the calls of the rank.
fn dump(groups: &[(&str, &[u64], Calls<'_>)]) -> Value {
    let config = groups.iter().map(|(name, ranks, _)| {
        let ranks = format!("{ranks:?}");
        ((*name).to_owned(), json!({"name": name, "desc": name, "ranks": ranks}))
    });
    let entries = groups.iter().flat_map(|(group, _, calls)| {
        calls.iter().map(move |(number, name, size, state)| {
            json!({
                "process_group": [group, group], "collective_seq_id": number,
                "profiling_name": format!("nccl:{name}"), "state": state,
                "input_sizes": [[size]], "input_dtypes": ["Float"],
                "output_sizes": [[size]], "output_dtypes": ["Float"],
            })
        })
    });
    json!({
        "version": "2.10",
        "pg_config": config.collect::<serde_json::Map<_, _>>(),
        "pg_status": {},
        "entries": entries.collect::<Vec<_>>(),
    })
}

/// The verdict, the whole as JSON, and what was said beside it.
fn said(folder: &Path) -> Result<(String, Value, String), Failure> {
    let input = folder.display().to_string();
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut output = Output { out: &mut out, notes: Notes::Kept(&mut notes) };
    doctor(once(&input), &[], false, &mut output)?;
    doctor(once(&input), &[], true, &mut output)?;
    let text = String::from_utf8(out).unwrap();
    let (words, object) = text.trim_end().rsplit_once('\n').unwrap();
    let object: Value = serde_json::from_str(object).unwrap();
    let verdict = object["verdict"].as_str().unwrap().to_owned();
    assert!(words.starts_with(&format!("{verdict}.\n")), "{words}");
    Ok((verdict, object, String::from_utf8(notes).unwrap()))
}

const TWO: Calls<'_> = &[(1, "all_reduce", 4, "completed"), (2, "all_reduce", 4, "started")];
const ONE: Calls<'_> = &[(1, "all_reduce", 4, "completed")];

fn verdict(ranks: &[(u64, Calls<'_>)]) -> String {
    let dumps = ranks.iter().map(|(rank, calls)| (*rank, dump(&[("0", &[0, 1, 2, 3], calls)])));
    said(folder(&dumps.collect::<Vec<_>>()).path()).unwrap().0
}

#[test]
fn the_verdict_names_the_rank_that_is_not_as_the_others() {
    assert_eq!(
        verdict(&[(0, TWO), (1, TWO), (2, ONE), (3, TWO)]),
        "rank 2 has not entered all_reduce number 2 of group 0 (ranks 0-3): the other 3 wait in it"
    );
    assert_eq!(
        verdict(&[(0, TWO), (1, ONE), (2, ONE), (3, &[])]),
        "rank 3 has not entered all_reduce number 1 of group 0 (ranks 0-3): the other 3 have \
         entered it"
    );
    let size: Calls<'_> = &[ONE[0], (2, "all_reduce", 8, "started")];
    assert_eq!(
        verdict(&[(0, TWO), (1, size), (2, TWO), (3, TWO)]),
        "rank 1 has called all_reduce number 2 of group 0 (ranks 0-3) with [8] Float, where ranks \
         0, 2-3 gave [4] Float"
    );
    let other: Calls<'_> = &[ONE[0], (2, "broadcast", 4, "started")];
    assert_eq!(
        verdict(&[(0, TWO), (1, TWO), (2, other), (3, other)]),
        "ranks 2-3 have called broadcast as number 2 of group 0 (ranks 0-3), where ranks 0-1 \
         called all_reduce"
    );
    assert_eq!(
        verdict(&[(0, TWO), (1, TWO), (3, TWO)]),
        "rank 2 of group 0 (ranks 0-3) has no dump, as after a kill: the other 3 have entered \
         all_reduce number 2"
    );
    assert_eq!(
        verdict(&[(0, TWO), (1, TWO), (2, TWO), (3, TWO)]),
        "all ranks of group 0 (ranks 0-3) have entered all_reduce number 2, and ranks 0-3 have not \
         completed it"
    );
    assert_eq!(
        verdict(&[(0, ONE), (1, ONE), (2, ONE), (3, ONE)]),
        "ranks 0-3 have entered the same collectives, up to number 1 of group 0"
    );
    let far: Calls<'_> = &[(u64::MAX, "barrier", 0, "completed")];
    let said = verdict(&[(0, far), (1, far), (2, far), (3, far)]);
    assert!(said.starts_with("ranks 0-3 have entered the same"), "{said}");
    // Parts of all_to_all may differ.
    let parts = |size| [(1, "all_to_all", size, "completed")];
    let said = verdict(&[(0, &parts(1)), (1, &parts(2)), (2, &parts(3)), (3, &parts(4))]);
    assert!(said.starts_with("ranks 0-3 have entered the same"), "{said}");
}

#[test]
fn a_rank_that_waits_in_another_group_is_not_the_cause() {
    // Ranks 0 and 1 wait for 3 and 2 in "dp"; 2 waits for 3 in "tp".
    let dp: Calls<'_> = &[(1, "all_reduce", 4, "started")];
    let tp: Calls<'_> = &[(1, "all_gather", 2, "scheduled")];
    let of = |dp, tp| dump(&[("dp", &[0, 1, 2, 3], dp), ("tp", &[2, 3], tp)]);
    let home = folder(&[(0, of(dp, &[])), (1, of(dp, &[])), (2, of(&[], tp)), (3, of(&[], &[]))]);
    let (verdict, object, _) = said(home.path()).unwrap();
    assert_eq!(
        verdict,
        "rank 3 has not entered all_gather number 1 of group tp (ranks 2-3): the other 1 waits in \
         it"
    );
    let second = &object["problems"][1];
    assert!(second["words"].as_str().unwrap().starts_with("ranks 2-3 have not entered all_reduce"));
    assert_eq!(second["last"][0]["still_in"]["group"], "tp");
    // Each waits for the other.
    let home = folder(&[(0, of(dp, &[])), (1, of(dp, &[])), (2, of(&[], tp)), (3, of(dp, &[]))]);
    let (verdict, ..) = said(home.path()).unwrap();
    let end = "the other 3 wait in it; rank 2 is still in all_gather number 1 of group tp";
    assert!(verdict.starts_with("rank 2 has") && verdict.ends_with(end), "{verdict}");
}

#[test]
fn rings_that_went_round_and_cut_files_accuse_no_rank() {
    let full = dump(&[("0", &[0, 1], TWO)]);
    let mut ring = dump(&[("0", &[0, 1], &TWO[1..])]);
    ring["entries"][0]["record_id"] = 1.into();
    let (_, object, _) = said(folder(&[(0, full.clone()), (1, ring)]).path()).unwrap();
    assert_eq!(object["groups"][0]["first"], 2);
    assert_eq!(object["problems"][0]["kind"], "not-completed");
    let home = folder(&[(0, full.clone()), (1, full)]);
    let path = home.path().join("trace_1.json");
    let text = fs::read_to_string(&path).unwrap();
    // serde_json sorts keys as PyTorch does: the entries stand before what is cut off.
    fs::write(&path, &text[..text.rfind("collective_seq_id").unwrap()]).unwrap();
    let (_, object, notes) = said(home.path()).unwrap();
    assert!(notes.contains("trace_1.json: the file was cut off after 1 collective;"), "{notes}");
    assert!(object["problems"].as_array().unwrap().iter().all(|it| it["kind"] != "not-entered"));
}

#[test]
fn times_are_from_the_end_of_a_collective_to_the_entry_of_the_next() {
    let entry = |number: u64, created: u64, ended: Option<u64>| {
        json!({"process_group": ["0", "default_pg"], "collective_seq_id": number,
            "state": "completed", "profiling_name": "nccl:all_reduce",
            "time_created_ns": created * 1_000_000_000,
            "time_discovered_completed_ns": ended.map(|it| it * 1_000_000_000)})
    };
    let of = |entries: Vec<Value>| json!({"version": "2.4", "pg_status": {}, "entries": entries});
    // Clocks of ranks may be years apart.
    let first = of(vec![entry(1, 10, Some(12)), entry(2, 13, Some(16)), entry(3, 15, None)]);
    let second = of(vec![entry(1, 1011, Some(1012)), entry(2, 1015, None), entry(3, 1016, None)]);
    let home = folder(&[(0, first), (1, second)]);
    let files = [home.path().join("trace_0.json"), home.path().join("trace_1.json")];
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut output = Output { out: &mut out, notes: Notes::Kept(&mut notes) };
    let rows: Vec<Vec<f64>> = times(&files, &mut output).unwrap().settled().rows().collect();
    assert_eq!(rows, [[1.0, 3.0], [0.0, 1.0]]);
    let notes = String::from_utf8(notes).unwrap();
    assert!(notes.contains("1 of 4 times begin where the rank entered"), "{notes}");
    assert!(notes.contains("1 of 4 times are 0"), "{notes}");
}

#[test]
fn files_that_are_no_dumps_are_refused() {
    let home = folder(&[(0, dump(&[("0", &[0], ONE)]))]);
    let fails = |home: &Path| said(home).unwrap_err().to_string();
    fs::write(home.path().join("rank_0"), b"\x80\x02cos\nsystem\n.").unwrap();
    assert!(fails(home.path()).contains("rank_0: this is no dump of Flight Recorder: byte 2: "));
    fs::write(home.path().join("rank_0"), b"\x80\x02}.").unwrap();
    assert!(fails(home.path()).contains("it has neither a version nor entries"));
    fs::remove_file(home.path().join("rank_0")).unwrap();
    fs::write(home.path().join("a0.json"), dump(&[("0", &[0], ONE)]).to_string()).unwrap();
    assert!(fails(home.path()).contains("are both of rank 0: give one dump of each rank"));
    fs::rename(home.path().join("a0.json"), home.path().join("a.json")).unwrap();
    assert!(fails(home.path()).contains("a.json: its name has no rank"));
    let empty = folder(&[(0, dump(&[]))]);
    assert!(fails(empty.path()).contains("no entry of a collective"));
}

#[test]
fn what_a_cut_dump_does_not_show_is_not_said() {
    let whole = dump(&[("0", &[0, 1, 2, 3], ONE)]).to_string();
    let of_others = dump(&[("0", &[0, 1, 2, 3], TWO)]);
    let folder = folder(&[(0, of_others.clone()), (1, of_others.clone()), (3, of_others)]);
    // From right before its end to right behind its version.
    for cut in [whole.len() - 1, whole.find("\"version").unwrap()] {
        fs::write(folder.path().join("trace_2.json"), &whole[..cut]).unwrap();
        let (verdict, object, notes) = said(folder.path()).unwrap();
        assert_eq!(
            verdict,
            "rank 2 may not have entered all_reduce number 2 of group 0 (ranks 0-3): dumps that \
             are cut, or kept too few entries, do not show it; the other 3 wait in it"
        );
        assert_eq!(object["problems"][0]["kind"], "not-seen");
        assert_eq!(object["groups"][0]["entered_by_all"], Value::Null);
        assert_eq!(object["groups"][0]["unknown"], json!([2]));
        assert!(notes.contains("trace_2.json: the file was cut off"), "{notes}");
    }
}

#[test]
fn the_first_entry_of_a_ring_shows_who_has_entered() {
    // All but rank 2 have one entry of the group left, that of the open collective.
    let ring = |number: u64, record: u64| {
        let mut dump = dump(&[("0", &[0, 1, 2, 3], &[(number, "all_reduce", 4, "started")])]);
        dump["entries"][0]["record_id"] = record.into();
        dump
    };
    let dumps = [(0, ring(5, 90)), (1, ring(5, 90)), (2, ring(4, 80)), (3, ring(5, 90))];
    let (verdict, object, _) = said(folder(&dumps).path()).unwrap();
    assert_eq!(
        verdict,
        "rank 2 has not entered all_reduce number 5 of group 0 (ranks 0-3): the other 3 wait in it"
    );
    assert_eq!(object["groups"][0]["entered_by_all"], 4);
}
