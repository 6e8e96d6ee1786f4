//! What the engine is still to be told.

use crate::ids::Worker;
use crate::schedulers::Input;
use crate::transport::Notice;
use std::collections::VecDeque;

/// What the engine is still to be told, in order: all inputs, then notices one by one.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    begun: bool,
    inputs: VecDeque<Input>,
    /// Notices that count once everything that was decided before is carried out.
    notices: VecDeque<(Worker, Notice)>,
}

impl Inbox {
    /// Whether the engine is, or was, told to begin.
    pub(super) fn has_begun(&self) -> bool {
        self.begun
    }

    /// The engine begins, once it is told what came before.
    pub(super) fn begin(&mut self) {
        self.begun = true;
        self.inputs.push_back(Input::Begin);
    }

    pub(super) fn add(&mut self, inputs: impl IntoIterator<Item = Input>) {
        self.inputs.extend(inputs);
    }

    /// A notice that counts later.
    pub(super) fn postpone(&mut self, worker: Worker, notice: Notice) {
        self.notices.push_back((worker, notice));
    }

    /// Whether the engine is still to be told something.
    pub(super) fn has_inputs(&self) -> bool {
        !self.inputs.is_empty()
    }

    pub(super) fn next_input(&mut self) -> Option<Input> {
        self.inputs.pop_front()
    }

    /// The next notice; only when there is no input.
    pub(super) fn next_notice(&mut self) -> Option<(Worker, Notice)> {
        self.notices.pop_front()
    }

    /// Notices that are postponed.
    pub(super) fn len(&self) -> usize {
        self.notices.len()
    }
}
