//! Commas are read as they are meant, and more.

#![cfg(test)]

use super::*;

#[test]
fn commas_are_read_as_they_are_meant() {
    let time = |text| (time_in(text, Comma::Decimal), time_in(text, Comma::Thousands));
    assert_eq!(time("1,013"), (Some(1.013), Some(1013.0)));
    assert_eq!(time("0,994"), (Some(0.994), Some(0.994)));
    assert_eq!(time("1,01"), (Some(1.01), Some(1.01)));
    assert_eq!(time("1,234,567"), (Some(1_234_567.0), Some(1_234_567.0)));
    assert_eq!(time("-1,000").0, Some(f64::INFINITY));
    for bad in ["1,2,3", "1.0,0.5", "1,0.5", ",", "1 2", "0x1", "1e999", "-inf", "-0,5"] {
        assert_eq!(time(bad), (None, None), "{bad}");
    }
}

#[test]
fn what_is_not_there_is_told_from_what_never_came() {
    for missing in ["", "nan", "NaN", "null", "None", "N/A", "\"\"", "<NA>"] {
        assert!(time_in(missing, Comma::Thousands).is_some_and(f64::is_nan), "{missing}");
    }
    for never in ["-1", "-1.0", "inf", "Infinity", "\"-1\""] {
        assert_eq!(time_in(never, Comma::Thousands), Some(f64::INFINITY), "{never}");
    }
}
