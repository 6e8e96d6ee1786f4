//! Gradients pass by their door.

#![cfg(test)]

use super::*;
use crate::gpu::GradientError;
use crate::ids::{Job, OrderId, Units};
use crate::sums::SumId;
use crate::transport::{Transport, local};

/// A gradient goes out and a decoded one comes in through the two traits, from any memory they
/// stand for.
#[test]
fn gradients_pass_by_their_door() {
    let (mut coordinator, mut links) = local::connect(1);
    let task = Task { job: Job(0), piece: 0, plan: 0 };
    let parts = vec![Part { units: Units { start: 0, end: 1 }, coefficient: 0.5 }];
    coordinator.send(
        Worker(0),
        Order::Compute {
            order: OrderId(1),
            after: Vec::new(),
            tasks: vec![(task, parts)],
            cancel: Cancel::default(),
            in_parts: false,
        },
    );
    let decoded = DecodedSum { gradient: Arc::new(vec![3.0, 4.0]), aux: vec![], digest: 0 };
    coordinator.send(
        Worker(0),
        Order::Apply {
            sum: SumId::first(Step(0)),
            decoded: Arc::new(decoded),
            news: StepNews { saver: Worker(0), late: 0 },
        },
    );
    let mut aggregator = Aggregator::new(Box::new(links.remove(0)), 2, 1);
    let Ok(Some(Event::Compute(mut task))) = aggregator.next_event() else {
        panic!("a task comes first")
    };
    let coefficient = task.next_part().unwrap().coefficient as f32;
    assert_eq!(
        task.read_message(&vec![1.0], coefficient),
        Err(GradientError::Range { start: 0, end: 2, length: 1 })
    );
    task.read_message(&vec![1.0, -2.0], coefficient).unwrap();
    assert_eq!(task.message(), [0.5, -1.0]);
    task.submit(vec![]).unwrap();
    let Ok(Some(Event::Apply(step))) = aggregator.next_event() else { panic!("then a step") };
    let mut to = vec![0.0; 2];
    step.write_gradient(&mut to).unwrap();
    assert_eq!(to, [3.0, 4.0]);
}
