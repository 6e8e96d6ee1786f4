//! The model of `examples/folded_moe.rs`: its gradient by hand against differences of its loss, and
//! the exchange between ranks against the whole layer.

#[allow(dead_code, reason = "the example trains as well")]
#[path = "../../examples/folded_moe.rs"]
mod example;

use codedgrad::ids::Worker;
use codedgrad::mesh::{Layout, Mesh};
use example::{ALL, Cell, TOKENS, WINDOWS, parameters, tokens};

/// Relative to the largest entry, in f64.
const EXCHANGE_ERROR: f64 = 1e-12;
const DIFFERENCE_ERROR: f64 = 1e-6;
/// How far parameters are moved for a difference.
const NUDGE: f64 = 1e-5;

fn whole(parameters: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mesh = Mesh::new(Layout::default()).unwrap();
    let mut cell = Cell::new(&mesh, Worker(0), parameters).unwrap();
    cell.gradient(&tokens(0, 0..WINDOWS), 1.0 / TOKENS)
}

fn largest(numbers: impl IntoIterator<Item = f64>) -> f64 {
    numbers.into_iter().fold(0.0, |most, number| most.max(number.abs()))
}

#[test]
fn the_gradient_is_that_of_the_loss() {
    let (gradient, aux) = whole(&parameters());
    // Some of every matrix, and of every expert.
    let tried: Vec<usize> =
        (0..ALL).step_by(13).filter(|at| gradient[*at].abs() > 1e-4).take(400).collect();
    assert!(tried.len() > 100, "only {} parameters do anything", tried.len());
    let mut rerouted = 0;
    for at in tried {
        let loss = |nudge: f64| {
            let mut parameters = parameters();
            parameters[at] += nudge;
            whole(&parameters).1
        };
        let [up, down] = [loss(NUDGE), loss(-NUDGE)];
        if up[1..] != aux[1..] || down[1..] != aux[1..] {
            // The loss jumps where a token changes its expert.
            rerouted += 1;
            continue;
        }
        let difference = (up[0] - down[0]) / (2.0 * NUDGE);
        let error = (difference - gradient[at]).abs() / largest(gradient.iter().copied());
        assert!(error < DIFFERENCE_ERROR, "{at}: {difference}, not {}", gradient[at]);
    }
    assert!(rerouted < 10, "{rerouted} parameters change where tokens go");
}

#[test]
fn cells_of_any_size_have_the_gradient_of_the_whole_layer() {
    let (expected, counts) = whole(&parameters());
    let scale = largest(expected.iter().copied());
    let mut worst: f64 = 0.0;
    for (cp, ep) in [1, 2, 4].into_iter().flat_map(|cp| [1, 2, 4].map(|ep| (cp, ep))) {
        let world = 2 * u32::max(cp, ep);
        let mesh = Mesh::new(Layout { world, cp, ep, ..Layout::default() }).unwrap();
        assert_eq!(mesh.workers(), 2);
        for worker in Worker::all(2) {
            let mut cell = Cell::new(&mesh, worker, &parameters()).unwrap();
            let (gradient, aux) = cell.gradient(&tokens(0, 0..WINDOWS), 1.0 / TOKENS);
            assert_eq!(aux[1..], counts[1..], "cp {cp}, ep {ep}: tokens of each expert");
            let apart = gradient.iter().zip(&expected).map(|(a, b)| a - b);
            worst = worst.max(largest(apart) / scale);
            assert!(worst <= EXCHANGE_ERROR, "cp {cp}, ep {ep}, {worker}: off by {worst}");
        }
    }
    println!("worst relative difference: {worst:.1e}");
}
