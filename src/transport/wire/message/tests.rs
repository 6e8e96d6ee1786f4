//! Messages as they are written.

#![cfg(test)]

use super::*;
use crate::ids::{Job, Piece, Summand};
use crate::sums::{PeerMessage, SumPlan};
use proptest::prelude::*;

#[test]
fn messages_read_as_documented() {
    let task = Task { job: Job(7), piece: 2, plan: 0 };
    let parts = vec![Part { units: Units { start: 1, end: 3 }, coefficient: 0.1 }];
    let part = r#"{"units":{"start":1,"end":3},"coefficient":0.1}"#;
    let text = format!(
        r#"{{"compute":{{"epoch":1,"order":4,"after":[6],"tasks":[{{"task":{{"job":7,"piece":2}},"parts":[{part}]}}]}}}}"#
    );
    let message = ToWorker::Compute {
        epoch: 1,
        order: OrderId(4),
        after: vec![Step(6)],
        tasks: vec![TaskOrder { task, parts }],
    };
    assert_eq!(String::from_utf8(encode(&message)).unwrap(), text);
    assert_eq!(decode::<ToWorker>(text.as_bytes()), Ok(message));
    assert_eq!(
        decode::<FromWorker>(br#"{"idle":{"order":1}}"#),
        Ok(FromWorker::Idle { order: OrderId(1), computed: None, units: None })
    );
    assert!(
        decode::<FromWorker>(b"{}").is_err() && decode::<FromWorker>(br#"{"idle":{}}"#).is_err()
    );
}

proptest! {
    /// Weights and digests come back to the last bit.
    #[test]
    fn numbers_come_back(
        weight in prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO,
        digest: u64,
    ) {
        let task = Task { job: Job(digest), piece: 3, plan: 0 };
        let sum = SumId { step: Step(1), attempt: 2 };
        let holders = vec![Piece { worker: Worker(1), task }];
        let plan = SumPlan {
            sum,
            places: Vec::new(),
            terms: vec![Summand { weight, holders }],
            owners: Vec::new(),
            stripe: None,
            predecessor: None,
            receivers: Vec::new(),
            group: None,
        };
        let exchange = ToWorker::Sum(SumCommand::Exchange(plan));
        prop_assert_eq!(decode::<ToWorker>(&encode(&exchange)), Ok(exchange));
        let held = SumReport::Held { sum, digest: Some(digest) };
        let held = FromWorker::Sum(held);
        prop_assert_eq!(decode::<FromWorker>(&encode(&held)), Ok(held));
    }

    #[test]
    fn garbage_is_no_message(bytes: Vec<u8>) {
        let _ = decode::<ToWorker>(&bytes);
        let _ = decode::<FromWorker>(&bytes);
        let _ = decode::<PeerMessage>(&bytes);
    }
}
