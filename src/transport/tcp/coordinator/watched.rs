//! What others see of a node.

use super::super::commands::{NodeEvent, Offers};
use super::super::mailbox::MailboxSender;
use super::super::status::TcpStatus;
use crate::sums::exchange::SumCounts;
use crate::sums::lock;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::watch;

/// What others see of the node: its notices, its status and who offers what.
pub(in super::super) struct NodeOutputs {
    notices: MailboxSender<Vec<NodeEvent>>,
    /// Notices that are handed on together.
    noticed: Vec<NodeEvent>,
    status: Arc<Mutex<TcpStatus>>,
    offers: watch::Sender<Offers>,
    counted: SumCounts,
}

impl NodeOutputs {
    pub(in super::super) fn new(
        notices: MailboxSender<Vec<NodeEvent>>,
        status: Arc<Mutex<TcpStatus>>,
        offers: watch::Sender<Offers>,
    ) -> Self {
        let counted = SumCounts::default();
        Self { notices, noticed: Vec::new(), status, offers, counted }
    }

    /// Something was found out.
    pub(super) fn notice(&mut self, heard: NodeEvent) {
        self.noticed.push(heard);
    }

    /// Hands on what was found out.
    pub(super) fn hand_on(&mut self) {
        if !self.noticed.is_empty() {
            self.notices.send(std::mem::take(&mut self.noticed));
        }
    }

    pub(super) fn status(&self) -> MutexGuard<'_, TcpStatus> {
        lock(&self.status)
    }

    /// So much has come of sums.
    pub(super) fn count(&mut self, counts: SumCounts) {
        // Asked after every chunk, and changed once a step.
        if self.counted != counts {
            self.counted = counts;
            self.status().sums = counts;
        }
    }

    /// A worker has come or gone.
    pub(super) fn offer(&self, offers: Offers) {
        self.offers.send_replace(offers);
    }
}
