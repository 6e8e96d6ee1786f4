//! The seeds of the fuzzer, each through what the fuzzer does with it. CONTRIBUTING.md tells how to
//! look for more.

#[path = "../../fuzz/bodies.rs"]
mod bodies;

use codedgrad::doctor::Record;
use codedgrad::sums::{Header, PeerMessage};
use codedgrad::transport::wire::{
    CONTROL_BYTES_MAX, FromWorker, HEADER_BYTES, ToWorker, decode, encode, frame,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let read = |path: std::path::PathBuf| {
        (path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap())
    };
    let seeds: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| read(entry.unwrap().path())).collect();
    assert!(!seeds.is_empty());
    seeds
}

#[test]
fn every_seed_goes_through_its_target() {
    seeds("header").iter().for_each(|(_, bytes)| bodies::header(bytes));
    seeds("control").iter().for_each(|(_, bytes)| bodies::control(bytes));
    seeds("frames").iter().for_each(|(_, bytes)| bodies::frames(bytes));
    seeds("record").iter().for_each(|(_, bytes)| bodies::record(bytes));
}

/// Seeds that no longer parse lead a fuzzer nowhere: those that are not called `bad` are what they
/// should be.
#[test]
fn seeds_are_of_this_version() {
    let good = |target| seeds(target).into_iter().filter(|(name, _)| !name.starts_with("bad"));
    for (name, bytes) in good("header") {
        let bytes: &[u8; HEADER_BYTES] = bytes.first_chunk().unwrap();
        assert!(Header::decode(bytes, CONTROL_BYTES_MAX).is_ok(), "{name}");
    }
    for (name, bytes) in good("control") {
        let understood = if name.starts_with("to_worker") {
            decode::<ToWorker>(&bytes).err()
        } else {
            decode::<FromWorker>(&bytes).err()
        };
        assert!(understood.is_none() || name.starts_with("across"), "{name}: {understood:?}");
    }
    for (name, bytes) in good("frames") {
        assert!(matches!(frame(&bytes, CONTROL_BYTES_MAX), Ok(Some(_))), "{name}");
    }
    for (name, bytes) in good("record") {
        let mut record = Record::default();
        for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            record.push(serde_json::from_slice(line).unwrap()).unwrap_or_else(|_| panic!("{name}"));
        }
        assert!(record.rounds() > 0, "{name}");
    }
}

/// The examples in docs/protocol.md are messages, every message is among them, and so are its
/// fields.
#[test]
fn examples_in_the_protocol_are_messages() {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/protocol.md")).unwrap();
    let examples: Vec<&str> = text.lines().filter(|line| line.starts_with("{\"")).collect();
    for example in &examples {
        let body = example.as_bytes();
        let again = match (
            decode::<ToWorker>(body),
            decode::<FromWorker>(body),
            decode::<PeerMessage>(body),
        ) {
            (Ok(down), ..) => encode(&down),
            (_, Ok(up), _) => encode(&up),
            (_, _, Ok(across)) => encode(&across),
            (Err(reason), ..) => panic!("{example}: {reason}"),
        };
        assert_eq!(String::from_utf8(again).unwrap(), *example);
    }
    for (name, bytes) in seeds("control").into_iter().filter(|(name, _)| !name.starts_with("bad")) {
        let message: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&bytes).unwrap();
        let kind = message.keys().next().unwrap();
        assert!(
            examples.iter().any(|example| example.starts_with(&format!("{{\"{kind}\":"))),
            "{name}"
        );
    }
}
