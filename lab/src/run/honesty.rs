//! How honest the gradients of a run were, over all its steps, as summaries and tables say it.

use super::attack::DetectionCounts;
use super::record::Line;
use codedgrad_shell::layout::{Column, Table};
use serde::Serialize;

/// How honest a run's gradients were.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Honesty {
    /// Over all steps.
    #[serde(flatten)]
    pub(crate) caught: Option<DetectionCounts>,
    /// Median of `|found - true| / |true|` over the first third of the steps whose gradients were
    /// checked, and the last.
    pub(crate) early_gradient_error: Option<f64>,
    pub(crate) late_gradient_error: Option<f64>,
}

impl Honesty {
    pub(crate) fn of(lines: &[Line]) -> Self {
        let caught = lines.iter().filter_map(|line| line.caught).reduce(|mut sum, caught| {
            sum += caught;
            sum
        });
        let errors: Vec<f64> = lines.iter().filter_map(|line| line.gradient_error).collect();
        let third = errors.len().div_ceil(3);
        let median = |errors: &[f64]| {
            let mut sorted = errors.to_vec();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied()
        };
        Self {
            caught,
            early_gradient_error: median(&errors[..third]),
            late_gradient_error: median(&errors[errors.len() - third..]),
        }
    }
}

/// Who was found out in each run, and how far its gradients were from the true ones.
pub(crate) fn table<'a>(rows: impl Iterator<Item = (&'a str, &'a Honesty)>) -> Table {
    let mut table = Table::new([
        Column::left("scheme"),
        Column::right("wrong\nlocated"),
        Column::right("missed"),
        Column::right("honest\naccused"),
        Column::right("grad. error\nearly").spare(1),
        Column::right("late"),
    ]);
    let error = |x: &Option<f64>| {
        x.map_or("-".into(), |x| if x == 0.0 { "0".into() } else { format!("{x:.1e}") })
    };
    for (scheme, Honesty { caught, early_gradient_error, late_gradient_error }) in rows {
        let caught = caught.unwrap_or_default();
        table.row([
            scheme.to_owned(),
            caught.located.to_string(),
            caught.missed.to_string(),
            caught.accused.to_string(),
            error(early_gradient_error),
            error(late_gradient_error),
        ]);
    }
    table
}
