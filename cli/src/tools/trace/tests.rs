//! Presets are all in the help.

#![cfg(test)]

use super::*;

#[test]
fn presets_are_all_in_the_help() {
    use clap::Args as _;
    let help = StatsArgs::augment_args(clap::Command::new("stats")).render_long_help().to_string();
    assert!(Preset::names().into_iter().all(|name| help.contains(name)), "{help}");
}
