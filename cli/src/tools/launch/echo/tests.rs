//! Lines are put together, and more.

#![cfg(test)]

use super::*;

fn shown(pieces: &[&[u8]]) -> Vec<String> {
    let mut lines = Lines::default();
    let mut all: Vec<Vec<u8>> = pieces.iter().flat_map(|piece| lines.take(piece)).collect();
    all.extend(lines.rest());
    all.into_iter().map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
}

#[test]
fn lines_are_put_together() {
    assert_eq!(shown(&[b"a\nb", b"c\n", b"\n", b"d"]), ["a", "bc", "", "d"]);
    assert_eq!(shown(&[b"windows\r", b"\n"]), ["windows"]);
    assert_eq!(shown(&[]), [""; 0]);
}

#[test]
fn of_a_bar_the_last_state_is_shown() {
    assert_eq!(shown(&[b"\r 0%", b"\r 50%", b"\r100%\nloss 1\n"]), ["100%", "loss 1"]);
    let mut lines = Lines::default();
    for _ in 0..10_000 {
        assert_eq!(lines.take(b"\r 50% of a bar that no worker ends"), [b""; 0]);
        assert!(lines.0.len() < PIECE + 64, "it is not kept");
    }
    assert_eq!(lines.take(b"\n"), [b" 50% of a bar that no worker ends"]);
}

#[test]
fn what_has_no_end_comes_in_pieces() {
    let long = vec![b'x'; 3 * PIECE];
    assert_eq!(shown(&[&long[..PIECE - 1], &long[PIECE - 1..], b"y\n"]).len(), 2);
}
