//! What a step is expected to be made of, while it is computed.

use super::store::NotFinite;
use crate::ids::Step;
use crate::transport::Summand;
use crate::transport::wire::Predecessor;
use std::collections::BTreeSet;

/// What a worker says of a sum of which it is not known yet whether the step is made of it.
#[derive(Clone, Debug)]
pub(super) enum Heard {
    Held(Option<u64>),
    NotFinite(NotFinite),
}

/// The step that is computed, if it is known beforehand what it will be made of.
///
/// It is [begun](Expected::begin) with the step's first task, and [released](Expected::release)
/// when it is known what the step is made of; in between it keeps what is heard of the sum.
#[derive(Debug, Default)]
pub(super) struct Expected {
    step: Option<Step>,
    terms: Vec<Summand>,
    /// By which attempt it is summed and by whom, as workers were told last.
    told: Option<Predecessor>,
    heard: Vec<(u32, Heard)>,
}

impl Expected {
    /// A step will be made of these terms, each of any of its holders.
    pub(super) fn begin(&mut self, step: Step, terms: Vec<Summand>) {
        self.step = Some(step);
        self.terms = terms;
        self.told = None;
        self.heard.clear();
    }

    /// Workers are told who sums it.
    pub(super) fn tell(&mut self, told: Predecessor) {
        self.told = Some(told);
    }

    /// What workers were told last.
    pub(super) fn told(&self) -> Option<&Predecessor> {
        self.told.as_ref()
    }

    /// The step, and its terms of those who are there, from whom alone something is heard from now
    /// on; none if nobody is there who will have some term.
    pub(super) fn of_present(&mut self, present: &BTreeSet<u32>) -> Option<(Step, Vec<Summand>)> {
        for term in &mut self.terms {
            term.holders.retain(|piece| present.contains(&piece.worker.0));
        }
        self.heard.clear();
        let all = self.terms.iter().all(|term| !term.holders.is_empty());
        Some((self.step?, self.terms.clone())).filter(|_| all)
    }

    /// A worker says something of the sum.
    pub(super) fn heard(&mut self, worker: u32, what: Heard) {
        self.heard.push((worker, what));
    }

    /// Whether a step is made of one of the holders of each of its terms.
    pub(super) fn is_of(&self, step: Step, terms: &[Summand]) -> bool {
        let alike = |(expected, term): (&Summand, &Summand)| {
            // The engine names the one it goes by first; any other that was told has the same
            // numbers.
            let first = term.holders.first();
            expected.weight == term.weight
                && first.is_some_and(|piece| expected.holders.contains(piece))
        };
        self.step == Some(step)
            && self.terms.len() == terms.len()
            && self.terms.iter().zip(terms).all(alike)
    }

    /// It is known what a step is made of; gives what was heard of the sum.
    pub(super) fn release(&mut self, step: Step) -> Vec<(u32, Heard)> {
        if self.step.is_none_or(|expected| expected > step) {
            return Vec::new();
        }
        self.step = None;
        self.told = None;
        self.terms.clear();
        std::mem::take(&mut self.heard)
    }
}
