//! Runs that the program refuses.

/// What only a run refuses.
const RUNS: &[&str] = &[
    "--scheme uncoded --micro-batches 3",
    "--scheme cyclic:s=8",
    "--scheme graph:d=9 --workers 12",
    "--scheme queue:m=4",
    "--scheme bacc:K=4 --micro-batches 18",
    "--scheme m-sgc:B=1,W=2,lambda=2",
    "--scheme m-sgc:B=2,W=3,lambda=2 --models 3",
    "--scheme sr-sgc:B=1,W=2,lambda=4",
    "--scheme defer:cap=2,cut=2",
    "--scheme uncoded --models 2 --accumulate 2",
    "--scheme queue:m=2 --late next-step",
    "--scheme defer:cap=2,cut=2 --late next-step --models 2",
    "--scheme defer:cap=2,cut=2 --late next-step --workers 4..8",
    "--scheme bacc:K=4 --workers 4..8",
    "--scheme auto:probe=30,every=30",
    "--scheme uncoded --fault panic@1:8",
    "--scheme uncoded --fault stop@1:2",
    "--scheme uncoded --attack flip --attackers 9",
    "--mu=-1",
    "--delays hotspt",
];

pub(crate) fn commands() -> impl Iterator<Item = String> {
    RUNS.iter().map(|flags| format!("train {flags} --clock virtual --out run"))
}
