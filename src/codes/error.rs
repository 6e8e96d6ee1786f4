//! What can be wrong with a code's parameters, or with the text that names it.

use super::Defect;
use super::family::AUTO;
use super::table::TableError;
use crate::ids::CutError;
use crate::spelling::{hint, several};
use thiserror::Error;

/// Parameters outside a code's conditions, or a text that names no scheme.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ParameterError {
    /// A run needs at least one worker.
    #[error("0 workers: a run needs at least 1")]
    NoWorkers,
    /// `s` must be below `n`.
    #[error(
        "s={stragglers} of {} cannot be spared: s must be at most {}",
        several(*workers, "worker"),
        workers - 1
    )]
    TooManyStragglers {
        /// Stragglers asked for.
        stragglers: usize,
        /// Workers of the run.
        workers: usize,
    },
    /// A vote needs `s+2b+1` workers.
    #[error(
        "vote:s={stragglers},b={wrong} of {workers} workers: a group needs at least {needed} \
         members, s+2b+1"
    )]
    TooFewVoters {
        /// Stragglers of every group.
        stragglers: usize,
        /// Byzantine workers of every group.
        wrong: usize,
        /// Workers of the run.
        workers: usize,
        /// `s+2b+1`.
        needed: usize,
    },
    /// No matrix of coefficients tells how it is decoded.
    #[error("{text} {why}; `codedgrad simulate` and `codedgrad-lab train` can use it")]
    NoMatrix {
        /// Which scheme.
        text: String,
        /// What it is instead.
        why: &'static str,
    },
    /// The scheme's family is not in this build.
    #[error("{text} needs a build with feature berrut")]
    NotBuilt {
        /// Which scheme.
        text: String,
    },
    /// Fewer workers than a mixture's decode takes.
    #[error(
        "K={blocks} blocks on {workers} workers: at least {needed} workers are needed, {} ({} K) \
         and two for each of \
         {wrong} Byzantine ones", needed - 2 * wrong, if *wrong > 0 { "1.5" } else { "2" }
    )]
    TooFewMixtures {
        /// Blocks of a batch.
        blocks: usize,
        /// Workers of the run.
        workers: usize,
        /// Workers needed.
        needed: usize,
        /// Byzantine workers to be found out.
        wrong: usize,
    },
    /// `l` must be between 1 and `n`.
    #[error("l={groups} groups of {workers} workers: l must be from 1 to {workers}")]
    GroupsOutOfRange {
        /// Groups asked for.
        groups: usize,
        /// Workers of the run.
        workers: usize,
    },
    /// `b` must be between 1 and `n - 1`.
    #[error(
        "drop:b={dropped} of {workers} workers: b must be from 1 to {}{}",
        workers.saturating_sub(1),
        if *dropped == 0 { "; b=0 is uncoded" } else { "" }
    )]
    DropOutOfRange {
        /// Workers that may be dropped.
        dropped: usize,
        /// Workers of the run.
        workers: usize,
    },
    /// The null space of a cyclic code would take minutes, for nothing.
    #[error(
        "cyclic of {workers} workers: at most {most}, and its amplification is past every gate \
         long before; min-load:s={stragglers} has the same load and tolerance"
    )]
    CyclicTooLarge {
        /// Workers of the run.
        workers: usize,
        /// Stragglers asked for.
        stragglers: usize,
        /// Most workers.
        most: usize,
    },
    /// Rounding leaves no decode of such a code.
    #[error(
        "the coefficients of a cyclic code of {workers} workers for s={stragglers} cannot be found \
         or decoded in f64; min-load:s={stragglers} has the same load and tolerance"
    )]
    IllConditioned {
        /// Workers of the run.
        workers: usize,
        /// Stragglers asked for.
        stragglers: usize,
    },
    /// `d` must leave a simple graph.
    #[error(
        "graph:d={degree} of {workers} workers: {}",
        if *most < 2 { "a graph needs at least 3 workers".to_owned() } else { format!("d must be from 2 to {most}, so that floor(2n/d) vertices have as many neighbours") }
    )]
    DegreeOutOfRange {
        /// Degree asked for.
        degree: usize,
        /// Workers of the run.
        workers: usize,
        /// The largest degree; below 2 if there is none.
        most: usize,
    },
    /// An edge must join two vertices.
    #[error(
        "the edge {x}-{y} does not join two of the vertices 0 to {}",
        vertices.saturating_sub(1)
    )]
    Edge {
        /// One end.
        x: u32,
        /// The other end.
        y: u32,
        /// Vertices of the graph.
        vertices: usize,
    },
    /// An error bound that means nothing.
    #[error("err={error_max} is not a normalised error: it must be from 0 (exact) to below 1")]
    ErrorOutOfRange {
        /// Bound asked for.
        error_max: f64,
    },
    /// An approximate code that misses its own bound.
    #[error(
        "the normalised error is {error:.3e} even with all workers alive, above err={error_max}; \
         take a larger err, or another graph (d, seed) or matrix"
    )]
    Unbalanced {
        /// Error with all workers alive.
        error: f64,
        /// Bound asked for.
        error_max: f64,
    },
    /// An interval without shares.
    #[error("worker {worker} has the interval [{start}, {end}): its end must lie after its start")]
    EmptyInterval {
        /// Whose interval.
        worker: usize,
        /// Its first cut point.
        start: u32,
        /// Its last cut point.
        end: u32,
    },
    /// Intervals that do not reach from one end of the batch to the other.
    #[error(
        "the intervals connect 0 only with {reached}, not with {cuts}, even with all workers \
         alive: add one across the gap"
    )]
    CutOff {
        /// Largest cut point that is connected with 0.
        reached: u32,
        /// The last cut point, `K`.
        cuts: u32,
    },
    /// A speed that is none.
    #[error("worker {worker} has speed {speed}: a speed must be finite and above 0")]
    Speed {
        /// Whose speed.
        worker: usize,
        /// What was given.
        speed: f64,
    },
    /// The batch is cut too coarsely for the slowest workers.
    #[error("with {cuts} units worker {worker} would get none; take units={needed} or more")]
    TooFewCuts {
        /// Cut points asked for.
        cuts: u32,
        /// Who would get nothing.
        worker: usize,
        /// A number that is enough for this worker.
        needed: u32,
    },
    /// A scheme that is more than a one-round code.
    #[error(
        "{text} is a scheme over rounds or with feedback, not a one-round code (`codedgrad code \
         --help` lists those); `codedgrad simulate` shows what it does, and `codedgrad run` runs it"
    )]
    NotOneRound {
        /// Which scheme.
        text: String,
    },
    /// Parameters outside a scheme's conditions, or too large for it.
    #[error("{scheme}: {problem}")]
    Conditions {
        /// Which scheme.
        scheme: &'static str,
        /// Which condition, and what would fit.
        problem: String,
    },
    /// A matrix that decodes nothing.
    #[error(
        "even all workers together cannot decode: the rows do not span the all-ones vector; the \
         best any weights do for share {share} is the coefficient {coefficient:.6} instead of 1"
    )]
    SpanMissesOnes {
        /// The share that is worst off.
        share: usize,
        /// Its coefficient in the best combination.
        coefficient: f64,
    },
    /// A matrix that does not tolerate what its author says.
    #[error(
        "{text} claims to tolerate any {claimed} straggler{}, but does not decode {}; \
         `codedgrad code matrix:FILE --verify` shows what it does tolerate",
        if *claimed == 1 { "" } else { "s" },
        without(stragglers)
    )]
    Claim {
        /// Which matrix.
        text: String,
        /// Stragglers that it claims to tolerate.
        claimed: usize,
        /// A set of so many that it does not.
        stragglers: Vec<usize>,
    },
    /// A code whose decoder does not do what its rows say.
    #[error("{text} has a defect, which shows {}: {defect}", without(stragglers))]
    Defect {
        /// Which code.
        text: String,
        /// Who was missing.
        stragglers: Vec<usize>,
        /// What is wrong.
        defect: Defect,
    },
    /// A table of numbers that cannot be used.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A file that cannot be read or used.
    #[error("{path}: {problem}")]
    File {
        /// Which file.
        path: String,
        /// Why.
        problem: String,
    },
    /// A file for another number of workers.
    #[error(
        "{path} is for {}, but the run has {workers}: say --workers {found} or give another file",
        several(*found, "worker")
    )]
    Workers {
        /// Which file.
        path: String,
        /// Workers in the file.
        found: usize,
        /// Workers of the run.
        workers: usize,
    },
    /// No scheme of that name.
    #[error(
        "unknown scheme {name:?}{}",
        match nearest {
            Some(_) => hint(*nearest),
            None => format!(
                "; known: {known}{}. `codedgrad code --help` shows how they are written",
                of_policy(name)
            ),
        }
    )]
    UnknownScheme {
        /// What was written.
        name: String,
        /// The names of all schemes.
        known: String,
        /// The known scheme that it is a slip of.
        nearest: Option<&'static str>,
    },
    /// A family that cannot be registered.
    #[error("the family {name:?} {problem}")]
    Family {
        /// Its name.
        name: &'static str,
        /// Why not.
        problem: &'static str,
    },
    /// A parameter that is missing, unknown or given twice.
    #[error("scheme {text:?}: {problem}; write it like {example}")]
    Malformed {
        /// The whole text.
        text: String,
        /// What is wrong with it.
        problem: String,
        /// A text that is right.
        example: &'static str,
    },
    /// The batch is too small for the scheme's shares.
    #[error(transparent)]
    Cut(#[from] CutError),
}

/// What is to be said of the one name of a policy.
fn of_policy(name: &str) -> &'static str {
    if name == AUTO {
        " (auto chooses among them while a run goes on, in `codedgrad run` and `serve`, and in \
         `codedgrad-lab train`)"
    } else {
        ""
    }
}

fn without(workers: &[usize]) -> String {
    if workers.is_empty() {
        return "even with all answers".into();
    }
    let numbers = workers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    format!("without worker{} {numbers}", if workers.len() == 1 { "" } else { "s" })
}

/// What is a scheme already has nothing wrong.
impl From<std::convert::Infallible> for ParameterError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}
