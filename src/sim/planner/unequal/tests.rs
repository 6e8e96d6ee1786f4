//! Who is slow or quick for good gets a share to match.

#![cfg(test)]

use super::*;

fn texts(rows: Vec<Vec<f64>>, growth: Growth) -> Vec<String> {
    let settings = settings(&Replay::new(rows, growth, 0.0, 1));
    settings.iter().map(|setting| setting.scheme.to_string()).collect()
}

#[test]
fn who_is_slow_or_quick_for_good_gets_a_share_to_match() {
    let proportional = Growth::Proportional { base: 0.25 };
    let rows = vec![vec![1.0, 1.0, 2.5, 0.8]; 30];
    assert_eq!(
        texts(rows.clone(), proportional),
        [0, 1, 2].map(|s| format!("interval:speeds=1x2+0.4+1.25,s={s},units=80"))
    );
    // Half of each answer is work: 0.25 of the batch in 2 s, and 1.5 s more for the slow one.
    let additive = Growth::Additive { base: 0.25, slope: 8.0 };
    let late = vec![vec![3.0, 3.0, 3.0, 4.5]; 30];
    assert!(texts(late.clone(), additive)[0].starts_with("interval:speeds=1x3+0.368,"));
    assert!(texts(late, Growth::AS_RECORDED).is_empty(), "less work is no less time");
    assert!(texts(vec![vec![3.0, 3.0, 3.0, 6.0]; 30], additive).is_empty(), "nor with any");
    assert!(texts(vec![vec![1.0, 1.0, 1.1, 0.95]; 30], proportional).is_empty(), "alike");
    let in_turn = (0..30).map(|round| (0..4).map(|at| 1.0 + f64::from(at == round % 4)).collect());
    assert!(texts(in_turn.collect(), proportional).is_empty(), "no worker for good");
}
