//! A hello is bounded, and more.

#![cfg(test)]

use super::*;
use crate::ids::Step;
use std::collections::BTreeSet;

#[test]
fn a_hello_is_bounded() {
    let joined = |epoch| Hello {
        address: Some("host:1".into()),
        domain: Some("rack 7".into()),
        offer: Some(Offer { run: 1, epoch, next: Step(0) }),
        ..Hello::default()
    };
    let long = "é".repeat(128);
    let brief = Hello { identity: long[2..].into(), ..Hello::default() };
    assert_eq!(check_hello(&brief), Ok(()));
    assert_eq!(check_hello(&joined(EPOCHS_MAX - 1)), Ok(()));
    for (hello, what) in [
        (Hello { identity: long.clone(), ..Hello::default() }, "identity"),
        (Hello { address: Some(long.clone()), ..Hello::default() }, "address"),
        (Hello { domain: Some(long), ..Hello::default() }, "domain"),
    ] {
        let why = format!("its {what} has 256 bytes; at most 255 can be");
        assert_eq!(check_hello(&hello), Err(why));
    }
    let often = check_hello(&joined(EPOCHS_MAX)).unwrap_err();
    assert!(often.contains("joined 2147483648 times"), "{often}");
}

#[test]
fn what_others_are_called_is_shown_in_brief() {
    assert_eq!(brief("me\n"), "\"me\\n\"");
    assert_eq!(brief(&"é".repeat(1000)), format!("{:?}..", "é".repeat(64)));
}

#[test]
fn pauses_differ_from_caller_to_caller_and_from_time_to_time() {
    let pause = Duration::from_secs(1);
    let drawn =
        |tries| (0..100).map(move |worker| jittered(pause, &format!("worker {worker}"), tries));
    let all: BTreeSet<Duration> = drawn(1).chain(drawn(2)).collect();
    assert!(
        all.len() > 190 && all.iter().all(|drawn| (pause / 2..=pause).contains(drawn)),
        "{all:?}"
    );
    assert!((all.iter().sum::<Duration>() / 200).abs_diff(pause * 3 / 4) < pause / 20);
}
