//! What goes wrong on purpose.

use codedgrad::ids::Worker;
use std::str::FromStr;

/// How the text begins with which a worker panics on purpose. Its panic prints nothing.
pub const INJECTED: &str = "injected fault";

/// What goes wrong on purpose, to see that the run copes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The worker's thread panics when it is given its task.
    Panic,
    /// The worker's gradient is NaN.
    Nan,
}

/// A fault injected into one worker at one step, written `panic@STEP:WORKER` or `nan@STEP:WORKER`.
///
/// ```
/// use codedgrad_lab::trainer::Fault;
/// let fault: Fault = "nan@12:3".parse().unwrap();
/// assert_eq!((fault.step, fault.worker.0), (12, 3));
/// assert!("nan@x:3".parse::<Fault>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What happens.
    pub kind: FaultKind,
    /// At which step.
    pub step: u64,
    /// To whom.
    pub worker: Worker,
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not a fault; write panic@STEP:WORKER or nan@STEP:WORKER, for example \
                 nan@12:3"
            )
        };
        let (kind, place) = text.split_once('@').ok_or_else(wrong)?;
        let (step, worker) = place.split_once(':').ok_or_else(wrong)?;
        let kind = match kind {
            "panic" => FaultKind::Panic,
            "nan" => FaultKind::Nan,
            _ => return Err(wrong()),
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| wrong());
        Ok(Self { kind, step: u64::from(number(step)?), worker: Worker(number(worker)?) })
    }
}
