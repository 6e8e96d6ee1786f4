//! Which owners wait for each other, and which of them is cut off.

#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "any moment will do: only differences count")]

use super::super::TICK;
use super::*;

/// Who insists on waiting for whom.
fn graph(waiting: &[(u32, &[u32])]) -> WaitGraph {
    let begun = Instant::now();
    let mut waits = Waits::default();
    for tick in 0..2 {
        for (node, on) in waiting {
            assert_eq!(waits.says(*node, on.to_vec(), begun + TICK * tick), tick == 0);
        }
    }
    waits.insisting(begun + TICK)
}

/// Two that wait for each other cannot send each other something: others own what they did.
#[test]
fn owners_that_wait_for_each_other_are_cut_off() {
    let cut_off = |waiting: &[(u32, &[u32])], of: &[u32]| {
        graph(waiting).cut_off(&of.iter().copied().collect())
    };
    let all = [0, 1, 2, 3];
    let waiting: [(u32, &[u32]); 4] = [(0, &[2]), (1, &[2]), (2, &[0, 1]), (3, &[2])];
    assert_eq!(cut_off(&waiting, &all), Some(vec![0, 1, 2]), "worker 3 can own it all");
    assert_eq!(cut_off(&[(0, &[2]), (2, &[0])], &all), Some(vec![0, 2]));
    assert_eq!(cut_off(&[(0, &[2]), (2, &[0])], &[0, 2]), None, "no other worker answers");
    assert_eq!(cut_off(&[(0, &[2]), (2, &[1]), (1, &[0])], &all), None, "no two of them");
    let by_all: [(u32, &[u32]); 4] = [(0, &[2]), (1, &[2]), (3, &[2]), (2, &[0, 1, 3])];
    assert_eq!(cut_off(&by_all, &all), Some(vec![2]), "all wait for one, and it for all");
    let unclear: [(u32, &[u32]); 4] = [(0, &[2, 3]), (1, &[0, 2]), (2, &[0, 1]), (3, &[0, 2])];
    assert_eq!(cut_off(&unclear, &all), Some(vec![0, 2]), "most wait for these");
    let equal: [(u32, &[u32]); 4] = [(0, &[1]), (1, &[0]), (2, &[3]), (3, &[2])];
    assert_eq!(cut_off(&equal, &all), None, "no worker is left");
    let stopped: [(u32, &[u32]); 3] = [(0, &[1, 2, 3]), (1, &[0, 2, 3]), (2, &[0, 1, 3])];
    assert_eq!(cut_off(&stopped, &all), None, "it is worker 3 for which all wait");
}

#[test]
fn a_word_holds_for_a_while() {
    let begun = Instant::now();
    let mut waits = Waits::default();
    assert!(waits.says(0, vec![1], begun));
    assert!(waits.insisting(begun).0.is_empty(), "it has said so once");
    assert!(!waits.says(0, vec![1, 2], begun + TICK));
    assert_eq!(waits.of(0), [1, 2]);
    assert!(waits.is_waiting(0, begun + WORD) && !waits.is_waiting(0, begun + TICK + WORD));
    assert!(waits.are_longer(WORD, begun + WORD));
    assert!(!waits.are_longer(WORD + QUIET, begun + WORD));
    waits.forget(1);
    assert_eq!(waits.of(0), [2]);
    assert!(waits.says(0, vec![2], begun + 2 * WORD), "it had got something in between");
}
