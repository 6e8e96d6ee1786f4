//! The schemes that pins are of, each with a number of workers that it takes.

use crate::shell::files;
use codedgrad::codes::SchemeSpec;
use codedgrad::codes::registry::Registry;
use codedgrad::codes::sequential::{Accept, Horizon, SchemeFacts};
use codedgrad::ids::Job;

/// Workers of a scheme: the first of these numbers that it takes.
const WORKERS: [usize; 3] = [8, 12, 16];
/// The text with the name of a file in the place of `FILE`: `cuts=FILE` is `cuts=cuts.csv`.
pub(crate) fn with_file(text: &str) -> String {
    let Some((before, after)) = text.split_once("FILE") else { return text.into() };
    let name = before.trim_end_matches(['=', ':']).rsplit([':', ',']).next().unwrap_or_default();
    format!("{before}{name}.csv{after}")
}

/// The texts of the registry.
pub(crate) fn examples() -> impl Iterator<Item = String> {
    Registry::builtin().examples().map(with_file)
}

/// The facts of a scheme for the first number of workers that it takes.
pub(crate) fn facts(text: &str) -> SchemeFacts {
    let spec: SchemeSpec = in_files(text).parse().unwrap();
    let horizon =
        |workers| Horizon { workers, units: None, jobs: Job(0)..Job(0), accept: Accept::Lookahead };
    let scheme = WORKERS.into_iter().find_map(|workers| spec.over(horizon(workers)).ok());
    scheme.unwrap_or_else(|| panic!("{text} takes none of {WORKERS:?} workers")).facts().clone()
}

/// The text with the path of its file, if it has one.
fn in_files(text: &str) -> String {
    let Some(end) = text.find(".csv") else { return text.into() };
    let start = text[..end].rfind(['=', ':']).map_or(0, |mark| mark + 1);
    format!("{}{}/{}", &text[..start], files().display(), &text[start..])
}
