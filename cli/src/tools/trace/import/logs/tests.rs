//! Numbers are not cut, and more.

#![cfg(test)]

use super::*;

#[test]
fn numbers_are_not_cut() {
    let said = |pattern: &str, text: &str| {
        let pattern = Pattern::new(pattern, None, 2).unwrap_or_else(|_| panic!("{pattern}"));
        pattern.take(text, "0", &mut Place::default())
    };
    let time = |text: &str| said(r"took=(?<time>[\d.]+)", text);
    assert_eq!(time("took=0.5s").unwrap().unwrap().2, 0.5);
    assert_eq!(time("took=5.").unwrap().unwrap().2, 5.0);
    for (text, number) in
        [("took=9.857e-02", "9.857e-02"), ("took=1,013.9ms", "1,013.9"), ("took=1e3", "1e3")]
    {
        let problem = time(text).unwrap_err();
        assert!(problem.contains(&format!("cuts the number {number}")), "{problem}");
    }
    assert!(said(r"step .*(?<round>\d+): (?<time>\d+)", "step 12: 3").is_err());
    assert!(said(r"rank=\d*(?<worker>\d) (?<time>\d+)", "rank=12 3").is_err());
    assert!(said(r"(?<time>\d+) s", "0.98 s").is_err());
    let listed = said(r"^(?<round>\d+),(?<worker>\d+),(?<time>[\d.]+)", "12,3,985.5,0.7");
    assert_eq!(listed.unwrap().unwrap(), ("12".into(), "3".into(), 985.5));
    let all = said(r"took=(?<time>[-+\d.,eE]+)", "took=1,013.9ms").unwrap().unwrap();
    assert_eq!(all.2, 1013.9);
}

#[test]
fn times_are_summed_and_rounds_are_told_by_headlines_or_counted() {
    let text = "fwd: 1.5 | bwd_inner: 2.25 |";
    let both = r"fwd: (?<time>[\d.]+).*bwd_inner: (?<time_bwd>[\d.]+)";
    let pattern = Pattern::new(both, None, 2).unwrap_or_else(|_| panic!());
    let mut place = Place::default();
    let rounds: Vec<_> =
        (0..2).map(|_| pattern.take(text, "7", &mut place).unwrap().unwrap()).collect();
    assert_eq!(rounds[1], ("1".into(), "7".into(), 3.75));
    let named = Pattern::new(
        r"fwd: (?<time>[\d.]+)",
        Some(r"Rank (?<worker>\d+) on (?<worker_host>\w+), iteration (?<round>\d+)"),
        1,
    );
    let named = named.unwrap_or_else(|_| panic!());
    let mut place = Place::default();
    assert_eq!(named.take(text, "7", &mut place), Ok(None));
    assert_eq!(named.take("Rank 3 on a1, iteration 12", "7", &mut place), Ok(None));
    let found = named.take(text, "7", &mut place).unwrap().unwrap();
    assert_eq!((&*found.0, &*found.1), ("12", "3-a1"));
    assert!(Pattern::new(r"(?<host>\w+) (?<time>\d+)", None, 2).is_err());
    let under = Pattern::new(both, Some(r"iteration (?<round>\d+)"), 2);
    let under = under.unwrap_or_else(|_| panic!());
    let mut place = Place::default();
    assert_eq!(under.take(text, "7", &mut place), Ok(None));
    assert_eq!(under.take("iteration 12/ 50", "7", &mut place), Ok(None));
    assert_eq!(under.take(text, "7", &mut place).unwrap().unwrap().0, "12");
}
