//! The model of the example, and how its ranks exchange the rows of tokens: an embedding, a softmax
//! router, experts that are gated MLPs, a head, and their gradients by hand.
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender};

const VOCABULARY: usize = 128;
const WIDTH: usize = 8;
const HIDDEN: usize = 8;
pub(crate) const EXPERTS: usize = 4;
/// Experts that each token goes to.
pub(crate) const ACTIVE: usize = 2;
/// Parameters: embedding, router and head; three matrices of each expert.
pub(crate) const DENSE: usize = VOCABULARY * WIDTH + WIDTH * EXPERTS + WIDTH * VOCABULARY;
pub(crate) const EXPERT: usize = 3 * WIDTH * HIDDEN;

/// A byte and the one after it.
pub(crate) type Token = (usize, usize);
/// The row of a token and the expert that it is for, or what comes back of it.
type Row = (usize, Vec<f64>);
/// Channels to every rank of a group, and from every rank.
pub(crate) type Peers = (Vec<Sender<Vec<Row>>>, Vec<Receiver<Vec<Row>>>);

/// `x M` for a matrix `[x.len() x columns]`.
fn times(x: &[f64], matrix: &[f64]) -> Vec<f64> {
    let mut y = vec![0.0; matrix.len() / x.len()];
    x.iter().zip(matrix.chunks(y.len())).for_each(|(x, row)| add(&mut y, row, *x));
    y
}

/// `M y`: the gradient of what was multiplied by a matrix.
fn back(matrix: &[f64], y: &[f64]) -> Vec<f64> {
    matrix.chunks(y.len()).map(|row| dot(row, y)).collect()
}

/// Adds `x y`, the gradient of a matrix.
fn outer(gradient: &mut [f64], x: &[f64], y: &[f64]) {
    gradient.chunks_mut(y.len()).zip(x).for_each(|(row, x)| add(row, y, *x));
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(crate) fn add(to: &mut [f64], x: &[f64], scale: f64) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += scale * x);
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let powers: Vec<f64> = x.iter().map(|x| x.exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.iter().map(|power| power / sum).collect()
}

/// An expert: `(silu(x A) * (x B)) C`.
fn expert(x: &[f64], matrices: &[f64]) -> Vec<f64> {
    let (a, rest) = matrices.split_at(WIDTH * HIDDEN);
    let (b, c) = rest.split_at(WIDTH * HIDDEN);
    let gated = times(x, a).into_iter().zip(times(x, b)).map(|(a, b)| a / (1.0 + (-a).exp()) * b);
    times(&gated.collect::<Vec<_>>(), c)
}

/// Adds to the gradient of an expert's matrices, and gives back that of its row.
fn expert_back(x: &[f64], matrices: &[f64], of_y: &[f64], gradient: &mut [f64]) -> Vec<f64> {
    let (a, rest) = matrices.split_at(WIDTH * HIDDEN);
    let (b, c) = rest.split_at(WIDTH * HIDDEN);
    let gate = times(x, a);
    let value = times(x, b);
    let of_gated = back(c, of_y);
    let [mut gated, mut of_gate, mut of_value] = [[0.0; HIDDEN]; 3];
    for i in 0..HIDDEN {
        let sigmoid = 1.0 / (1.0 + (-gate[i]).exp());
        gated[i] = gate[i] * sigmoid * value[i];
        of_value[i] = of_gated[i] * gate[i] * sigmoid;
        of_gate[i] = of_gated[i] * value[i] * sigmoid * (1.0 + gate[i] * (1.0 - sigmoid));
    }
    let terms = [(x, &of_gate[..]), (x, &of_value), (&gated, of_y)];
    gradient.chunks_mut(WIDTH * HIDDEN).zip(terms).for_each(|(part, (x, y))| outer(part, x, y));
    let mut of_x = back(a, &of_gate);
    add(&mut of_x, &back(b, &of_value), 1.0);
    of_x
}

/// A rank: the dense layers, its experts, and channels to and from those that have the others.
pub(crate) struct Model {
    pub(crate) dense: Vec<f64>,
    pub(crate) experts: Vec<f64>,
    /// Which experts those are.
    pub(crate) local: Range<usize>,
    pub(crate) peers: Peers,
}

impl Model {
    /// Sends each peer its rows, and receives all of theirs.
    fn exchange(&self, rows: Vec<Vec<Row>>) -> Vec<Vec<Row>> {
        self.peers.0.iter().zip(rows).for_each(|(peer, rows)| peer.send(rows).expect("a peer"));
        self.peers.1.iter().map(|peer| peer.recv().expect("a peer")).collect()
    }

    /// Sends rows to those who have their experts, and gives back what `compute` makes of each of
    /// them there, with the place of the expert's matrices.
    fn by_experts(
        &self,
        rows: &[Row],
        mut compute: impl FnMut(Range<usize>, &[f64]) -> Vec<f64>,
    ) -> Vec<Vec<f64>> {
        let owner = |row: &Row| row.0 / self.local.len();
        let mut sent = vec![Vec::new(); self.peers.0.len()];
        rows.iter().for_each(|row| sent[owner(row)].push(row.clone()));
        let mut came = self.exchange(sent);
        for (expert, row) in came.iter_mut().flatten() {
            let place = (*expert - self.local.start) * EXPERT;
            *row = compute(place..place + EXPERT, row);
        }
        // What a peer sends back is in the order in which it came.
        let mut back: Vec<_> = self.exchange(came).into_iter().map(Vec::into_iter).collect();
        rows.iter().filter_map(|row| Some(back[owner(row)].next()?.1)).collect()
    }

    /// The gradient of `scale` times the loss of some tokens, that of the dense layers and that of
    /// the experts; then that loss, and how many tokens each expert had.
    pub(crate) fn gradient(&self, tokens: &[Token], scale: f64) -> [Vec<f64>; 3] {
        let (embedding, rest) = self.dense.split_at(VOCABULARY * WIDTH);
        let (router, head) = rest.split_at(WIDTH * EXPERTS);
        let (mut dense, mut experts) = (vec![0.0; DENSE], vec![0.0; self.experts.len()]);
        let (of_embedding, rest) = dense.split_at_mut(VOCABULARY * WIDTH);
        let (of_router, of_head) = rest.split_at_mut(WIDTH * EXPERTS);
        let mut aux = vec![0.0; 1 + EXPERTS];

        let (mut rows, mut shares) = (Vec::new(), Vec::new());
        for (byte, _) in tokens {
            let x = &embedding[byte * WIDTH..][..WIDTH];
            let share = softmax(&times(x, router));
            let mut chosen: Vec<usize> = (0..EXPERTS).collect();
            chosen.sort_by(|a, b| share[*b].total_cmp(&share[*a]));
            rows.extend(chosen[..ACTIVE].iter().map(|expert| (*expert, x.to_vec())));
            chosen[..ACTIVE].iter().for_each(|expert| aux[1 + expert] += 1.0);
            shares.push(share);
        }
        let outs = self.by_experts(&rows, |own, x| expert(x, &self.experts[own]));

        let mut of_xs = Vec::new();
        for (at, (_, next)) in tokens.iter().enumerate() {
            let own = at * ACTIVE..(at + 1) * ACTIVE;
            let (rows, outs) = (&mut rows[own.clone()], &outs[own]);
            let (share, x) = (&shares[at], rows[0].1.clone());
            let mut y = x.clone();
            rows.iter().zip(outs).for_each(|((expert, _), out)| add(&mut y, out, share[*expert]));
            let mut of_logits = softmax(&times(&y, head));
            aux[0] -= scale * of_logits[*next].ln();
            of_logits[*next] -= 1.0;
            of_logits.iter_mut().for_each(|x| *x *= scale);
            outer(of_head, &y, &of_logits);
            let of_y = back(head, &of_logits);
            let mut of_share = [0.0; EXPERTS];
            for ((expert, row), out) in rows.iter_mut().zip(outs) {
                of_share[*expert] = dot(&of_y, out);
                // The way back takes the row and the gradient of what was made of it.
                row.extend(of_y.iter().map(|of_y| share[*expert] * of_y));
            }
            let mean = dot(share, &of_share);
            let of_route = share.iter().zip(of_share).map(|(share, of)| share * (of - mean));
            let of_route: Vec<f64> = of_route.collect();
            outer(of_router, &x, &of_route);
            let mut of_x = of_y;
            add(&mut of_x, &back(router, &of_route), 1.0);
            of_xs.push(of_x);
        }
        let of_rows = self.by_experts(&rows, |own, row| {
            let (x, of_out) = row.split_at(WIDTH);
            expert_back(x, &self.experts[own.clone()], of_out, &mut experts[own])
        });
        for ((byte, _), (of_x, parts)) in
            tokens.iter().zip(of_xs.iter().zip(of_rows.chunks(ACTIVE)))
        {
            let sum = &mut of_embedding[byte * WIDTH..][..WIDTH];
            parts.iter().chain([of_x]).for_each(|part| add(sum, part, 1.0));
        }
        [dense, experts, aux]
    }
}
