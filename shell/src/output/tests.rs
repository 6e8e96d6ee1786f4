//! Texts of others do nothing to a terminal.

#![cfg(test)]

use super::*;

#[test]
fn texts_of_others_do_nothing_to_a_terminal() {
    assert!(matches!(harmless("a\tb\nc \u{e9} \u{4e2d}"), Cow::Borrowed(_)));
    let evil = "x\u{1b}[2J\u{9b}31m\r\u{7}\u{202e}\u{7f}\n";
    let shown = harmless(evil);
    assert_eq!(shown, "x\\u001b[2J\\u009b31m\\u000d\\u0007\\u202e\\u007f\n");
    // What JSON leaves as it is, it takes in this form too.
    let json = serde_json::to_string(evil).unwrap();
    assert!(json.contains('\u{9b}'), "{json}");
    assert_eq!(serde_json::from_str::<String>(&harmless(&json)).unwrap(), evil);
}
