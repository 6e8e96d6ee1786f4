//! Decoded vectors are there for their attempt and their memory goes round, and more.

#![cfg(test)]

use super::super::{DecodedSum, StepNews, Transport, local};
use super::*;
use crate::gpu::non_host::NonHostVector;
use crate::ids::{Job, OrderId, Step, Worker};

#[test]
fn decoded_vectors_are_there_for_their_attempt_and_their_memory_goes_round() {
    let (mut coordinator, mut links) = local::connect(1);
    let mut link: StagedLink<NonHostVector> = StagedLink::new(Box::new(links.remove(0)), 0);
    for step in 0..3u64 {
        let decoded =
            DecodedSum { gradient: Arc::new(vec![step as f32; 2]), aux: Vec::new(), digest: 0 };
        coordinator.send(
            Worker(0),
            Order::Apply {
                sum: SumId { step: Step(step), attempt: 1 },
                decoded: Arc::new(decoded),
                news: StepNews { saver: Worker(0), late: 0 },
            },
        );
        assert!(matches!(link.receive(None), ReceiveOutcome::Order(Order::Apply { .. })));
        let mut decoded = |step, attempt| link.decoded(SumId { step: Step(step), attempt });
        assert!(decoded(step, 0).is_none() && decoded(step + 1, 1).is_none());
        assert_eq!(decoded(step, 1).unwrap().0, [step as f32; 2]);
        assert!(link.spare.is_empty(), "the last one's memory is in use again");
    }
    coordinator.send(Worker(0), Order::Stop { why: "all is done".into() });
    link.receive(None);
}

#[test]
fn a_worker_whose_device_fails_ends() {
    let (mut coordinator, mut links) = local::connect(1);
    let mut link: StagedLink<NonHostVector> = StagedLink::new(Box::new(links.remove(0)), 0);
    let task = Task { job: Job(0), piece: 0, plan: 0 };
    link.keep(task, NonHostVector(vec![f32::NAN]));
    link.send(Notice::Done { order: OrderId(1), task, aux: Vec::new(), finite: true, spent: None });
    assert!(matches!(link.receive(None), ReceiveOutcome::Gone));
    drop(link);
    assert!(
        matches!(coordinator.receive(None), Some((_, Notice::Lost { .. }))),
        "what it said before does not count"
    );
}
