//! The fourth in a minute is too many.

#![cfg(test)]

use super::*;

#[test]
fn the_fourth_in_a_minute_is_too_many() {
    let (mut messages, begun) = (UnreadableMessages::default(), Instant::now());
    let mut came = |seconds| messages.came(begun + Duration::from_secs(seconds), "no JSON");
    assert_eq!([0, 20, 40, 60].map(&mut came), [None, None, None, None]);
    let hopeless = came(61).unwrap();
    assert_eq!(hopeless, "4 messages in 60 s cannot be read, the last one: no JSON");
    assert_eq!([62, 63, 64].map(&mut came), [None, None, None], "another process has three");
}
