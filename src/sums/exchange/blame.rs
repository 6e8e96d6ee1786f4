//! Whose fault it is that a collective stands still, from who waits for whom.

/// Why those who are blamed are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize))]
#[cfg_attr(test, serde(rename_all = "lowercase"))]
pub(super) enum Why {
    /// They say nothing.
    Silent,
    /// They answer, and wait for nobody.
    #[cfg_attr(test, serde(rename = "waits for nobody"))]
    Free,
    /// Everybody waits: some wait for each other, and nobody is to blame.
    Cycle,
}

/// Whom a collective that stands still waits for in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blame {
    /// Those to blame, the one for whom most wait first.
    pub(super) nodes: Vec<usize>,
    /// How many others wait for each node, directly or for one that waits for it.
    pub(super) reach: Vec<usize>,
    pub(super) why: Why,
}

/// Blames the silent nodes, or if there are none those that wait for nobody: one that waits is a
/// victim. `waits_for` has, for each node, the nodes it waits for, or none if it says nothing.
///
/// With `n` nodes and `m` who wait for whom it takes `O(n (n + m))` operations.
pub(super) fn blame(waits_for: &[Option<Vec<usize>>]) -> Blame {
    let nodes = waits_for.len();
    let mut waiters = vec![Vec::new(); nodes];
    for (node, on) in waits_for.iter().enumerate() {
        for &other in on.iter().flatten() {
            waiters[other].push(node);
        }
    }
    let reach: Vec<usize> = (0..nodes).map(|node| reached(node, &waiters)).collect();
    let silent: Vec<usize> = (0..nodes).filter(|node| waits_for[*node].is_none()).collect();
    let (mut blamed, mut why) = (silent, Why::Silent);
    if blamed.is_empty() {
        let is_free = |node: &usize| waits_for[*node].as_ref().is_some_and(Vec::is_empty);
        blamed = (0..nodes).filter(is_free).collect();
        why = if blamed.is_empty() { Why::Cycle } else { Why::Free };
    }
    blamed.sort_by_key(|node| std::cmp::Reverse(reach[*node]));
    Blame { nodes: blamed, reach, why }
}

/// How many nodes other than this one wait for it, directly or not.
fn reached(node: usize, waiters: &[Vec<usize>]) -> usize {
    let mut seen = vec![false; waiters.len()];
    let mut open = vec![node];
    seen[node] = true;
    let mut count = 0;
    while let Some(next) = open.pop() {
        for &waiter in &waiters[next] {
            if !std::mem::replace(&mut seen[waiter], true) {
                count += 1;
                open.push(waiter);
            }
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[derive(serde::Deserialize)]
    struct Golden {
        waits_for: Vec<Option<Vec<usize>>>,
        blame: Vec<usize>,
        reach: Vec<usize>,
        why: Why,
    }

    #[test]
    fn those_who_say_nothing_or_wait_for_nobody_are_blamed() {
        // Worked out independently of this code.
        let golden = r#"[
            {"waits_for": [[1], [2], null, [0]],
             "blame": [2], "reach": [1, 2, 3, 0], "why": "silent"},
            {"waits_for": [[1], [2], [], [2]],
             "blame": [2], "reach": [0, 1, 3, 0], "why": "waits for nobody"},
            {"waits_for": [[1], [2], [0]],
             "blame": [], "reach": [2, 2, 2], "why": "cycle"},
            {"waits_for": [[3], [3], [4], null, null],
             "blame": [3, 4], "reach": [0, 0, 0, 2, 1], "why": "silent"},
            {"waits_for": [[1], [], [], [2], [2], [4]],
             "blame": [2, 1], "reach": [0, 1, 3, 0, 1, 0], "why": "waits for nobody"}
        ]"#;
        for Golden { waits_for, blame: nodes, reach, why } in
            serde_json::from_str::<Vec<Golden>>(golden).unwrap()
        {
            assert_eq!(blame(&waits_for), Blame { nodes, reach, why });
        }
    }

    const SIDE: usize = 4;
    const RANKS: usize = SIDE * SIDE;

    /// Who waits for whom when each rank of a square carries out the same collectives one after
    /// the other, some of its row and some of its column, and the stopped ones begin no more.
    fn drill(random: &mut ChaCha8Rng, stopped: &[usize]) -> Vec<Vec<usize>> {
        let collectives: Vec<bool> = (0..40).map(|_| random.random_bool(0.5)).collect();
        // Each stops before a collective of its own.
        let stops: Vec<usize> = stopped.iter().map(|_| random.random_range(0..30)).collect();
        let group = |rank: usize, by_row: bool| -> Vec<usize> {
            let same = |other: &usize| match by_row {
                true => other / SIDE == rank / SIDE,
                false => other % SIDE == rank % SIDE,
            };
            (0..RANKS).filter(same).collect()
        };
        let mut at = [0usize; RANKS];
        let is_stopped = |rank: usize, at: usize| {
            stopped.iter().zip(&stops).any(|(&who, &stop)| who == rank && at >= stop)
        };
        // In any order ranks complete what all of their group have reached.
        let mut order: Vec<usize> = (0..RANKS).collect();
        loop {
            order.shuffle(random);
            let goes_on = order.iter().copied().find(|&rank| {
                let Some(&by_row) = collectives.get(at[rank]) else { return false };
                let ready = |&other: &usize| {
                    at[other] > at[rank] || (at[other] == at[rank] && !is_stopped(other, at[other]))
                };
                !is_stopped(rank, at[rank]) && group(rank, by_row).iter().all(ready)
            });
            match goes_on {
                Some(rank) => at[rank] += 1,
                None => break,
            }
        }
        let waits = |rank: usize| match collectives.get(at[rank]) {
            Some(&by_row) if !is_stopped(rank, at[rank]) => {
                let lacks = |other: &usize| {
                    at[*other] < at[rank]
                        || (at[*other] == at[rank] && is_stopped(*other, at[*other]))
                };
                group(rank, by_row).into_iter().filter(lacks).collect()
            }
            _ => Vec::new(),
        };
        (0..RANKS).map(waits).collect()
    }

    #[test]
    fn who_stops_in_rows_and_columns_of_collectives_is_found() {
        let mut both_free = 0;
        for seed in 0..200 {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            let one = random.random_range(0..RANKS);
            let other = (one + random.random_range(1..RANKS)) % RANKS;
            for stopped in [&[one][..], &[one, other]] {
                let waits_for = drill(&mut random, stopped);
                let silent =
                    |rank: usize, on: &Vec<usize>| (!stopped.contains(&rank)).then(|| on.clone());
                let unheard: Vec<_> =
                    waits_for.iter().enumerate().map(|(rank, on)| silent(rank, on)).collect();
                let mut found = blame(&unheard);
                assert_eq!(found.why, Why::Silent);
                found.nodes.sort_unstable();
                let mut wanted = stopped.to_vec();
                wanted.sort_unstable();
                assert_eq!(found.nodes, wanted, "by silence");
                // All answer, those who stopped too.
                let found = blame(&waits_for.into_iter().map(Some).collect::<Vec<_>>());
                assert_eq!(found.why, Why::Free);
                match stopped {
                    [one] => assert_eq!(found.nodes, [*one]),
                    _ => both_free += usize::from(found.nodes.iter().all(|it| wanted.contains(it))),
                }
            }
        }
        assert_eq!(both_free, 200, "nobody else is blamed");
    }
}
