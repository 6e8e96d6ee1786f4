//! Where results are added up.

/// Where results are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reduce {
    /// All at once when a step is decoded, by one tree over the units of its batch: where every
    /// task is a micro-batch the sum has the bits of uncoded training, no matter who computed what.
    /// Workers keep every result until then.
    #[default]
    Tree,
    /// At each worker, as soon as a result's weight is final: it keeps one sum per open step. The
    /// bits depend on who computed what; less memory under schemes whose jobs take several rounds.
    Worker,
}
