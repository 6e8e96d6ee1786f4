//! What to say about a plan.

use super::judge::TooFew;
use super::{Candidate, Cause, GAIN_MIN, GainInterval, Question, ROUNDS_MIN};
use crate::codes::registry::{Family, listed};
use crate::delays::StragglerSummary;
use crate::spelling::several;

/// Rounds of a recording from which its tail can be told.
const ROUNDS_ENOUGH: usize = 100;
/// A replay and a closed form that differ by more than that tell that workers are not independent.
const AGREE: f64 = 0.15;
/// Less is shown as 0.0 %.
const SHOWN_LEAST: f64 = 5e-4;
/// Above that a median answer time is more likely in milliseconds.
const SECONDS_MAX: f64 = 100.0;

fn percent(share: f64) -> String {
    let shown = if share.abs() < SHOWN_LEAST { 0.0 } else { share };
    format!("{:.1} %", 100.0 * shown)
}

/// Why a candidate is recommended or not.
pub(super) fn reason(candidate: &Candidate, choice: &Candidate) -> String {
    // Beside a choice that takes no time nothing has a ratio.
    let slower = match (candidate.time_per_job, choice.time_per_job) {
        (0.0, 0.0) => 0.0,
        (candidate, choice) => candidate / choice - 1.0,
    };
    if candidate.scheme == choice.scheme {
        return if candidate.scheme == "uncoded" {
            format!("nothing surely gains {:.0} %", 100.0 * GAIN_MIN)
        } else {
            "the fastest allowed".into()
        };
    }
    if candidate.scheme.traits().biased {
        let whole = candidate.time_per_job / candidate.coverage;
        return format!(
            "biased: the slowest workers' {} of every batch never count; a batch's worth of \
             samples takes {whole:.4} s",
            percent(1.0 - candidate.coverage)
        );
    }
    if !candidate.exact {
        return format!(
            "approximate: {} of every batch counts, with an error of at most its err",
            percent(candidate.coverage)
        );
    }
    let is_as_fast = slower.abs() < SHOWN_LEAST;
    match (candidate.scheme == "uncoded", candidate.gain) {
        (true, _) if slower.is_finite() => {
            format!("waits for all workers: {} slower", percent(slower))
        }
        _ if !slower.is_finite() => "slower than a choice that takes no time".into(),
        _ if is_as_fast && candidate.work > choice.work => "as fast, with more work".into(),
        _ if is_as_fast && candidate.work < choice.work => "as fast, with less work".into(),
        _ if is_as_fast => "as fast".into(),
        (_, gain) if gain < 0.0 && gain > -SHOWN_LEAST => "no faster than uncoded".into(),
        (_, gain) if gain < 0.0 => "slower than uncoded".into(),
        _ if candidate.doubts.is_none() => "too few rounds to say".into(),
        (_, gain) if gain < GAIN_MIN => format!("gains less than {:.0} %", 100.0 * GAIN_MIN),
        _ if candidate.newer_without_best() <= -SHOWN_LEAST => format!(
            "too unsure: without one run of rounds it costs {} more time",
            percent(-candidate.newer_without_best())
        ),
        _ if candidate.newer_without_best() < 0.0 => {
            "too unsure: by the newer half of the rounds it gains nothing".into()
        }
        _ if slower < 0.0 => "too unsure on other rounds".into(),
        _ if candidate.work < 0.95 * choice.work => {
            format!(
                "{} slower, at {:.2} times its work",
                percent(slower),
                candidate.work / choice.work
            )
        }
        _ => format!("{} slower", percent(slower)),
    }
}

/// What choosing does by the rounds that did not choose.
fn changed(gain: f64) -> String {
    match gain {
        gain if gain >= SHOWN_LEAST => format!("saves {}", percent(gain)),
        gain if gain <= -SHOWN_LEAST => format!("costs {} more", percent(-gain)),
        _ => "saves nothing".into(),
    }
}

/// The answer in two sentences. What is saved is told by the rounds that did not choose.
pub(super) fn why(
    choice: &Candidate,
    fastest: &Candidate,
    (gain, interval, jobs): (Option<f64>, Option<Result<GainInterval, TooFew>>, usize),
    (causes, found): (&[Cause], &StragglerSummary),
) -> String {
    let ratio = found.bound_by_median;
    let curable = causes
        .iter()
        .max_by(|a, b| a.costs.total_cmp(&b.costs))
        .filter(|cause| cause.costs >= GAIN_MIN);
    let cured = |cause: &Cause| format!("{}.", sentence(&cause.with_saving()));
    if choice.scheme == "uncoded" {
        let (name, here) = (&fastest.scheme, percent(fastest.gain));
        let best = match gain {
            _ if fastest.scheme == "uncoded" => "no scheme is any faster".into(),
            None => format!(
                "a trace of {} is too short to recommend a code (at least {ROUNDS_MIN}); in it the \
                 fastest, {name}, takes {here} less time",
                several(jobs, "round")
            ),
            Some(gain) if fastest.gain >= GAIN_MIN => format!(
                "{name} is the fastest here, but the newer rounds do not show a saving of {:.0} % \
                 with certainty: record more rounds. On the older rounds this choice {}",
                100.0 * GAIN_MIN,
                changed(gain)
            ),
            Some(_) => format!(
                "the fastest, {name}, takes {here} less time, less than the {:.0} % that are worth \
                 it",
                100.0 * GAIN_MIN
            ),
        };
        let second = match curable {
            Some(cause) => cured(cause),
            None if ratio < 1.0 + 2.0 * GAIN_MIN => {
                format!(
                    "A round takes only {ratio:.3} times its median answer: there is hardly \
                     anything to wait for."
                )
            }
            None if ratio == 0.0 => "Most answers take no time at all.".into(),
            // It would pay, and only whether that is so on other rounds is not known.
            None if fastest.gain >= GAIN_MIN => {
                format!("A round takes {ratio:.2} times its median answer.")
            }
            None => format!(
                "A round takes {ratio:.2} times its median answer, but what codes compute twice \
                 costs as much as the wait."
            ),
        };
        return format!("Do not code: {best}. {second}");
    }
    let saves = match interval {
        Some(Ok(interval)) if interval.low >= GAIN_MIN => "saves",
        Some(Ok(interval)) if interval.low > 0.0 => "likely saves",
        _ => "may save",
    };
    let sure = match interval {
        Some(Ok(interval)) => {
            let (low, high) = (percent(interval.low), percent(interval.high));
            format!("95 % for choosing so: {low} to {high}, judged on rounds that did not choose")
        }
        Some(Err(too_few)) => format!("how sure that is cannot be said: {too_few}"),
        None => "how sure that is cannot be said".into(),
    };
    let late = match choice.delay {
        0 => String::new(),
        1 => ", each job complete up to 1 round late".into(),
        rounds => format!(", each job complete up to {rounds} rounds late"),
    };
    let gain = gain.unwrap_or_default();
    // What drops samples needs more steps.
    let of = if choice.coverage < 1.0 { "time per whole batch" } else { "time per job" };
    let saved = match gain {
        gain if gain >= GAIN_MIN => format!("{saves} {} of the {of}", percent(gain)),
        gain if gain >= SHOWN_LEAST => format!("{saves} little of the {of}, {}", percent(gain)),
        gain => format!(
            "may save some of the {of}, but on the older rounds this choice {}",
            changed(gain)
        ),
    };
    let (name, work) = (&choice.scheme, choice.work);
    let first = format!("{name} {saved} ({sure}). It takes {work:.2} times the work{late}.");
    let second = match curable {
        Some(cause) if cause.costs >= 0.5 * gain.max(GAIN_MIN) => {
            format!("But look at the cause first: {}", cured(cause))
        }
        _ => {
            let stay = found.over_median.stay.map_or(String::new(), |stay| {
                format!(", and who is slow stays so {}", often(stay))
            });
            // Of a median of 0 there is none.
            if ratio == 0.0 {
                return format!("{first} Most answers take no time at all{stay}.");
            }
            format!("An uncoded round takes {ratio:.2} times its median answer{stay}.")
        }
    };
    format!("{first} {second}")
}

/// The families of which something is true.
fn names<'a>(
    question: &'a Question<'_>,
    which: impl Fn(&Family) -> bool,
) -> impl Iterator<Item = &'a str> {
    question.families.iter().filter(move |family| which(family)).map(|family| family.name)
}

fn often(stay: f64) -> String {
    format!("in the next round {:.0} % of the time", 100.0 * stay)
}

fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// What to keep in mind about the trace.
pub(super) fn notes(
    question: &Question<'_>,
    jobs: usize,
    uncoded: &Candidate,
    choice: &Candidate,
) -> Vec<String> {
    let mut notes = Vec::new();
    let unit = if question.accumulate > 1 { "step" } else { "round" };
    let cells = || question.rows.iter().flatten();
    let mut sorted: Vec<f64> = cells().copied().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let median = super::super::percentile(&sorted, 0.5);
    let whole = cells().all(|delay| delay.fract() == 0.0);
    if median > SECONDS_MAX || whole && median >= SECONDS_MAX / 2.0 {
        notes.push(format!(
            "the median answer takes {median} s: if these are milliseconds, divide by 1000 (trace \
             import --per-second 1000); \
             gains stay the same, but slope and dispatch are in seconds"
        ));
    }
    if question.rows[0].len() == 1 {
        notes.push("one worker: no other could stand in for it".into());
    }
    if question.rows[0].len() > 1 && sorted.first() == sorted.last() {
        notes.push(
            "all answers take exactly the same time: no round waits for a worker, and a real \
            trace would not look like this"
                .into(),
        );
    }
    if jobs < ROUNDS_MIN {
        notes.push(format!(
            "a trace of {} is shorter than {ROUNDS_MIN}: times are those of this trace alone, no \
             code is recommended, and how sure a gain is cannot be said",
            several(jobs, unit)
        ));
    } else if jobs < ROUNDS_ENOUGH {
        notes.push(format!(
            "{jobs} {unit}s say little about what happens once in {ROUNDS_ENOUGH}: \
            rare stalls may be missing"
        ));
    }
    if question.accumulate > 1 && choice.delay > 0 {
        notes.push(
            "schemes over rounds are replayed as if lateness ended with each round; if it lasts \
             longer, they look better here than they are"
                .into(),
        );
    }
    if choice.scheme.traits().feedback {
        let pull = if choice.delay == 0 {
            format!(" and that a pull costs {} s (--dispatch)", question.dispatch)
        } else {
            String::new()
        };
        let mut others: Vec<&str> = names(question, |family| family.traits.feedback).collect();
        if !others.contains(&choice.scheme.family()) {
            others.push(choice.scheme.family());
        }
        notes.push(format!(
            "this assumes that any worker can read any sample{pull}; where workers cannot, leave \
             out {}",
            listed(others)
        ));
    }
    let independent = uncoded.closed_form.filter(|time| jobs >= ROUNDS_MIN && *time > 0.0);
    if let Some(time) = independent.filter(|time| (uncoded.time_per_job / time - 1.0).abs() > AGREE)
    {
        notes.push(format!(
            "workers are not slow independently of one another: if they were, an uncoded job would \
             take {time:.4} s and not {:.4}",
            uncoded.time_per_job
        ));
    }
    notes
}
