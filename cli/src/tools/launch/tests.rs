//! Flags behind the program are noticed.

#![cfg(test)]

use super::*;
use clap::Command;

#[test]
fn flags_behind_the_program_are_noticed() {
    let found = |line: &str| {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        strayed(&words)
    };
    assert_eq!(found("ok.py --scheme groups:s=1 --lr 1"), ["--scheme"]);
    assert_eq!(found("ok.py --wire=bf16 --max-wait 3"), ["--max-wait", "--wire"]);
    assert_eq!(found("--scheme"), [""; 0], "the program itself");
    assert_eq!(found("ok.py --out x -n 3 --schemes --keys k"), [""; 0], "programs have these");
    assert_eq!(found("ok.py -- --scheme x"), [""; 0], "they are its arguments on purpose");
    let command = LaunchArgs::augment_args(Command::new("run"));
    let all: Vec<&str> = command.get_arguments().filter_map(|flag| flag.get_long()).collect();
    for flag in OURS {
        assert!(all.contains(&&flag[2..]), "{flag} is one of this command's");
    }
}
