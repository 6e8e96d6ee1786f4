//! Words that Python writes are read outside of texts.

#![cfg(test)]

use super::*;

#[test]
fn words_that_python_writes_are_read_outside_of_texts() {
    let text = r#"{"a": NaN, "b \" NaN": [-Infinity, Infinity], "c": "NaN"}"#;
    let found = with_words(text);
    let expected = r#"{"a": "NaN", "b \" NaN": ["-Infinity", "Infinity"], "c": "NaN"}"#;
    assert_eq!(found, expected);
}
