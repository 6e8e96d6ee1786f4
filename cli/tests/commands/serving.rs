//! `codedgrad serve` as a process, whose workers are the test's own.

use crate::processes::{Kept, wait_for};
use codedgrad::transport::tcp::security::{Security, Token};
use std::fs;
use std::path::Path;

/// Starts it with a folder in `home`: the process, where it listens, and what it lets in.
pub(crate) fn serve(home: &Path, out: &str, flags: &[&str]) -> (Kept, String, Security) {
    serve_with(home, out, &[&["serve", "--out", out], flags].concat())
}

/// Starts it with these arguments, whose folder this is.
pub(crate) fn serve_with(home: &Path, out: &str, arguments: &[&str]) -> (Kept, String, Security) {
    let serving = Kept::start(home, "serve", arguments);
    let read = |file: &str| fs::read_to_string(home.join(out).join(file)).ok();
    let address = wait_for("the address of codedgrad serve", || {
        read("token")?;
        read("address").filter(|address| !address.is_empty())
    });
    let token = Token::read(&home.join(out).join("token")).unwrap();
    (serving, address.trim().to_owned(), Security::Plain { token })
}
