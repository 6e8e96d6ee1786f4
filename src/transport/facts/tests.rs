//! A difference changes nothing, and more.

#![cfg(test)]

use super::*;

#[test]
fn a_difference_changes_nothing() {
    let mut run = RunFacts { units: Some(4), ..RunFacts::default() };
    let other = RunFacts { length: Some(3), units: Some(8), ..RunFacts::default() };
    let error = run.agree(&other).unwrap_err();
    assert_eq!(
        (error.fact.as_str(), error.here.as_str(), error.run.as_str()),
        ("units of a batch", "8", "4")
    );
    assert_eq!(run, RunFacts { units: Some(4), ..RunFacts::default() });
}

#[test]
fn settings_are_compared_by_name() {
    let told = |pairs: &[(&str, &str)]| RunFacts {
        settings: pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        ..RunFacts::default()
    };
    let mut run = RunFacts::default();
    run.agree(&told(&[("reduction", "mean"), ("seed", "0")])).unwrap();
    run.agree(&RunFacts::default()).unwrap();
    let error = |other| run.clone().agree(&told(other)).unwrap_err().to_string();
    assert_eq!(error(&[("reduction", "mean"), ("seed", "1")]), "seed: 1 here, 0 in the run");
    assert_eq!(error(&[("seed", "0")]), "reduction: not said here, mean in the run");
    assert_eq!(
        error(&[("reduction", "mean"), ("seed", "0"), ("more", "2")]),
        "more: 2 here, not said in the run"
    );
}

#[test]
fn replicas_of_one_step_are_compared() {
    let begins = |step, digest| RunFacts {
        start: Some(Start { step: Step(step), digest }),
        ..RunFacts::default()
    };
    let mut run = begins(0, 0xa);
    run.agree(&begins(5, 0xb)).unwrap();
    let error = run.agree(&begins(0, 0xb)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "parameters to begin with: 000000000000000b before step 0 here, 000000000000000a \
         before step 0 in the run"
    );
    assert_eq!(run, begins(0, 0xa));
}
