//! Chunks and words of workers in every order.

#![cfg(test)]

use super::*;
use crate::ids::Job;
use crate::sums::CHUNK;

const LENGTH: usize = CHUNK + 3;
const TASK: Task = Task { job: Job(4), piece: 1, plan: 0 };

fn receiver() -> EagerReceiver {
    EagerReceiver::new(LENGTH, Ledgers::new(2), Vectors::default(), Blocks::new(LENGTH))
}

fn done(order: u64, task: Task, finite: bool) -> Answer {
    Answer::Done { order: OrderId(order), task, aux: vec![2.0], finite, spent: None }
}

fn dropped(order: u64) -> Answer {
    Answer::Dropped { order: OrderId(order), spent: None }
}

fn take_in(eager: &mut EagerReceiver, worker: u32, frame: &Frame) -> Result<Vec<Answer>, String> {
    let mut block = eager.blocks.take(frame.header.count(), NumberFormat::F32);
    block.fill(frame.body.floats().unwrap());
    eager.chunk(worker, &frame.header, block)
}

#[test]
fn a_result_counts_when_all_of_it_and_its_word_have_come() {
    let vector = Arc::new((0..LENGTH).map(|at| at as f32).collect::<Vec<f32>>());
    let frames: Vec<Frame> = frames(&vector, TASK, OrderId(7)).collect();
    let mut eager = receiver();
    eager.ordered(1, OrderId(7), [TASK].into_iter());
    assert!(take_in(&mut eager, 1, &frames[1]).unwrap().is_empty());
    assert!(take_in(&mut eager, 1, &frames[1]).unwrap().is_empty(), "the same chunk again");
    assert!(eager.answered(1, done(7, TASK, true)).is_empty());
    let notices = take_in(&mut eager, 1, &frames[0]).unwrap();
    assert!(matches!(notices[..], [Answer::Done { task: TASK, finite: true, .. }]));
    assert!(eager.ledgers.of(Worker(1)).result(TASK).is_some_and(|held| **held == *vector));
    assert!(eager.answered(1, done(7, TASK, true)).is_empty() && eager.ordered.is_empty(), "once");
}

/// A worker drops an order while the chunks of the one before are on their way.
#[test]
fn words_do_not_overtake_results() {
    let vector = Arc::new(vec![1.0; LENGTH]);
    let next = Task { job: Job(5), ..TASK };
    let mut eager = receiver();
    eager.ordered(1, OrderId(7), [TASK, next].into_iter());
    eager.ordered(1, OrderId(8), [next].into_iter());
    assert!(eager.answered(1, done(7, TASK, true)).is_empty());
    assert!(eager.answered(1, dropped(7)).is_empty(), "the rest of its order");
    assert!(eager.answered(1, done(8, next, false)).is_empty());
    let other = eager.answered(0, dropped(1));
    assert!(matches!(other[..], [Answer::Dropped { .. }]), "another worker waits for nothing");
    let notices: Vec<Answer> = frames(&vector, TASK, OrderId(7))
        .flat_map(|frame| take_in(&mut eager, 1, &frame).unwrap())
        .collect();
    let [
        Answer::Done { task: TASK, finite: true, .. },
        Answer::Dropped { .. },
        Answer::Done { task, finite: false, .. },
    ] = &notices[..]
    else {
        panic!("{notices:?}");
    };
    assert!(*task == next && eager.ordered.is_empty());
}

/// A worker that hears that a job is over forgets what it has of it, also what it has just
/// computed.
#[test]
fn results_of_what_is_over_are_not_waited_for() {
    let vector = Arc::new(vec![1.0; LENGTH]);
    let (part, next) = (Task { piece: 2, ..TASK }, Task { job: Job(5), ..TASK });
    let mut eager = receiver();
    eager.ordered(1, OrderId(7), [TASK, part].into_iter());
    eager.ordered(1, OrderId(8), [next].into_iter());
    let mut first = frames(&vector, TASK, OrderId(7));
    assert!(take_in(&mut eager, 1, &first.next().unwrap()).unwrap().is_empty());
    assert!(eager.answered(1, done(7, TASK, true)).is_empty());
    let [(1, notices)] = &eager.release(Job(5))[..] else { panic!() };
    assert!(matches!(notices[..], [Answer::Done { task: TASK, .. }]));
    assert!(take_in(&mut eager, 1, &first.next().unwrap()).unwrap().is_empty(), "too late");
    assert_eq!(eager.answered(1, done(7, part, true)).len(), 1, "nothing of it ever comes");
    assert!(eager.answered(1, done(8, next, true)).is_empty(), "this one is wanted");
    assert!(eager.ledgers.of(Worker(1)).is_empty() && eager.ordered.len() == 1);
}

#[test]
fn what_nobody_ordered_is_not_kept() {
    let vector = Arc::new(vec![1.0; LENGTH]);
    let mut eager = receiver();
    eager.ordered(0, OrderId(1), [TASK].into_iter());
    for frame in frames(&vector, TASK, OrderId(2)).chain(frames(
        &vector,
        Task { piece: 9, ..TASK },
        OrderId(1),
    )) {
        assert!(take_in(&mut eager, 0, &frame).unwrap().is_empty());
    }
    assert!(
        frames(&vector, TASK, OrderId(1))
            .all(|frame| take_in(&mut eager, 1, &frame).unwrap().is_empty()),
        "another worker's"
    );
    assert!(eager.ordered.values().all(|ordered| ordered.partial.is_none()));
    let notices = eager.answered(0, dropped(1));
    assert!(matches!(notices[..], [Answer::Dropped { .. }]) && eager.ordered.is_empty());
}

#[test]
fn what_is_judged_is_what_came() {
    let mut vector = vec![1.0; LENGTH];
    vector[LENGTH - 1] = f32::NAN;
    let mut eager = receiver();
    eager.ordered(0, OrderId(1), [TASK].into_iter());
    assert!(eager.answered(0, done(1, TASK, true)).is_empty());
    let notices: Vec<_> = frames(&Arc::new(vector), TASK, OrderId(1))
        .flat_map(|frame| take_in(&mut eager, 0, &frame).unwrap())
        .collect();
    assert!(
        matches!(notices[..], [Answer::Done { finite: false, .. }]),
        "it said it was finite, and it is not"
    );
    assert!(eager.ledgers.of(Worker(0)).is_empty());
    eager.ordered(0, OrderId(2), [TASK].into_iter());
    let beyond = Header {
        attempt: 2,
        ..Header::chunk(Kind::Result, NumberFormat::F32, 2 * CHUNK, 3).of_task(TASK)
    };
    let block = eager.blocks.take(3, NumberFormat::F32);
    assert!(eager.chunk(0, &beyond, block).is_err());
}
