//! What a process is in a job.

use crate::ids::Worker;
use std::fmt;

/// What ends the name of every role in a certificate.
pub(super) const DOMAIN: &str = ".codedgrad";

/// What a process is in a job. As text it is the DNS name in its certificate:
/// `coordinator.codedgrad`, `worker-3.codedgrad`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The one that assigns the work.
    Coordinator,
    /// One that does it.
    Worker(Worker),
}

impl Role {
    /// The name of its files: `coordinator`, `worker-3`.
    pub(super) fn label(self) -> String {
        match self {
            Self::Coordinator => "coordinator".into(),
            Self::Worker(Worker(worker)) => format!("worker-{worker}"),
        }
    }

    pub(super) fn from_label(label: &str) -> Option<Self> {
        let role = match label.strip_prefix("worker-") {
            Some(number) => Self::Worker(Worker(number.parse().ok()?)),
            None => Self::Coordinator,
        };
        (role.label() == label).then_some(role)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{DOMAIN}", self.label())
    }
}
