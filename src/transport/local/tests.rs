//! Vectors are freed when no worker will apply them.

#![cfg(test)]

use super::*;
use crate::gpu::non_host::NonHostVector;
use crate::ids::{Job, Summand, WorkerSet};

fn request<'a>(sum: SumId, terms: &'a [Summand], counted: &'a WorkerSet) -> SumRequest<'a> {
    let stage = Stage::Decided;
    SumRequest { sum, terms, length: 2, spares_one: false, counted, stage }
}

#[test]
fn vectors_that_stay_are_freed_when_nobody_will_apply_them() {
    let (mut coordinator, mut links) = connect_at::<NonHostVector>(0, vec![0, 0, 1]);
    let task = Task { job: Job(0), piece: 0, plan: 0 };
    links[1].keep(task, NonHostVector(vec![1.0, 2.0]));
    let summand = Summand { weight: 3.0, holders: vec![Piece { worker: Worker(1), task }] };
    assert!(coordinator.received(summand.holders[0]).is_none());
    let all = WorkerSet::full(3);
    let sums = [0, 1].map(|attempt| SumId { step: Step(0), attempt });
    for sum in sums {
        assert!(
            coordinator
                .make_sum(request(sum, std::slice::from_ref(&summand), &all))
                .unwrap()
                .is_none()
        );
        let held: Vec<_> = (0..3).filter_map(|_| coordinator.receive(None)).collect();
        let of = |notice: &Notice| match notice {
            Notice::Sum(SumNotice::Held { sum, .. }) => Some(*sum),
            _ => None,
        };
        let is_of_it = |held: &&(Worker, Notice)| of(&held.1) == Some(sum);
        let by: Vec<_> = held.iter().filter(is_of_it).collect();
        assert_eq!(by.iter().map(|(worker, _)| worker.0).collect::<Vec<_>>(), [0, 1, 2]);
    }
    assert!(links[0].decoded(sums[0]).is_none(), "an older attempt is void");
    assert_eq!(links[2].decoded(sums[1]).unwrap().0, [3.0, 6.0]);
    links[0].send(Notice::Applied { step: Step(0), digest: None });
    coordinator.receive(None);
    coordinator.forget(UnneededItem::Worker(Worker(2)));
    assert!(links[1].decoded(sums[1]).is_some(), "worker 1 has not applied it");
    links[1].send(Notice::Applied { step: Step(0), digest: None });
    coordinator.receive(None);
    assert!(links[1].decoded(sums[1]).is_none());
    let inf = Summand { weight: f64::INFINITY, ..summand };
    let summed =
        coordinator.make_sum(request(SumId::first(Step(1)), &[inf], &all)).unwrap().unwrap();
    assert!(!summed.folded.finite);
    links[0].stopped = true;
    links[1].stopped = true;
}
