//! Seats are a number or a range, and more.

#![cfg(test)]

use super::*;

#[test]
fn seats_are_a_number_or_a_range() {
    assert_eq!(seats("4..12").unwrap().to_string(), "4..12");
    assert_eq!(seats("12").unwrap().to_string(), "12");
    assert_eq!(seats("4..12").unwrap().min_workers(), Some(4));
    assert_eq!(seats("12").unwrap().min_workers(), None);
    for (text, why) in [
        ("0..3", "MIN of MIN..MAX: 0 is not in"),
        ("3..0", "MAX of MIN..MAX: 0 is not in"),
        ("5..4", "MIN is 5, more than MAX, which is 4"),
        ("2..", "MAX of MIN..MAX"),
        ("2..=4", "MAX of MIN..MAX"),
        ("1..5000", "MAX of MIN..MAX: 5000 is not in"),
    ] {
        let refused = seats(text).unwrap_err();
        assert!(refused.starts_with(why), "{text}: {refused}");
    }
}

#[test]
fn where_fewer_are_enough_all_are_not_waited_for_as_long() {
    assert_eq!(join_wait(None, None, 4), JOIN_WAIT);
    assert_eq!(join_wait(None, Some(4), 4), JOIN_WAIT);
    assert_eq!(join_wait(None, Some(2), 4), SHORT_JOIN_WAIT);
    assert_eq!(join_wait(Some(5.0), Some(2), 4), 5.0);
}
