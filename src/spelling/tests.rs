//! Slips and beginnings are understood and nothing else.

#![cfg(test)]

use super::*;

#[test]
fn slips_and_beginnings_are_understood_and_nothing_else() {
    let names = ["hotspot", "bursts", "iid", "static", "uncoded", "groups", "min-load", "vote"];
    let near = |name: &str| near(name, names).unwrap_or("-");
    for (slip, meant) in [
        ("hot", "hotspot"),
        ("hotspt", "hotspot"),
        ("group", "groups"),
        ("grups", "groups"),
        ("min", "min-load"),
        ("uncodde", "uncoded"),
        ("idi", "iid"),
        ("vot", "vote"),
        ("GROUPS", "groups"),
    ] {
        assert_eq!(near(slip), meant, "{slip}");
    }
    for other in ["", "-", "h", "auto", "missing.csv", "mine.csv", "runs/0001", "mds", "ring"] {
        assert_eq!(near(other), "-", "{other}");
    }
}
