//! Partings are told in a line.

#![cfg(test)]

use super::*;

#[test]
fn partings_are_told_in_a_line() {
    let failed = |samples| Some(FailedUnit { job: Job(10), unit: 1, samples });
    let parting = ExitReason::failed(failed(8..16), "ValueError: corrupt\u{1b}[2J sample\nmore");
    let told = "unit 1 of batch 10 (samples 8 to 15): ValueError: corrupt [2J sample";
    assert_eq!(parting.to_string(), told);
    let one = ExitReason::failed(failed(8..9), "x");
    assert_eq!(one.to_string(), "unit 1 of batch 10 (sample 8): x");
    let text = format!("{}{}", "é".repeat(1000), "ends so".repeat(60));
    let long = ExitReason { reason: text.clone(), ..one }.at("x".repeat(9000)).checked();
    let (head, tail) = long.reason.split_once(" ... ").unwrap();
    assert!(head == "é".repeat(400) && text.ends_with(tail) && tail.chars().count() == 400);
    assert_eq!(long.place.unwrap().len(), 805);
}
