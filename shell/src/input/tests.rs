//! What is packed or in another encoding is read.

#![cfg(test)]

use super::*;
use std::io::Write;

fn lines(bytes: &[u8]) -> Vec<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let mut input = Input::open(file.path()).unwrap();
    let (mut lines, mut line) = (Vec::new(), Vec::new());
    while input.line(&mut line).unwrap().is_some() {
        lines.push(String::from_utf8(line.clone()).unwrap());
    }
    lines
}

#[test]
fn what_is_packed_or_in_another_encoding_is_read() {
    let text = "a,\u{e4}\r\n1,\u{1f600}\rz";
    let expected = ["a,\u{e4}", "1,\u{1f600}", "z"];
    assert_eq!(lines(text.as_bytes()), expected);
    assert_eq!(lines(format!("\u{feff}{text}").as_bytes()), expected);
    let wide = |mark: &str, order: fn(u16) -> [u8; 2]| -> Vec<u8> {
        format!("{mark}{text}").encode_utf16().flat_map(order).collect()
    };
    assert_eq!(lines(&wide("\u{feff}", u16::to_le_bytes)), expected);
    assert_eq!(lines(&wide("\u{feff}", u16::to_be_bytes)), expected);
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    assert_eq!(lines(&packed.finish().unwrap()), expected);
    let plain: Vec<u8> = "0,1\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(lines(&plain), ["0,1"]);
}
