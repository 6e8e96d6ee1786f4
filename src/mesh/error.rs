//! Why a layout is none.

use super::AxisOrder;
use crate::ids::Rank;
use thiserror::Error;

/// What is wrong with a layout, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MeshError {
    /// A size, or a number of experts, of 0.
    #[error("{name} is 0: 1 or more is needed")]
    Zero {
        /// Of what.
        name: &'static str,
    },
    /// More ranks than are supported.
    #[error("{name} is {size}: at most {most} is supported")]
    TooMany {
        /// Of what.
        name: &'static str,
        /// How many there are.
        size: u32,
        /// How many there may be.
        most: u32,
    },
    /// The ranks cannot be cut into groups of these sizes.
    #[error(
        "a world of {world} ranks is not a multiple of {product} = {value}; {}",
        nearest(*below, *above)
    )]
    NotAMultiple {
        /// Ranks there are.
        world: u32,
        /// The product that fails, such as `tp x cp x pp`.
        product: &'static str,
        /// What it comes to.
        value: u64,
        /// The largest smaller world that both products divide, if there is one.
        below: Option<u32>,
        /// The smallest larger one, if it is supported.
        above: Option<u32>,
    },
    /// The stages of a pipeline would be other ranks for the dense layers than for the experts.
    #[error(
        "with order {order}, the dense layers have a pipeline through ranks {} and the experts one \
         through ranks {}: take order {}, or sizes with tp x cp = etp x ep",
        listed(dense),
        listed(expert),
        AxisOrder::PipelineLast
    )]
    PipelinesDiffer {
        /// The order of the axes.
        order: AxisOrder,
        /// The first pipeline of the dense layers that differs.
        dense: Vec<Rank>,
        /// The pipeline that the experts have in its place.
        expert: Vec<Rank>,
    },
    /// Experts that the ranks of an expert group cannot share evenly.
    #[error("{experts} experts cannot be divided evenly by ep = {ep}; {}", nearest(*below, *above))]
    UnevenExperts {
        /// Experts there are.
        experts: u32,
        /// Ranks that share them.
        ep: u32,
        /// The largest smaller number of experts that would do, if there is one.
        below: Option<u32>,
        /// The smallest larger one, if it can be counted.
        above: Option<u32>,
    },
}

/// The multiples beside a number that is none.
fn nearest(below: Option<u32>, above: Option<u32>) -> String {
    match (below, above) {
        (Some(below), Some(above)) => format!("the nearest that fit are {below} and {above}"),
        (Some(only), None) | (None, Some(only)) => format!("the nearest that fits is {only}"),
        (None, None) => "no supported number fits".into(),
    }
}

/// Ranks as a list of numbers.
fn listed(ranks: &[Rank]) -> String {
    let numbers: Vec<String> = ranks.iter().map(|rank| rank.0.to_string()).collect();
    format!("[{}]", numbers.join(", "))
}
