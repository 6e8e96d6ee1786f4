//! Names are ordered as people count, and more.

#![cfg(test)]

use super::*;

#[test]
fn names_are_ordered_as_people_count() {
    let mut names = vec!["gpu-12", "gpu-101", "gpu-9", "10", "9", "a", "gpu-9b", "gpu-09"];
    names.sort_by(|a, b| natural(a, b));
    assert_eq!(names, ["9", "10", "a", "gpu-9", "gpu-09", "gpu-9b", "gpu-12", "gpu-101"]);
}

#[test]
fn numbers_are_the_same_however_they_are_written() {
    let all = |text: &str| canonical(text).unwrap_or_else(|| text.to_owned());
    let found = ["0012", "10.0", "1e3", "7", "00", "gpu-07", "1.5", "-3.0"].map(all);
    assert_eq!(found, ["12", "10", "1000", "7", "0", "gpu-07", "1.5", "-3"]);
}

#[test]
fn files_are_called_by_what_tells_them_apart() {
    let named = |files: &[&str]| of_files(&files.iter().map(PathBuf::from).collect::<Vec<_>>());
    assert_eq!(named(&["a/step_rank10.csv", "a/step_Rank_2.csv"]), ["10", "2"]);
    let kineto = ["host0_500.1700000000.pt.trace.json", "host1_501.1699999999.pt.trace.json"];
    assert_eq!(named(&kineto), ["host0", "host1"]);
    assert_eq!(named(&["n1_7.9.json", "n1_8.9.json", "n2_7.9.json"]), ["n1_7", "n1_8", "n2_7"]);
    assert_eq!(named(&["run/0/stdout.log", "run/1/stdout.log"]), ["0", "1"]);
    assert_eq!(named(&["gpu-9.log", "gpu-10.log"]), ["gpu-9", "gpu-10"]);
    assert_eq!(named(&["one.log"]), ["0"]);
}
