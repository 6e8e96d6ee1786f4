//! Broken events are read as far as they go.

#![cfg(test)]

use super::*;

fn steps(text: &str) -> (Vec<(u64, f64)>, BrokenEvents) {
    let (trace, broken) = rescued(text, false).unwrap();
    assert_eq!(trace.distributed.and_then(|it| it.rank), Some(3));
    (trace.events.steps(broken.cut).collect(), broken)
}

#[test]
fn broken_events_are_read_as_far_as_they_go() {
    let whole = r#"{"distributedInfo": {"rank": 3}, "traceEvents": [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 10},
        {"ph": "X", "cat": "kernel", "name": "{"device": "cpu"}(12): run", "ts": 0, "dur": 6},
        {"ph": "X", "cat": "kernel", "name": "nccl", "ts": 6, "dur": 4, "args": {"x": nan}},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#2", "ts": 10, "dur": 10},
        {"ph": "X", "cat": "kernel", "name": "nccl \U", "ts": 17, "dur": 3}
    ]}"#;
    let (found, broken) = steps(whole);
    assert_eq!((found, broken.events, broken.cut), (vec![(1, 6.0), (2, 7.0)], 3, false));
    assert!(broken.to_string().contains("3 of 5 events") && broken.to_string().contains("line 3"));
    let cut = &whole[..whole.find("nccl \\U").unwrap()];
    let (found, broken) = steps(cut);
    assert_eq!((found, broken.cut), (vec![(1, 6.0)], true));
}
