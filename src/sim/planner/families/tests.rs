//! All points are legal schemes.

#![cfg(test)]

use super::*;
use crate::codes::registry::Registry;
use crate::codes::sequential::{Accept, Horizon};
use crate::ids::Job;

/// Points of a family that are written like schemes and are none: graphs that do not exist or
/// miss their bound, and more copies of what several rounds owe than there are workers.
const REFUSED: [&str; 2] = ["graph", "defer"];

/// Every point of every space is a scheme, within the delay asked for, unless it is refused.
#[test]
fn all_points_are_legal_schemes() {
    for (workers, max_delay) in [(2, 1), (3, 3), (6, 2), (8, 3)] {
        let limits = SearchLimits { workers, max_delay, cut: 4, accumulate: 1 };
        let families = Registry::builtin().families().iter();
        for space in families.flat_map(|family| spaces(family, &limits, ClosingRules::Usual)) {
            let sizes = space.sizes();
            for mut number in 0..sizes.iter().product() {
                let mut point = Vec::new();
                for size in &sizes {
                    point.push(number % size);
                    number /= size;
                }
                let setting = space.setting(&point).unwrap();
                let horizon = Horizon {
                    workers,
                    units: None,
                    jobs: Job(0)..Job(9),
                    accept: Accept::Lookahead,
                };
                let name = space.family.name;
                match setting.scheme.over(horizon) {
                    Ok(scheme) => {
                        let traits = space.family.traits;
                        let delay = scheme.facts().delay;
                        assert!(delay <= max_delay, "{}", setting.scheme);
                        assert!(delay == 0 || traits.delay, "{}", setting.scheme);
                    }
                    Err(error) => {
                        assert!(REFUSED.contains(&name), "{}: {error}", setting.scheme);
                    }
                }
            }
        }
    }
}
