//! What is handed to a coordinator is what it gets, and more.

#![cfg(test)]

use super::*;
use clap::FromArgMatches;

/// All that a launcher is told comes to its coordinator as it is.
#[cfg(unix)]
#[test]
fn what_is_handed_to_a_coordinator_is_what_it_gets() {
    let command = Options::augment_args(Command::new("run").no_binary_name(true));
    let told = "--scheme groups:s=1 --join-wait 1.5 --return-wait 2 --max-wait 3 \
                --give-up-after 7 --settle 8 --unit-tries 7 --log-steps 9 --exchange star \
                --wire bf16 --out here --force --metrics 127.0.0.1:9400";
    for told in [told, "--scheme auto:probe=4,every=50", ""] {
        let matches = command.clone().try_get_matches_from(told.split_whitespace()).unwrap();
        let options = Options::from_arg_matches(&matches).unwrap();
        let listen = Some("[::1]:0".to_owned());
        let port = Port { listen, keys: Some("keys".into()), token: None };
        let serving = options.serving(Seats::between(6, 8), port).unwrap();
        let line = serde_json::to_string(&serving).unwrap();
        assert!(!line.contains('\n'), "{line}");
        let read: ServeJob = serde_json::from_str(&line).unwrap();
        assert_eq!(format!("{read:?}"), format!("{serving:?}"));
    }
}

#[test]
fn a_resumed_run_has_the_other_flags_from_its_folder() {
    let command = ServeArgs::augment_args(Command::new("serve").no_binary_name(true));
    let parsed =
        |line: &str| command.clone().try_get_matches_from(line.split_whitespace()).map(drop);
    for own in ["--scheme uncoded", "--settle 3", "--out there", "--max-wait 20", "--wire f32"] {
        let error = parsed(&format!("--resume here {own}")).unwrap_err();
        assert_eq!(error.kind(), clap::error::ErrorKind::ArgumentConflict, "{own}: {error}");
    }
    parsed("--resume here --workers 2..4 --metrics 127.0.0.1:1").unwrap();
}
