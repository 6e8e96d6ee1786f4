//! What a driver chooses when it makes an engine.

use super::plan::Replan;

/// What a driver of an [`Engine`](super::Engine) chooses. By default the first round has number 0,
/// the driver has no state to hand out, and a run that cannot be made by all is not planned again.
#[derive(Default)]
pub struct Settings {
    /// Number of the first round.
    pub round: u64,
    /// How many coordinators of the run there were before, at least: numbers of their orders are
    /// below those of this one.
    pub incarnation: u32,
    /// Whether the driver can hand out a state itself where no worker has one:
    /// [`Action::Restore`](super::super::Action::Restore).
    pub restores: bool,
    /// How the run is planned again for those who are fit when the scheme cannot do without the
    /// dead, as long as [`Limits::min_workers`](crate::run::Limits::min_workers) or more are: all
    /// that is not decided begins again under a scheme for them. A worker that comes back takes
    /// part again from the round on that opens once it has the current state, and one that is lost
    /// for longer than [`Limits::settle_seconds`](crate::run::Limits::settle_seconds) is planned
    /// without also where the scheme could do without it.
    pub replan: Option<Replan>,
}
