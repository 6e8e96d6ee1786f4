//! All straggler sequences of any length that conform to a model, by a search over the states a
//! scheme can be in.
//!
//! SR-SGC and M-SGC let a round close if every job could still be completed by waiting for all
//! workers from then on. That is weaker than their straggler models, and is judged by the state at
//! the beginning of the round. The search here proves of small codes that it is enough.

use super::models::{self, Admission, Bursty};
use super::{
    Accept, Horizon, MSgc, MSgcParameters, ResultUse, RoundEvent, Scheme, SlotKind, SrSgc,
    SrSgcParameters,
};
use crate::ids::{Job, Worker, WorkerSet};
use std::collections::HashSet;

/// A scheme whose state can be told apart from its other states.
pub(super) trait KeyedScheme: Scheme + Clone {
    fn admission(&self) -> &Admission;
    /// How old every open job is, what is known of it, and whether it is decoded.
    fn open(&self) -> Vec<(usize, String, bool)>;
    /// The state, counted from the current round.
    fn key(&self) -> String {
        format!("{:?} {:?}", self.admission().history, self.open())
    }
    /// Whether a job has missed its deadline.
    fn overdue(&self) -> bool {
        self.open().iter().any(|(age, _, decoded)| !decoded && *age > self.facts().delay)
    }
}

/// A sequence of straggler sets after which a job is late or could only be saved by luck; none if
/// there is none among those that `allows` lets through.
fn counterexample<S: KeyedScheme>(
    scheme: &S,
    allows: &dyn Fn(&S, &WorkerSet) -> bool,
) -> Option<Vec<String>> {
    let workers = scheme.facts().workers;
    let (mut known, mut open) = (HashSet::from([scheme.key()]), vec![(scheme.clone(), Vec::new())]);
    while let Some((state, path)) = open.pop() {
        for bits in 0..1u32 << workers {
            let missing = WorkerSet::of(
                workers,
                Worker::all(workers).filter(|worker| bits >> worker.0 & 1 == 1),
            );
            if !allows(&state, &missing) {
                continue;
            }
            let (mut next, mut tasks) = (state.clone(), Vec::new());
            let mut path = path.clone();
            path.push(missing.to_string());
            next.on(RoundEvent::Opened { dead: &WorkerSet::empty(workers) });
            for worker in Worker::all(workers) {
                next.assign(worker, &mut tasks);
                let answers =
                    tasks.drain(..).filter(|_| !missing.contains(worker)).collect::<Vec<_>>();
                if path.len() == 1 {
                    assert!(
                        !answers.is_empty() || missing.contains(worker),
                        "there is work in the first round"
                    );
                }
                // The rule must not depend on when it is asked.
                let before = next.admits(&missing);
                for task in answers {
                    assert_ne!(next.returned(worker, task), ResultUse::Unwanted);
                }
                if next.admits(&missing) != before {
                    return Some(path);
                }
            }
            let sound = next.admits(&missing);
            next.close(&missing, &[], &mut Vec::new());
            if !sound || next.overdue() {
                return Some(path);
            }
            if known.insert(next.key()) {
                open.push((next, path));
            }
        }
    }
    None
}

fn forever(workers: usize) -> Horizon {
    Horizon { workers, units: None, jobs: Job(0)..Job(u64::MAX), accept: Accept::Lookahead }
}

fn sr_sgc(
    workers: usize,
    (burst, window, distinct): (usize, usize, usize),
    stragglers: Option<usize>,
    slots: SlotKind,
) -> SrSgc {
    SrSgc::new(SrSgcParameters { burst, window, distinct, stragglers, slots }, forever(workers))
        .expect("legal parameters")
}

fn m_sgc(
    workers: usize,
    (burst, window, distinct): (usize, usize, usize),
    slots: SlotKind,
) -> MSgc {
    MSgc::new(MSgcParameters { burst, window, distinct, slots }, forever(workers))
        .expect("legal parameters")
}

fn bursty<S: KeyedScheme>(
    (burst, window, distinct): (usize, usize, usize),
) -> impl Fn(&S, &WorkerSet) -> bool {
    let model = Bursty { burst, window, distinct };
    move |state: &S, missing: &WorkerSet| model.admits(&state.admission().history, missing)
}

/// In every `window` rounds at most `distinct` workers straggle, each in at most `rounds` of them:
/// `(N, W', lambda')` of Krishnan et al. 2023.
fn arbitrary<S: KeyedScheme>(
    (rounds, window, distinct): (usize, usize, usize),
) -> impl Fn(&S, &WorkerSet) -> bool {
    move |state: &S, missing: &WorkerSet| {
        let earlier = models::last(&state.admission().history, window - 1);
        let before = |worker| earlier.iter().filter(|set| set.contains(worker)).count();
        models::distinct(earlier, missing) <= distinct
            && missing.iter().all(|worker| before(worker) < rounds)
    }
}

#[test]
fn m_sgc_bears_every_bursty_and_every_arbitrary_sequence() {
    let mut checked = 0;
    for workers in 1..=4 {
        for (burst, window) in [(1, 2), (1, 3), (2, 3), (1, 4), (2, 4)] {
            if workers == 4 && burst + window > 5 {
                continue;
            }
            for distinct in 0..=workers {
                let shape = (burst, window, distinct);
                let scheme = m_sgc(workers, shape, SlotKind::MinLoad);
                assert_eq!(counterexample(&scheme, &bursty(shape)), None, "n={workers} {shape:?}");
                checked += 1;
            }
        }
    }
    assert!(checked > 60);
    for (workers, (burst, window), distinct) in
        [(3, (1, 2), 1), (3, (2, 3), 2), (4, (1, 2), 2), (3, (1, 3), 3)]
    {
        let mut scheme = m_sgc(workers, (burst, window, distinct), SlotKind::MinLoad);
        let window = window + burst - 1;
        // So long must the history be that such sequences are judged by.
        scheme.admission.model.window = window;
        assert_eq!(
            counterexample(&scheme, &arbitrary((burst, window, distinct))),
            None,
            "n={workers} B={burst} W={window} lambda={distinct}"
        );
    }
}

#[test]
fn m_sgc_over_clusters_bears_what_it_promises() {
    for (workers, shape) in [(4, (1, 2, 1)), (4, (2, 3, 1)), (2, (1, 3, 1)), (4, (1, 2, 3))] {
        let scheme = m_sgc(workers, shape, SlotKind::Clusters);
        assert_eq!(counterexample(&scheme, &bursty(shape)), None, "n={workers} {shape:?}");
    }
}

#[test]
fn m_sgc_fails_one_step_beyond() {
    let fails = |workers: usize, shape: (usize, usize, usize), beyond: (usize, usize, usize)| {
        counterexample(&m_sgc(workers, shape, SlotKind::MinLoad), &bursty(beyond)).is_some()
    };
    assert!(fails(3, (1, 2, 1), (1, 2, 2)), "one distinct straggler more");
    assert!(fails(4, (1, 3, 2), (1, 3, 3)));
    assert!(fails(3, (1, 3, 1), (2, 3, 1)), "bursts one round longer");
    assert!(fails(4, (1, 3, 4), (2, 3, 4)));
}

#[test]
fn sr_sgc_bears_every_bursty_sequence_and_s_per_round() {
    for workers in 1..=4 {
        for (burst, window) in [(1usize, 2usize), (1, 3), (2, 3), (1, 4), (2, 5), (3, 4)] {
            for distinct in 0..=workers {
                let shape = (burst, window, distinct);
                let needed = (burst * distinct).div_ceil(window - 1 + burst);
                // Larger ones were searched once, in minutes: n = 4 up to (3, 4) and (2, 5).
                if needed >= workers || workers * (window - 1) > 9 {
                    continue;
                }
                let scheme = sr_sgc(workers, shape, None, SlotKind::MinLoad);
                assert_eq!(counterexample(&scheme, &bursty(shape)), None, "n={workers} {shape:?}");
                let few = |_: &SrSgc, missing: &WorkerSet| missing.len() <= needed;
                assert_eq!(
                    counterexample(&scheme, &few),
                    None,
                    "n={workers} {shape:?}, {needed} per round"
                );
            }
        }
    }
}

/// Of a code without groups; groups bear more than the model asks for.
#[test]
fn sr_sgc_fails_one_step_beyond() {
    let fails = |workers: usize, shape: (usize, usize, usize), beyond: (usize, usize, usize)| {
        let slots = SlotKind::Cyclic { seed: 7 };
        counterexample(&sr_sgc(workers, shape, None, slots), &bursty(beyond)).is_some()
    };
    assert!(fails(4, (1, 2, 2), (1, 2, 3)), "s is tight: one distinct straggler more");
    assert!(fails(4, (1, 3, 3), (1, 3, 4)));
    assert!(fails(4, (1, 3, 3), (2, 3, 3)), "bursts one round longer");
}

#[test]
fn sr_sgc_over_clusters_bears_any_number_of_stragglers_that_do_not_return() {
    for (workers, shape) in [(4, (1, 2, 4)), (4, (2, 3, 4)), (2, (1, 2, 2)), (4, (1, 3, 4))] {
        let scheme = sr_sgc(workers, shape, Some(1), SlotKind::Clusters);
        assert_eq!(counterexample(&scheme, &bursty(shape)), None, "n={workers} {shape:?}");
    }
}
