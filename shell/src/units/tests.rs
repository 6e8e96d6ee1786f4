//! Times have units, and more.

#![cfg(test)]

use super::*;

#[test]
fn times_have_units() {
    for (text, time) in [
        ("60", 60.0),
        ("0.5", 0.5),
        ("1e3", 1000.0),
        ("100ms", 0.1),
        ("1.5 s", 1.5),
        ("5m", 300.0),
        ("2min", 120.0),
        ("1e-1h", 360.0),
        ("250us", 2.5e-4),
    ] {
        let found = seconds(text).unwrap();
        assert!((found - time).abs() < 1e-12 * time, "{text}: {found}");
    }
    for text in ["", "s", "5 parsecs", "-1", "-1s", "inf", "nan", "1e999", "1h30m"] {
        assert!(seconds(text).unwrap_err().contains("write seconds, or 100ms"), "{text}");
    }
}

#[test]
fn counts_may_be_short() {
    let parse = count::<u32>(1..=4096);
    assert_eq!((parse("8"), parse("1e3"), parse("1_000")), (Ok(8), Ok(1000), Ok(1000)));
    assert_eq!(parse("0").unwrap_err(), "0 is not in 1..=4096");
    assert_eq!(parse("1e4").unwrap_err(), "10000 is not in 1..=4096");
    for text in ["eight", "1.5", "1e-3", "-1", "", "inf"] {
        let problem = parse(text).unwrap_err();
        assert!(problem.contains("is no whole number of 0 or more"), "{text}: {problem}");
    }
    assert_eq!(size("1e3"), Ok(1000));
    assert!(size("-1").unwrap_err().contains("is no whole number of 0 or more"));
    assert_eq!((several(1, "step"), several(0u32, "step")), ("1 step".into(), "0 steps".into()));
    assert_eq!(at_least(0)("18446744073709551615"), Ok(u64::MAX));
    assert_eq!(at_least(1u32)("0").unwrap_err(), "1 or more is needed");
}
