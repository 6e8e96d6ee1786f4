//! Terms that are asked for, of holders that are late, lost or wrong.

#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "any moment will do: only differences count")]

use super::super::block::Blocks;
use super::*;
use crate::gpu::{Source, Term, fold_chunk};
use crate::ids::{Job, Piece, Task};
use crate::run::NumberFormat;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

const ME: u32 = 0;

fn task(worker: u32) -> Task {
    Task { job: Job(4), piece: worker, plan: 0 }
}

fn summand(holders: &[u32]) -> Summand {
    let piece = |worker: &u32| Piece { worker: Worker(*worker), task: task(*worker) };
    Summand { weight: 1.0, holders: holders.iter().map(piece).collect() }
}

fn gathering(terms: &[&[u32]], chunks: usize, budget: usize) -> TermBuffer {
    let terms: Vec<Summand> = terms.iter().map(|holders| summand(holders)).collect();
    TermBuffer::new(ME, TermAt::of(&terms, ME), 0..chunks, budget)
}

fn block(blocks: &Blocks, value: f32) -> Block {
    let mut block = blocks.take(1, NumberFormat::F32);
    block.floats_mut()[0] = value;
    block
}

/// What is asked for, and answered in some order, by holders some of which are late or lost.
struct Others {
    draw: ChaCha8Rng,
    asked: Vec<(u32, usize, usize)>,
    sent: BTreeMap<u32, usize>,
    lost: BTreeSet<u32>,
}

impl Others {
    fn take(&mut self, asks: Vec<(u32, usize, usize)>) {
        self.asked.extend(asks.into_iter().filter(|(holder, ..)| !self.lost.contains(holder)));
        let mut load: BTreeMap<u32, usize> = BTreeMap::new();
        for (holder, ..) in &self.asked {
            *load.entry(*holder).or_default() += 1;
        }
        assert!(load.values().all(|count| *count <= WINDOW), "{load:?}");
    }

    fn answer(&mut self) -> Option<(u32, usize, usize)> {
        if self.asked.is_empty() {
            return None;
        }
        let at = self.draw.next_u32() as usize % self.asked.len();
        let answer = self.asked.swap_remove(at);
        *self.sent.entry(answer.0).or_default() += 1;
        Some(answer)
    }
}

proptest! {
    /// Every chunk is summed once, in any order of announcements and losses, from whichever
    /// end results grow, if one holder of each term stays; and no more waits than may.
    #[test]
    fn every_chunk_is_summed_once(
        seed: u64,
        chunks in 1usize..12,
        budget in 1usize..6,
        lost in prop::sample::subsequence(vec![3u32, 5], 0..=2),
    ) {
        let blocks = Blocks::new(1);
        let terms: [&[u32]; 4] = [&[0, 1], &[2, 3], &[4, 5], &[6]];
        let mut gathering = gathering(&terms, chunks, budget);
        let mut draw = ChaCha8Rng::seed_from_u64(seed);
        let mut others = Others {
            draw: ChaCha8Rng::seed_from_u64(seed ^ 1),
            asked: Vec::new(),
            sent: BTreeMap::new(),
            lost: BTreeSet::new(),
        };
        let now = Instant::now();
        let mut announced: BTreeMap<u32, usize> = BTreeMap::new();
        let (mut summed, mut mine) = (BTreeSet::new(), 0);
        for round in 0..20_000 {
            if summed.len() == chunks {
                break;
            }
            prop_assert!(round < 19_999, "it stands still: {gathering:?}");
            match draw.next_u32() % 8 {
                0 => {
                    let holder = draw.next_u32() % 7;
                    if holder == ME {
                        mine = (mine + 1).min(chunks);
                        gathering.is_final(0, chunks - mine..chunks);
                    } else if !others.lost.contains(&holder) {
                        let count = announced.entry(holder).or_default();
                        *count = (*count + 1 + draw.next_u32() as usize % 3).min(chunks);
                        let term = holder as usize / 2;
                        let ready =
                            if term == 2 { 0..*count } else { chunks - *count..chunks };
                        gathering.announced(term, holder, ready).unwrap();
                    }
                }
                1 => {
                    let at = draw.next_u32() as usize % 2;
                    if let Some(worker) = lost.get(at)
                        && others.lost.insert(*worker)
                    {
                        others.asked.retain(|(holder, ..)| holder != worker);
                        gathering.disconnected(*worker);
                    }
                }
                _ => {
                    if let Some((holder, term, chunk)) = others.answer() {
                        let value = 10f32.powi(term as i32);
                        let came = block(&blocks, value);
                        let back =
                            gathering.came((chunk, term), holder, came, now).unwrap();
                        prop_assert!(back.is_none(), "nothing is asked for twice");
                        let own = |_| Some(Content::Came(block(&blocks, 1.0)));
                        let adder = Adder { mine: &own, blocks: &blocks, count: 1 };
                        for chunk in gathering.to_condense(chunk) {
                            gathering.condense(chunk, &adder);
                        }
                    }
                }
            }
            while let Some((chunk, nodes)) = gathering.next() {
                let own = |_| Some(Content::Came(block(&blocks, 1.0)));
                let adder = Adder { mine: &own, blocks: &blocks, count: 1 };
                let mut sum = [0.0];
                adder.fold(nodes, &mut sum).unwrap().unwrap();
                prop_assert_eq!(sum, [1111.0]);
                prop_assert!(summed.insert(chunk));
            }
            others.take(gathering.asks(now));
            // Two blocks of each begun chunk, after what came last is added up.
            let most = 2 * budget.div_ceil(2) + 2;
            prop_assert!(gathering.waiting <= most, "{}", gathering.waiting);
        }
        prop_assert_eq!(gathering.waiting, 0);
    }

    /// However few or many terms come in any order, and however many of them are added up
    /// early, the sum has the bits of the one tree.
    #[test]
    fn subtrees_have_the_bits_of_the_tree(
        order in prop::collection::vec(any::<u32>(), 1..20),
        values in prop::collection::vec(-1e3f32..1e3, 20),
        weights in prop::collection::vec(-2.0f64..2.0, 20),
    ) {
        let blocks = Blocks::new(1);
        let count = order.len();
        let holders: Vec<[u32; 1]> = (0..count as u32).map(|term| [term + 1]).collect();
        let term = |(holder, weight): (&[u32; 1], &f64)| {
            Summand { weight: *weight, ..summand(holder) }
        };
        let terms: Vec<Summand> = holders.iter().zip(&weights).map(term).collect();
        let mut gathering = TermBuffer::new(ME, TermAt::of(&terms, ME), 0..1, 0);
        let mut turns: Vec<usize> = (0..count).collect();
        turns.sort_by_key(|term| order[*term]);
        let none = |_| None;
        let adder = Adder { mine: &none, blocks: &blocks, count: 1 };
        for term in turns {
            let came = block(&blocks, values[term]);
            gathering.came((0, term), term as u32 + 1, came, Instant::now()).unwrap();
            gathering.condense(0, &adder);
        }
        let mut sum = [0.0];
        let (_, nodes) = gathering.next().unwrap();
        adder.fold(nodes, &mut sum).unwrap().unwrap();
        let singles: Vec<[f32; 1]> = values[..count].iter().map(|value| [*value]).collect();
        let weighted = singles.iter().zip(&weights);
        let terms: Vec<Term<'_>> = weighted
            .map(|(x, weight)| Term { weight: *weight as f32, source: Source::F32(x) })
            .collect();
        let mut expected = [0.0];
        fold_chunk(&terms, &mut expected);
        prop_assert_eq!(sum, expected);
    }
}

/// Of a term that is not one of its own any more a worker has parts, and asks others for all.
#[test]
fn what_was_its_own_comes_from_others_if_it_is_that_no_more() {
    let blocks = Blocks::new(1);
    let now = Instant::now();
    let mut gathering = gathering(&[&[ME, 1], &[2]], 2, 4);
    gathering.is_final(0, 0..1);
    gathering.announced(1, 2, 0..2).unwrap();
    assert_eq!(gathering.asks(now), [(2, 1, 0)]);
    let came = block(&blocks, 1.0);
    assert!(gathering.came((0, 1), 2, came, now).unwrap().is_none());
    let terms = [summand(&[1]), summand(&[2])];
    let mut gathering = gathering.carry_on(TermAt::of(&terms, ME), &[]);
    assert!(gathering.next().is_none(), "the chunk that was complete lacks its first term");
    gathering.announced(0, 1, 0..2).unwrap();
    let asks = gathering.asks(now);
    assert!(asks.contains(&(1, 0, 0)), "{asks:?}");
    let came = block(&blocks, 2.0);
    assert!(gathering.came((0, 0), 1, came, now).unwrap().is_none());
    assert_eq!(gathering.next().map(|(chunk, _)| chunk), Some(0));
}

/// What a holder sends unasked is asked for once its connection broke, it says again what it
/// has, or its numbers were refused: of any who has it.
#[test]
fn what_is_sent_is_asked_for_only_if_it_is_in_vain() {
    let blocks = Blocks::new(1);
    let now = Instant::now();
    let sent_by_1 = || {
        let mut gathering = gathering(&[&[1, 2], &[3]], 3, 4);
        gathering.is_sent(0, Some(1));
        gathering.is_sent(1, Some(3));
        assert_eq!(gathering.asks(now), []);
        assert_eq!(gathering.waits_for(), [1, 3]);
        let came = block(&blocks, 1.0);
        assert!(gathering.came((0, 0), 1, came, now).unwrap().is_none());
        gathering
    };
    let mut broken = sent_by_1();
    broken.disconnected(1);
    assert_eq!(broken.asks(now), [(2, 0, 1)]);
    assert_eq!(broken.waits_for(), [2, 2, 3], "of 3 it still comes unasked");
    let mut said_again = sent_by_1();
    said_again.announced(0, 1, 0..3).unwrap();
    assert_eq!(said_again.asks(now), [(1, 0, 1), (2, 0, 2)]);
    let mut refused = sent_by_1();
    let came = block(&blocks, 1.0);
    refused.came((0, 1), 3, came, now).unwrap();
    let (chunk, nodes) = refused.next().unwrap();
    refused.take_back(chunk, nodes.into_iter().skip(1).collect(), &[(0, 1)]);
    assert_eq!(refused.asks(now), [(2, 0, 0)]);
}

/// Holders that are all ready share the sending evenly; who has announced little sends what it
/// has.
#[test]
fn holders_share_the_sending() {
    let blocks = Blocks::new(1);
    let mut all = gathering(&[&[1, 2, 3]], 90, 90);
    let mut few = gathering(&[&[1, 2, 3]], 90, 90);
    let now = Instant::now();
    for holder in 1..4 {
        all.announced(0, holder, 0..90).unwrap();
        few.announced(0, holder, if holder == 1 { 0..6 } else { 0..90 }).unwrap();
    }
    let sent = |gathering: &mut TermBuffer| {
        let mut sent: BTreeMap<u32, usize> = BTreeMap::new();
        loop {
            let asks = gathering.asks(now);
            if asks.is_empty() {
                return sent;
            }
            for (holder, term, chunk) in asks {
                *sent.entry(holder).or_default() += 1;
                let came = block(&blocks, 1.0);
                assert!(gathering.came((chunk, term), holder, came, now).unwrap().is_none());
            }
        }
    };
    assert_eq!(sent(&mut all), BTreeMap::from([(1, 30), (2, 30), (3, 30)]));
    let sent = sent(&mut few);
    assert!(sent[&1] <= 6 && sent[&2].abs_diff(sent[&3]) <= 1, "{sent:?}");
}

/// An owner asks another holder for a term that is not finite, also where others were added up
/// already, and names its sender. A sum beyond what numbers hold is no node's fault.
#[test]
fn who_sends_nan_is_named_and_passed_over() {
    let blocks = Blocks::new(1);
    let now = Instant::now();
    let none = |_| None;
    let adder = Adder { mine: &none, blocks: &blocks, count: 1 };
    let terms: [&[u32]; 4] = [&[1, 2], &[3], &[4], &[5]];
    for early in [false, true] {
        let mut gathering = gathering(&terms, 1, 0);
        for (term, holders) in terms.iter().enumerate() {
            for holder in *holders {
                gathering.announced(term, *holder, 0..1).unwrap();
            }
        }
        gathering.asks(now);
        let came = |gathering: &mut TermBuffer, from: u32, term: usize, value: f32| {
            let back = gathering.came((0, term), from, block(&blocks, value), now).unwrap();
            if early {
                gathering.condense(0, &adder);
            }
            back.is_none()
        };
        assert!(came(&mut gathering, 1, 0, f32::NAN));
        (1..4).for_each(|term| assert!(came(&mut gathering, term as u32 + 2, term, 1.0)));
        let (chunk, nodes) = gathering.next().unwrap();
        let mut nodes = adder.fold(nodes, &mut [0.0]).unwrap().unwrap_err();
        let refused = adder.refuse(&mut nodes, NumberFormat::F32);
        assert_eq!(refused, [(0, 1)]);
        gathering.take_back(chunk, nodes, &refused);
        assert_eq!(gathering.asks(now), [(2, 0, 0)]);
        gathering.announced(0, 1, 0..1).unwrap();
        assert!(!came(&mut gathering, 1, 0, 1.0), "nothing of it counts any more");
        assert!(came(&mut gathering, 2, 0, 4.0));
        let (_, nodes) = gathering.next().unwrap();
        let mut sum = [0.0];
        adder.fold(nodes, &mut sum).unwrap().unwrap();
        assert_eq!((sum, gathering.waiting), ([7.0], 0));
    }
    let mut gathering = gathering(&[&[1], &[2]], 1, 4);
    for holder in [1, 2] {
        gathering.announced(holder - 1, holder as u32, 0..1).unwrap();
        let large = block(&blocks, f32::MAX);
        gathering.came((0, holder - 1), holder as u32, large, now).unwrap();
    }
    let (_, nodes) = gathering.next().unwrap();
    let mut nodes = adder.fold(nodes, &mut [0.0]).unwrap().unwrap_err();
    assert_eq!(adder.refuse(&mut nodes, NumberFormat::F32), []);
}

/// That a term is refused does not make its holder owe less of another one.
#[test]
fn who_is_refused_is_asked_no_faster() {
    let (blocks, now) = (Blocks::new(1), Instant::now());
    let none = |_| None;
    let adder = Adder { mine: &none, blocks: &blocks, count: 1 };
    let mut gathering = gathering(&[&[1, 2], &[1]], 3, 8);
    gathering.announced(0, 1, 0..1).unwrap();
    gathering.announced(1, 1, 0..3).unwrap();
    for (term, value) in [(0, f32::NAN), (1, 1.0)] {
        assert_eq!(gathering.asks(now), [(1, term, 0)]);
        gathering.came((0, term), 1, block(&blocks, value), now).unwrap();
    }
    let (chunk, nodes) = gathering.next().unwrap();
    assert_eq!(gathering.asks(now).len(), WINDOW);
    let mut nodes = adder.fold(nodes, &mut [0.0]).unwrap().unwrap_err();
    let refused = adder.refuse(&mut nodes, NumberFormat::F32);
    gathering.take_back(chunk, nodes, &refused);
    assert_eq!(gathering.asks(now), [], "it owes a chunk still");
}

/// A holder that does not answer is asked no more than the others are waited for.
#[test]
fn who_does_not_answer_is_passed_over() {
    let blocks = Blocks::new(1);
    let mut gathering = gathering(&[&[1, 2]], 1, 4);
    let now = Instant::now();
    gathering.announced(0, 1, 0..1).unwrap();
    assert_eq!(gathering.asks(now), [(1, 0, 0)]);
    gathering.announced(0, 2, 0..1).unwrap();
    gathering.look(now + PATIENCE / 2);
    assert_eq!(gathering.asks(now), []);
    gathering.look(now + 2 * PATIENCE);
    assert_eq!(gathering.asks(now), [(2, 0, 0)]);
    assert_eq!(gathering.waits_for(), [2]);
    // The first one's answer comes after all.
    let came = block(&blocks, 1.0);
    assert!(gathering.came((0, 0), 1, came, now).unwrap().is_none());
    assert!(gathering.next().is_some() && gathering.asks(now).is_empty());
    let again = block(&blocks, 1.0);
    assert!(gathering.came((0, 0), 2, again, now).unwrap().is_some(), "it is not needed");
    let strange = block(&blocks, 1.0);
    assert!(gathering.came((0, 0), 5, strange, now).is_err());
    assert!(gathering.announced(0, 5, 0..1).is_err() && gathering.announced(1, 1, 0..1).is_err());
}
