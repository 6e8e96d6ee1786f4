//! Counts of sums are fields of the status.

#![cfg(test)]

use super::*;

/// What came of sums stands among the rest, and a file that lacks some of it can be read.
#[test]
fn counts_of_sums_are_fields_of_the_status() {
    let text = r#"{"workers":[],"sent":1,"received":2,"exchanges":3,"by_collective":2,
        "exchange_seconds":0.5,"refused":0,"kept":4}"#;
    let status: TcpStatus = serde_json::from_str(text).unwrap();
    let SumCounts { exchanges, by_collective, expected, .. } = status.sums;
    assert_eq!((exchanges, by_collective, expected), (3, 2, 0));
    let again = serde_json::to_value(&status).unwrap();
    assert_eq!((&again["exchanges"], &again["by_collective"]), (&3.into(), &2.into()));
}
