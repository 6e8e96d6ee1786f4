//! What others see of a hub.

use super::super::lock;
use super::super::mailbox::Inlet;
use super::super::server::{Heard, Offers, Sums, TcpStatus};
use crate::ids::Step;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;

/// Sums that are kept for whoever asks for them.
const SUMS: usize = 2;

/// What others see of the hub: its notices, the last sums, its status and who offers what.
pub(in super::super) struct Watched {
    notices: Inlet<Vec<Heard>>,
    /// Notices that are handed on together.
    noticed: Vec<Heard>,
    sums: Sums,
    status: Arc<Mutex<TcpStatus>>,
    offers: watch::Sender<Offers>,
}

impl Watched {
    pub(in super::super) fn new(
        notices: Inlet<Vec<Heard>>,
        sums: Sums,
        status: Arc<Mutex<TcpStatus>>,
        offers: watch::Sender<Offers>,
    ) -> Self {
        Self { notices, noticed: Vec::new(), sums, status, offers }
    }

    /// Something was found out.
    pub(super) fn notice(&mut self, heard: Heard) {
        self.noticed.push(heard);
    }

    /// Hands on what was found out.
    pub(super) fn hand_on(&mut self) {
        if !self.noticed.is_empty() {
            self.notices.send(std::mem::take(&mut self.noticed));
        }
    }

    /// A sum is whole here.
    pub(super) fn sum(&self, step: Step, attempt: u32, vector: &Arc<Vec<f32>>) {
        let mut sums = lock(&self.sums);
        sums.push_back((step, attempt, Arc::clone(vector)));
        while sums.len() > SUMS {
            sums.pop_front();
        }
    }

    pub(super) fn status(&self) -> MutexGuard<'_, TcpStatus> {
        lock(&self.status)
    }

    /// Somebody has come or gone.
    pub(super) fn offer(&self, offers: Offers) {
        self.offers.send_replace(offers);
    }
}
