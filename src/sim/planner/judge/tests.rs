//! What the planner concludes from replays.

#![cfg(test)]

use super::*;

fn seconds(series: &[f64]) -> Seconds {
    Seconds::of(series.iter().copied())
}

#[test]
fn memory_is_as_long_as_spells_are() {
    let spells = |length: usize| -> Vec<f64> {
        // Spells begin where a generator says so.
        let mut state = 1_u64;
        let mut series = vec![1.0; 600];
        for start in (0..590).step_by(length) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if state >> 62 == 0 {
                series[start..start + length].fill(4.0);
            }
        }
        series
    };
    assert_eq!(memory(&[2.0; 50]), 1);
    assert_eq!(memory(&spells(1)), 1);
    assert!((4..=10).contains(&memory(&spells(5))), "{}", memory(&spells(5)));
    let rising: Vec<f64> = (0..100).map(f64::from).collect();
    assert_eq!(memory(&rising), 25, "a quarter of the trace, and no interval");
}

/// Two schemes that are the faster one in turns: what is chosen is always late; the interval
/// knows it though each scheme seems to gain.
#[test]
fn what_is_chosen_is_judged_on_what_comes_after() {
    let uncoded = seconds(&[1.0; 40]);
    let first: Vec<f64> = (0..40).map(|job| if job < 20 { 0.5 } else { 1.6 }).collect();
    let schemes = [seconds(&[1.0; 40]), seconds(&first)];
    let judge = Judge { uncoded: &uncoded, half: 20, memory: 1 };
    assert_eq!(
        judge.deciding(&schemes[1]),
        ObservedGain { gain: 0.5, least: 0.5, without_best: 0.5 }
    );
    let walk = judge.walk(&schemes);
    assert!(judge.gain(&walk, &schemes) < 0.0);
    let interval = judge.interval(&walk, &schemes, Vec::new).unwrap();
    assert!(interval.low < 0.0, "{interval:?}");
    assert_eq!((interval.blocks, interval.block), (6, 3));
}

/// The interval of a plain mean is Student's, with the job that deviates most once more.
#[test]
fn intervals_are_as_wide_as_theory_says() {
    let uncoded = seconds(&[1.0; 200]);
    // Blocks of 10 with sums 4 and 6 by turns: gain 0.5, residuals of 1, and 0.1 in a job.
    let halves: Vec<f64> = (0..200).map(|job| [0.4, 0.6][job / 10 % 2]).collect();
    let judge = Judge { uncoded: &uncoded, half: 100, memory: 1 };
    let schemes = [seconds(&halves)];
    let walk = judge.walk(&schemes);
    let wide = |orders: Vec<BTreeMap<usize, Seconds>>, squares: f64| {
        let found = judge.interval(&walk, &schemes, || orders).unwrap();
        let expected = 2.262 * (10.0 * squares / 18.0 * 1.04_f64).sqrt() / 100.0;
        assert!((found.low - (0.5 - expected)).abs() < 1e-9, "{found:?} {expected}");
        assert!((found.high - (0.5 + expected)).abs() < 1e-9, "{found:?} {expected}");
    };
    wide(Vec::new(), 20.0125);
    // Other orders of the workers make it wider or narrower, and never move it.
    let order = |times: f64| {
        let series: Vec<f64> = halves.iter().map(|time| 0.5 + times * (time - 0.5)).collect();
        BTreeMap::from([(0, seconds(&series))])
    };
    wide(vec![order(0.0), order(1.0)], 20.0125 * 2.0 / 3.0);
    wide(vec![order(1.0), order(3.0)], 20.0125 * 11.0 / 3.0);
}

#[test]
fn one_event_is_no_reason_to_code() {
    let mut event = vec![1.0; 60];
    event[10] = 60.0;
    let uncoded = seconds(&event);
    let coded = seconds(&[1.14; 60]);
    let judge = Judge::new(&uncoded, &coded);
    let early = judge.deciding(&coded);
    assert!(early.gain > 0.5 && early.without_best < -0.03, "{early:?}");
}

/// Five blocks of which each gains, but by anything from nothing to much.
#[test]
fn few_blocks_that_differ_are_no_reason_to_code() {
    let uncoded = seconds(&[1.0; 30]);
    let parts = [0.95, 0.6, 1.1, 0.95, 1.0];
    let coded: Vec<f64> = (0..30).map(|job| parts[job / 3 % 5]).collect();
    let judge = Judge { uncoded: &uncoded, half: 15, memory: 1 };
    let seen = judge.deciding(&seconds(&coded));
    assert!((seen.gain - 0.08).abs() < 1e-9 && seen.without_best >= -1e-9, "{seen:?}");
    assert!(seen.least < 0.0, "{seen:?}");
}

#[test]
fn a_trace_of_few_spells_has_no_interval() {
    let uncoded = seconds(&[1.0; 48]);
    let schemes = [seconds(&[1.0; 48])];
    let given = |memory: usize| {
        let judge = Judge { uncoded: &uncoded, half: 24, memory };
        judge.interval(&judge.walk(&schemes), &schemes, Vec::new)
    };
    assert_eq!(given(4).unwrap().blocks, 4);
    let refused = given(5).unwrap_err();
    assert_eq!(refused, TooFew { block: 8, blocks: 3 });
    let said =
        "the older half of the trace has 3 independent spells, of 8 jobs: too few, 4 are needed";
    assert_eq!(refused.to_string(), said);
}
