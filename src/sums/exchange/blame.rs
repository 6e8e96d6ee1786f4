//! Whose fault it is that a collective stands still, from who waits for whom.

/// The nodes that wait for no other, since one that waits is a victim; none where all wait for each
/// other. First the one for which most wait, directly or for another that waits for it. `waits_for`
/// has, for each node, the nodes that it waits for.
///
/// With `n` nodes and `m` who wait for whom it takes `O(n (n + m))` operations.
pub(super) fn blamed(waits_for: &[Vec<usize>]) -> Vec<usize> {
    let nodes = waits_for.len();
    let mut waiters = vec![Vec::new(); nodes];
    for (node, on) in waits_for.iter().enumerate() {
        for &other in on {
            waiters[other].push(node);
        }
    }
    let mut blamed: Vec<usize> = (0..nodes).filter(|node| waits_for[*node].is_empty()).collect();
    blamed.sort_by_cached_key(|node| std::cmp::Reverse(reached(*node, &waiters)));
    blamed
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
mod tests;
