//! When it is looked again.

#![cfg(test)]

use super::*;

fn seen(scheme: &str, seconds: f64) -> StepSample {
    StepSample {
        #[cfg(feature = "tcp")]
        step: 0,
        scheme: scheme.to_owned(),
        predicted: None,
        decided: false,
        disturbed: false,
        seconds,
        rows: vec![vec![seconds; 2]],
        in_time: vec![true, false],
    }
}

/// After how many coded steps it is looked again, if the first step of the look before took so
/// long, and coded steps take so many times as long as at first.
fn looks_again_after(first: f64, slower: f64) -> u64 {
    const CODED: &str = "groups:s=1";
    let mut chooser = Chooser::new(Auto::default(), 2, 2);
    let steps = |chooser: &mut Chooser, scheme, count, seconds| {
        (0..count).for_each(|_| chooser.note(seen(scheme, seconds)));
    };
    steps(&mut chooser, UNCODED, 30, 0.3);
    steps(&mut chooser, CODED, 40, 0.1);
    steps(&mut chooser, UNCODED, 1, first);
    steps(&mut chooser, UNCODED, 2, 0.3);
    chooser.since = 0;
    steps(&mut chooser, CODED, 21, 0.1);
    let mut looks = || {
        steps(&mut chooser, CODED, 1, 0.1 * slower);
        chooser.while_coded().is_some()
    };
    (22..100_000).find(|_| looks()).unwrap()
}

#[test]
fn looks_that_cost_much_come_rarely() {
    let [cheap, dear] = [0.3, 11.0].map(|first| looks_again_after(first, 1.0));
    // A look of three steps of 0.3 s loses 0.6 s, and 11 s in their first one 11.3 s.
    let is_about = |steps: u64, right: f64| (steps as f64 - right).abs() <= 1.0;
    assert!(is_about(cheap, 300.0), "{cheap}: a hundred for every uncoded step");
    assert!(is_about(dear, 11.3 / 0.1 / LOOKS_MOST), "{dear}");
    let [cheap, dear] = [0.3, 11.0].map(|first| looks_again_after(first, 1.5));
    assert!(cheap < 60, "{cheap}");
    assert!(is_about(dear, 11.3 / 0.15 / LOOKS_SOON_MOST), "{dear}");
}
