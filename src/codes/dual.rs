//! The decoder of codes given by a matrix alone: who is missing decides, over [`Dual`].

use super::gate::RESIDUAL_MAX;
use super::linear::{Basis, Dual, least_squares, remove};
use super::{Choice, Decoder, Facts, Report, Row, Status, judge};
use crate::ids::{Share, Worker, WorkerSet};
use std::sync::Arc;

/// Slack on an error bound, for rounding; less than that of the gate.
const ERROR_SLACK: f64 = 1e-10;

/// What a decoder shares with its code.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) facts: Facts,
    pub(super) rows: Vec<Row>,
    /// None of a code that is decoded approximately.
    pub(super) dual: Option<Dual>,
    pub(super) rule: Rule,
}

/// When the messages that have arrived suffice.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// As soon as at most the tolerated number is missing.
    Count,
    /// As soon as the rows of those who answered span the all-ones vector.
    Span,
    /// As soon as they come so close to it: the largest normalised error.
    Error(f64),
}

pub(super) struct DualDecoder {
    plan: Arc<Plan>,
    arrived: WorkerSet,
    order: Vec<usize>,
    /// How many arrivals it took.
    needed: Option<usize>,
    span: Basis,
    /// The part of the all-ones vector that the arrived rows do not span.
    unspanned: Vec<f64>,
}

impl DualDecoder {
    pub(super) fn new(plan: &Arc<Plan>) -> Self {
        Self {
            arrived: WorkerSet::empty(plan.facts.workers),
            order: Vec::new(),
            needed: None,
            span: Basis::default(),
            unspanned: vec![1.0; plan.facts.shares()],
            plan: Arc::clone(plan),
        }
    }

    /// Takes one more row into the span; false if it was there.
    fn widen(&mut self, worker: Worker) -> bool {
        let mut row = vec![0.0; self.unspanned.len()];
        let entries = &self.plan.rows[worker.index()];
        let largest = entries.iter().fold(0.0f64, |most, entry| most.max(entry.1.abs()));
        for &(Share(share), coefficient) in entries {
            row[share as usize] = coefficient / largest;
        }
        let Some(unit) = self.span.extend(row) else { return false };
        remove(&mut self.unspanned, unit);
        true
    }

    fn satisfied(&self) -> bool {
        let facts = &self.plan.facts;
        match self.plan.rule {
            Rule::Count => self.order.len() >= facts.workers - facts.tolerance,
            Rule::Span => self.is_exact(),
            Rule::Error(error_max) => {
                let squares: f64 = self.unspanned.iter().map(|x| x * x).sum();
                self.is_exact()
                    || squares / facts.shares() as f64 <= error_max * (1.0 + ERROR_SLACK)
            }
        }
    }

    fn is_exact(&self) -> bool {
        self.unspanned.iter().all(|x| x.abs() <= RESIDUAL_MAX)
    }
}

impl Decoder for DualDecoder {
    fn arrive(&mut self, worker: Worker) -> Status {
        if !self.arrived.insert(worker) {
            return Status::Useless;
        }
        self.order.push(worker.index());
        // An approximate decode gets better with every row that is new.
        let is_new = match self.plan.rule {
            Rule::Count => self.needed.is_none(),
            Rule::Span => self.needed.is_none() && self.widen(worker),
            Rule::Error(_) => self.widen(worker),
        };
        if !is_new {
            return Status::Useless;
        }
        if self.needed.is_some() || !self.satisfied() {
            return Status::Pending;
        }
        self.needed = Some(self.order.len());
        Status::Decodable
    }

    fn weights(&mut self, choice: Choice, out: &mut [f64]) -> Report {
        let Plan { facts, rows, dual, .. } = &*self.plan;
        assert_eq!(out.len(), facts.workers, "one weight per worker");
        let used = match (choice, self.needed) {
            (Choice::Fewest, Some(needed)) if dual.is_some() => &self.order[..needed],
            _ => &self.order[..],
        };
        let mut missing = vec![true; facts.workers];
        used.iter().for_each(|&i| missing[i] = false);
        let missing: Vec<usize> = (0..facts.workers).filter(|&i| missing[i]).collect();
        let suffices = self.needed.is_some() && missing.len() <= used.len();
        if let Some(dual) = dual.as_ref().filter(|_| suffices) {
            dual.weights(&missing, out);
        } else {
            out.fill(0.0);
            let rows: Vec<&Row> = used.iter().map(|&i| &rows[i]).collect();
            used.iter()
                .zip(least_squares(&rows, facts.shares()))
                .for_each(|(&i, weight)| out[i] = weight);
        }
        judge(rows, &facts.share_weights, out, self.needed.is_some())
    }

    fn reset(&mut self) {
        self.arrived.clear();
        self.order.clear();
        self.needed = None;
        self.span.clear();
        self.unspanned.fill(1.0);
    }
}
