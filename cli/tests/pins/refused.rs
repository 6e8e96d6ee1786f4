//! Texts that the program refuses.

/// At least one text per `ParameterError` that a text can lead to, for 8 workers unless it says so.
/// No text is known that leads to `IllConditioned`; `NoWorkers`, `Edge`, `Speed`, `Defect` and
/// `NotBuilt` cannot be reached from this program.
const CODES: &[&str] = &[
    // UnknownScheme
    "grups:s=1",
    "min-lod:s=1",
    "auto",
    // Malformed
    "groups",
    "groups:s=1,l=2",
    "groups:s=-1",
    "groups:s=1.5",
    "groups:s=1,s=2",
    "groups:s=1,rescue",
    "groups:rescale",
    "drop",
    "drop:b=1,",
    "uncoded:s=1",
    "graph:d=3,err=low",
    "matrix",
    "matrix:matrix.csv,l=1",
    "interval:cuts=cuts.csv,speeds=speeds.csv",
    "interval:speeds=speeds.csv,s=1",
    "interval:speeds=speeds.csv,units=8",
    "sr-sgc:B=1,W=2",
    "sr-sgc:B=1,W=2,lambda=4,s=1",
    "m-sgc:B=1,W=2,lambda=4,rep,cyclic",
    "sbacc:K=4",
    "defer:T=1",
    // TooManyStragglers, GroupsOutOfRange, DropOutOfRange
    "groups:s=8",
    "groups:l=0",
    "groups:l=9",
    "drop:b=0",
    "drop:b=8",
    "min-load:s=8",
    "cyclic:s=8",
    "interval:speeds=speeds.csv,s=8,units=64",
    "interval:speeds=speeds.csv,l=9,units=64",
    // DegreeOutOfRange, ErrorOutOfRange
    "graph:d=9",
    "graph:d=1",
    "graph:d=2,err=1.5",
    // TooFewCuts
    "interval:speeds=speeds.csv,s=0,units=3",
    // File, Table, SpanMissesOnes, Unbalanced, EmptyInterval, CutOff, Workers
    "matrix:absent.csv",
    "matrix:bad_ragged.csv",
    "matrix:bad_blank.csv",
    "matrix:bad_empty.csv",
    "matrix:bad_number.csv",
    "matrix:bad_zeros.csv",
    "matrix:bad_span.csv",
    "matrix:bad_span.csv,err=0.01",
    "matrix:three.csv",
    "matrix:matrix.csv,s=8",
    "interval:cuts=bad_gap.csv",
    "interval:cuts=bad_interval.csv",
    "interval:cuts=bad_ragged.csv",
    "interval:cuts=bad_number.csv",
    "interval:cuts=bad_huge.csv",
    "interval:speeds=bad_speed.csv,s=1,units=8",
    // CyclicTooLarge, Conditions
    "cyclic:s=8 --workers 4096",
    "min-load:s=30000 --workers 65536",
    // Numbers of workers
    "uncoded --workers 0",
    "groups:s=1 --workers 70000",
    "graph:d=2 --workers 2",
    // NotOneRound, NoMatrix
    "queue:m=4 --verify",
    "ring:reach=3 --verify",
    "defer:T=1,cap=2,cut=4 --survivors 0-3",
    "sr-sgc:B=1,W=2,lambda=4 --verify",
    "m-sgc:B=1,W=2,lambda=4 --survivors 0-3",
    "vote:s=1,b=1",
    "bacc:K=4",
    "sbacc:K=4,byzantine=2",
];

/// Conditions that are not looked at before a scheme has a horizon, for 8 workers unless it says
/// so.
const SCHEMES: &[&str] = &[
    "queue:m=0",
    "queue:m=99999999",
    "ring:reach=0",
    "ring:reach=9",
    "defer:T=0,cap=1",
    "defer:cap=8",
    "defer:T=3,cap=1,copies=3",
    "sr-sgc:B=2,W=2,lambda=4",
    "sr-sgc:B=2,W=4,lambda=4",
    "sr-sgc:B=1,W=2,lambda=9",
    "sr-sgc:B=1,W=200000,lambda=4",
    "sr-sgc:B=1,W=2,rep,s=2",
    "m-sgc:B=2,W=2,lambda=4",
    "m-sgc:B=1,W=2,lambda=9",
    "m-sgc:B=1,W=2,lambda=8,rep",
    "m-sgc:B=1,W=200000,lambda=4",
    "m-sgc:B=1,W=99999,lambda=4 --workers 64",
    "vote:s=3,b=3",
    "bacc:K=8",
    "bacc:K=0",
    "bacc:K=2,s=7",
    "sbacc:K=4,byzantine=4",
];

pub(crate) fn commands() -> impl Iterator<Item = String> {
    let workers = |text: &str| if text.contains("--workers") { "" } else { " --workers 8" };
    let code = move |text: &&str| format!("code {text}{}", workers(text));
    let simulate =
        move |text: &&str| format!("simulate {text}{} --delays bursts --jobs 4", workers(text));
    CODES.iter().map(code).chain(SCHEMES.iter().map(simulate))
}
