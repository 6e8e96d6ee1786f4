//! Commands name the program as it was called.

#![cfg(test)]

use super::*;

#[test]
fn commands_name_the_program_as_it_was_called() {
    let found = |called| beside(called, NAME).map(|path| path.display().to_string());
    for (called, name) in [
        ("target/release/codedgrad", "target/release/codedgrad"),
        ("target/release/codedgrad-lab", "target/release/codedgrad"),
        ("./my builds/codedgrad.exe", "./my builds/codedgrad.exe"),
    ] {
        assert_eq!(found(called).as_deref(), Some(name));
    }
    for other in ["codedgrad", "/usr/bin/codedgrad", "venv/bin/python3", "bin/codedgradual", ""] {
        assert_eq!(found(other), None, "{other}");
    }
    assert_eq!(quoted("./my builds/codedgrad"), "'./my builds/codedgrad'");
}
