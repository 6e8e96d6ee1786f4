//! "Did you mean": what a user who wrote something else may have had in mind.

/// Letters that a name must have to be taken for the beginning of another.
const START_LEAST: usize = 3;

/// The name that another one is a slip of: one that begins with it, or differs in a letter for
/// every three, small and large ones alike. None where all are something else altogether.
pub(crate) fn near<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let name = name.to_lowercase();
    let distance = |known: &str| {
        if name.len() >= START_LEAST && known.starts_with(&name) {
            0
        } else {
            strsim::damerau_levenshtein(known, &name)
        }
    };
    let nearest = candidates.into_iter().min_by_key(|known| distance(known))?;
    let slips = name.chars().count().min(nearest.len()) / START_LEAST;
    (distance(nearest) <= slips).then_some(nearest)
}

/// The question at the end of an error, if there is something to ask.
pub(crate) fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean {nearest:?}?"))
}

/// A number of things, such as `1 round` or `3 rounds`.
pub(crate) fn several(number: usize, thing: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{end}")
}

#[cfg(test)]
mod tests;
