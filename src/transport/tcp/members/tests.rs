//! What a worker owes an answer to.

#![cfg(test)]

use super::*;
use crate::ids::Job;

const TASK: Task = Task { job: Job(0), piece: 0, plan: 0 };
const OTHER: Task = Task { job: Job(0), piece: 1, plan: 0 };

fn enter(members: &mut Members, worker: u32, epoch: u32) {
    let member = Member {
        pipe: Pipe::new().0,
        epoch,
        next: None,
        process: 1,
        address: None,
        heard: Instant::now(),
        order: OrderId::default(),
        unanswered: BTreeMap::new(),
        sent: SentRecord::new(None, 1),
        asked: Vec::new(),
        arriving: IncomingStates::default(),
    };
    members.enter(worker, member, worker.to_string());
}

/// However often it calls, only that of a worker's own orders counts which was given over the
/// connection that there is.
#[test]
fn a_worker_answers_its_orders_of_this_connection() {
    let mut members = Members::new(2);
    enter(&mut members, 1, 1);
    assert!(!members.gave(0, OrderId(1), vec![TASK]), "it is not there");
    for epoch in 1..300 {
        enter(&mut members, 0, epoch);
        let own = OrderId(10 * u64::from(epoch));
        let (before, theirs) = (OrderId(own.0 - 10), own.next());
        assert!(members.gave(0, own, vec![TASK, OTHER]) && members.gave(1, theirs, vec![TASK]));
        for other in [before, theirs, OrderId(own.0 + 10)] {
            assert!(!members.owes(0, other) && !members.answers(0, other, Some(TASK)), "{other}");
        }
        assert!(
            members.answers(0, own, Some(TASK)) && !members.answers(0, own, Some(TASK)),
            "once"
        );
        assert!(members.answers(1, theirs, None) && !members.answers(1, theirs, None), "once");
        assert!(members.owes(0, own), "one is left");
        if epoch % 2 == 0 {
            assert!(members.answers(0, own, Some(OTHER)) && !members.owes(0, own));
        }
        assert!(members.leave(0, None));
        assert!(!members.owes(0, own), "with its connection, its orders are void");
    }
}
