//! Which parameters of a family there are to choose from.

use super::super::Close;
use super::ClosingRules;
use super::replay::Setting;
use crate::codes::registry::{self, Family, SearchLimits};

/// Deadline tolerances that are tried where a scheme needs a deadline.
pub(super) const MUS: [f64; 15] =
    [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0];

/// Settings of a family as points: an index on each axis, in an order in which neighbours are
/// alike. The last axis is that of the deadlines, where there are several.
#[derive(Clone, Debug)]
pub(super) struct Space {
    family: Family,
    texts: registry::Space,
    rules: ClosingRules,
}

/// What the planner may try of a family.
pub(super) fn spaces(family: &Family, limits: &SearchLimits, rules: ClosingRules) -> Vec<Space> {
    // No other worker could stand in for a single one.
    let Some(spaces) = family.spaces.filter(|_| limits.workers > 1) else { return Vec::new() };
    spaces(limits).into_iter().map(|texts| Space { family: *family, texts, rules }).collect()
}

impl Space {
    /// Points along each axis; a space with an axis that has none is empty.
    pub(super) fn sizes(&self) -> Vec<usize> {
        let axes = self.texts.axes.iter().map(Vec::len);
        axes.chain(self.has_deadlines().then_some(MUS.len())).collect()
    }

    /// Whether there are several deadlines to choose from.
    fn has_deadlines(&self) -> bool {
        self.texts.deadline && self.rules == ClosingRules::Usual
    }

    /// All its points: an index per axis.
    pub(super) fn points(&self) -> Vec<Vec<usize>> {
        let axes: Vec<Vec<usize>> =
            self.sizes().into_iter().map(|size| (0..size).collect()).collect();
        combined(&axes)
    }

    /// The setting at a point, if its text is a scheme's.
    pub(super) fn setting(&self, point: &[usize]) -> Option<Setting> {
        let axes = self.texts.axes.iter().zip(point);
        let parameters: Vec<&str> = axes.map(|(axis, at)| &*axis[*at]).collect();
        let parameters = parameters.join(",");
        let colon = if parameters.is_empty() { "" } else { ":" };
        let text = format!("{}{colon}{parameters}", self.family.name);
        let scheme = self.family.spec(&text).ok()?;
        if !self.has_deadlines() {
            return Some(Setting::new(scheme).under(self.rules));
        }
        Some(Setting { scheme, close: Close::Incremental, mu: Some(MUS[*point.last()?]) })
    }
}

/// All combinations of one index per axis.
pub(super) fn combined(axes: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let with = |points: Vec<Vec<usize>>, axis: &Vec<usize>| {
        let longer = |point: &Vec<usize>| {
            axis.iter().map(|at| [&point[..], &[*at]].concat()).collect::<Vec<_>>()
        };
        points.iter().flat_map(longer).collect()
    };
    axes.iter().fold(vec![Vec::new()], with)
}

#[cfg(test)]
mod tests;
