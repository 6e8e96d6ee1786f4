//! What comes of exchanges before, while and after they are under way.

#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "any moment will do: only differences count")]

use super::*;
use crate::ids::{Job, Summand};
use crate::run::NumberFormat;
use crate::sums::{CHUNK, COORDINATOR, Owner, chunk_range};

/// A worker that takes over a state goes on receiving the sum of the step that comes after it.
#[test]
fn a_sum_under_way_outlives_a_state() {
    let length = 2 * CHUNK;
    let mut node = NodeExchanges::new(NodeContext::of_tests(1, length));
    let blocks = node.context.blocks.clone();
    let come = |node: &mut NodeExchanges, step: u64, chunk: usize| {
        let range = chunk_range(chunk, length);
        let header = Header::chunk(Kind::Sum, NumberFormat::F32, range.start, range.len())
            .of_sum(SumId::first(Step(step)), 0);
        let block = blocks.take(range.len(), NumberFormat::F32);
        node.chunk(&header, COORDINATOR, block, Instant::now(), &mut Vec::new()).unwrap();
    };
    come(&mut node, 6, 0);
    come(&mut node, 7, 0);
    node.moved(Step(7));
    come(&mut node, 6, 1);
    come(&mut node, 7, 1);
    assert_eq!(node.finished().iter().map(|sum| sum.id.step).collect::<Vec<_>>(), [Step(7)]);
}

/// A coordinator that was restarted can come to a step that a worker held before and none applied.
#[test]
fn a_step_is_summed_again_for_another_coordinator() {
    let mut node = NodeExchanges::new(NodeContext::of_tests(0, 3));
    let id = SumId::first(Step(7));
    let sends = |node: &mut NodeExchanges| {
        let holders = vec![Piece { worker: Worker(0), task: task(0) }];
        let owners = vec![Owner { node: COORDINATOR, start: 0, end: 1 }];
        let terms = vec![Summand { weight: 1.0, holders }];
        let mut out = Vec::new();
        let plan = SumPlan {
            sum: id,
            places: Vec::new(),
            terms,
            owners,
            stripe: None,
            predecessor: None,
            receivers: vec![0, COORDINATOR],
            group: None,
        };
        let wrong = node.begin(plan, |_| Some(Arc::new(vec![1.0; 3])), Instant::now(), &mut out);
        assert!(wrong.is_empty());
        out.len()
    };
    node.sums.keep(Sum::made(id, Some(Arc::new(vec![2.0; 3])), 5));
    assert_eq!(sends(&mut node), 0, "it is whole");
    node.reset();
    assert!(node.sums.has(id, 5), "if it is decided, it is applied");
    assert_eq!(sends(&mut node), 1);
    assert!(!node.sums.has(id, 5) && node.is_open(id));
}

/// Others get the sums of the last steps here, also of those that were begun again.
#[test]
fn sums_that_came_to_nothing_take_no_room() {
    let mut node = NodeExchanges::new(NodeContext::of_tests(0, 3));
    // One more may be under way.
    let steps = node.context.kept_max as u64 - 1;
    let sum = |step, attempt| SumId { step: Step(step), attempt };
    for step in 0..steps {
        for attempt in 0..2 {
            node.sums.keep(Sum::made(sum(step, attempt), Some(Arc::new(vec![1.0; 3])), 5));
        }
        node.decided(Step(step), Some(sum(step, 1)));
    }
    assert!((0..steps).all(|step| node.sums.has(sum(step, 1), 5)));
    assert_eq!(node.sums.len(), steps as usize);
}

/// What is sent of exchanges that no coordinator began takes no vectors, and no more memory than a
/// few, however much it names.
#[test]
fn what_nobody_began_takes_little_memory() {
    let (length, now) = (4 * CHUNK, Instant::now());
    let mut node = NodeExchanges::new(NodeContext::of_tests(0, length));
    let blocks = node.context.blocks.clone();
    let mut taken = 0;
    for (step, attempt, chunk) in
        (0..60u64).flat_map(|step| (0..16).flat_map(move |at| (0..4).map(move |c| (step, at, c))))
    {
        let sum = SumId { step: Step(step), attempt };
        let word = PeerMessage::Ready { sum, term: 0, start: 0, end: 1 };
        let _ = node.hear(1, word, now, &mut Vec::new());
        let range = chunk_range(chunk, length);
        let header =
            Header::chunk(Kind::Sum, NumberFormat::F32, range.start, range.len()).of_sum(sum, 0);
        let block = blocks.take(range.len(), NumberFormat::F32);
        taken += usize::from(node.chunk(&header, 1, block, now, &mut Vec::new()).is_ok());
    }
    assert_eq!(node.len(), 0, "no exchange is open");
    assert!(taken <= 2 * 4 + 64, "{taken} chunks are kept");
    let of_another = blocks.take(CHUNK, NumberFormat::F32);
    let header =
        Header::chunk(Kind::Sum, NumberFormat::F32, 0, CHUNK).of_sum(SumId::first(Step(1)), 0);
    assert!(node.chunk(&header, 2, of_another, now, &mut Vec::new()).is_ok(), "each by itself");
    node.applied(Step(60));
    let again = blocks.take(CHUNK, NumberFormat::F32);
    let header =
        Header::chunk(Kind::Sum, NumberFormat::F32, 0, CHUNK).of_sum(SumId::first(Step(61)), 0);
    assert!(node.chunk(&header, 1, again, now, &mut Vec::new()).is_ok(), "there is room again");
}

/// Takes part in a step of which this worker (0) and worker 1 hold the one term, and worker 2
/// alone the other; all three own a chunk of every stripe.
fn expecting(node: &mut NodeExchanges, out: &mut Vec<WorkerEffect>) {
    let piece = |worker: u32| Piece { worker: Worker(worker), task: task(worker) };
    let term = |holders: &[u32]| Summand {
        weight: 1.0,
        holders: holders.iter().copied().map(piece).collect(),
    };
    let owner = |node: u32| Owner { node, start: node as usize, end: node as usize + 1 };
    let plan = SumPlan {
        sum: SumId::first(Step(0)),
        places: Vec::new(),
        terms: vec![term(&[0, 1]), term(&[2])],
        owners: (0..3).map(owner).collect(),
        stripe: Some(3),
        predecessor: None,
        receivers: vec![0, 1, 2],
        group: None,
    };
    assert!(node.begin(plan, |_| None, Instant::now(), out).is_empty());
}

fn task(worker: u32) -> Task {
    Task { job: Job(0), piece: worker, plan: 0 }
}

fn ready(term: u32, start: usize, end: usize) -> PeerMessage {
    PeerMessage::Ready { sum: SumId::first(Step(0)), term, start, end }
}

fn ask(term: u32, chunk: usize) -> PeerMessage {
    PeerMessage::Ask { sum: SumId::first(Step(0)), term, chunk }
}

/// What workers say of terms that are not theirs, of chunks that there are not, or too often,
/// is refused, and what is right counts all the same.
#[test]
fn what_other_workers_say_is_looked_at() {
    let now = Instant::now();
    let mut node = NodeExchanges::new(NodeContext::of_tests(0, 6 * CHUNK));
    let mut out = Vec::new();
    let early = |count: usize, node: &mut NodeExchanges| {
        (0..count).try_for_each(|_| node.hear(1, ready(0, 0, 1), now, &mut Vec::new()))
    };
    assert!(early(1 << 12, &mut node).is_ok());
    assert!(early(1 << 20, &mut node).is_err(), "too much before the plan");
    node.hear(2, ready(1, 0, 0), now, &mut out).unwrap();
    let far = |sum| PeerMessage::Ready { sum, term: 0, start: 0, end: 1 };
    let sum = SumId::first(Step(1 << 40));
    assert!(node.hear(1, far(sum), now, &mut out).is_err(), "a step that no worker is at");
    let sum = SumId { step: Step(1), attempt: 99 };
    assert!(node.hear(1, far(sum), now, &mut out).is_err(), "an attempt that no worker is at");
    expecting(&mut node, &mut out);
    // What was announced before the plan counts: its partner has a chunk that this node sums.
    match &out[..] {
        [WorkerEffect::TellPeers { to, message }] if to == &[1] => assert_eq!(*message, ask(0, 0)),
        other => panic!("{other:?}"),
    }
    for (from, message) in [
        (2, ready(0, 0, 3)),
        (1, ready(7, 0, 3)),
        (1, ready(0, 0, 7)),
        (1, ready(0, 4, 3)),
        (1, ask(1, 1)),
        (1, ask(7, 1)),
        (1, ask(0, 0)),
        (1, ask(0, usize::MAX)),
        (9, ask(0, 1)),
    ] {
        assert!(node.hear(from, message.clone(), now, &mut out).is_err(), "{from} {message:?}");
    }
    let hello = PeerMessage::Peer { worker: 1, run: 1, epoch: 1 };
    assert!(node.hear(1, hello, now, &mut out).is_err());
    out.clear();
    node.hear(1, ask(0, 1), now, &mut out).unwrap();
    assert!(out.is_empty(), "it is not final");
    // Its own is final from the end on: its partner is told, and can have its chunks.
    out.clear();
    let part = Arc::new(vec![1.0; 3 * CHUNK]);
    node.announce(task(0), 3..6, part, now, &mut out);
    let told = |outgoing: &WorkerEffect| match outgoing {
        WorkerEffect::TellPeers { to, message: PeerMessage::Ready { start, end, .. } } => {
            to == &[1, 2] && (*start, *end) == (3, 6)
        }
        _ => false,
    };
    assert!(out.iter().any(told), "{out:?}");
    out.clear();
    node.hear(1, ask(0, 4), now, &mut out).unwrap();
    assert!(matches!(out[..], [WorkerEffect::Send { to: 1, .. }]), "{out:?}");
    // It is over for this node.
    node.applied(Step(1));
    out.clear();
    node.hear(1, ask(0, 4), now, &mut out).unwrap();
    assert!(out.is_empty());
}
