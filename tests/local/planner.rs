//! The planner: what it recommends holds on fresh draws, and bad traces get honest answers.

use codedgrad::codes::registry::{Family, Registry};
use codedgrad::codes::sequential::{Accept, Horizon};
use codedgrad::delays::{Growth, Preset};
use codedgrad::ids::Job;
use codedgrad::sim::planner::{
    Candidate, CauseKind, ClosingRules, Plan, PlanError, Question, plan,
};
use codedgrad::sim::{Close, Rules, simulate};
use std::convert::Infallible;

const WORKERS: usize = 8;

/// The families that the planner tries.
fn tried() -> Vec<Family> {
    let families = Registry::builtin().families().iter();
    families.filter(|family| family.spaces.is_some()).copied().collect()
}

pub(crate) fn families<const N: usize>(names: [&str; N]) -> [Family; N] {
    names.map(|name| *Registry::builtin().family(name).unwrap())
}

pub(crate) fn rows(preset: Preset, workers: usize, rounds: usize, seed: u64) -> Vec<Vec<f64>> {
    let answer =
        |row: Vec<f64>| row.into_iter().map(|delay| preset.unit().answer_time(delay)).collect();
    preset.rows(workers, rounds, seed).into_iter().map(answer).collect()
}

fn presets() -> Vec<Preset> {
    Preset::names().into_iter().filter_map(Preset::named).collect()
}

pub(crate) fn planned(question: &Question<'_>) -> Plan {
    plan(question, &|_| ()).unwrap()
}

/// Seconds per job by the simulator itself, where pulls are free.
pub(crate) fn simulated(candidate: &Candidate, rows: &[Vec<f64>], growth: Growth) -> f64 {
    total(candidate, rows, rows.len(), growth, 0.0) / rows.len() as f64
}

/// Seconds of so many jobs.
fn total(
    candidate: &Candidate,
    rows: &[Vec<f64>],
    jobs: usize,
    growth: Growth,
    dispatch: f64,
) -> f64 {
    let (workers, jobs) = (rows[0].len(), jobs as u64);
    let horizon =
        Horizon { workers, units: None, jobs: Job(0)..Job(jobs), accept: Accept::Lookahead };
    let mut scheme = candidate.scheme.over(horizon).unwrap();
    let rules = Rules {
        close: candidate.close,
        mu: candidate.mu.unwrap_or(1.0),
        growth: Some(growth),
        dispatch,
    };
    let mut rows = rows.iter().cycle();
    let mut next = || Ok::<_, Infallible>(rows.next().unwrap().clone());
    simulate(&mut *scheme, jobs, &mut next, &rules, &mut |_| ()).unwrap().total_time
}

#[test]
fn every_candidate_is_what_the_simulator_says() {
    let (trace, growth) = (rows(Preset::Bursts, WORKERS, 40, 2), Preset::Bursts.growth(WORKERS));
    let found = planned(&Question::new(&trace, growth));
    assert_eq!((found.workers, found.jobs), (WORKERS, 40));
    let names: Vec<&str> =
        found.candidates.iter().map(|candidate| candidate.scheme.family()).collect();
    assert!(
        tried().iter().all(|family| names.contains(&family.name)) && names.contains(&"uncoded"),
        "{names:?}"
    );
    for candidate in &found.candidates {
        assert_eq!(
            candidate.time_per_job,
            simulated(candidate, &trace, growth),
            "{}",
            candidate.scheme
        );
        assert_eq!(candidate.gain, 1.0 - candidate.time_per_job / found.baseline);
        assert!(!candidate.reason.is_empty());
    }
    assert!(found.candidates.is_sorted_by(|a, b| a.time_per_job <= b.time_per_job));
    assert!(found.choice().exact);
    // What it saves is told by other rounds than those that chose it.
    let interval = found.interval.unwrap();
    let middle = f64::midpoint(interval.low, interval.high);
    assert!((middle - found.gain).abs() < 1e-9, "{interval:?} {}", found.gain);
    assert!(
        found.front.is_sorted_by(|a, b| a.work < b.work && a.time_per_job > b.time_per_job),
        "{:?}",
        found.front
    );
    assert!(found.front[0].work <= 1.0 && found.front.iter().all(|point| point.exact));
    assert_eq!(found.front.last().unwrap().time_per_job, found.choice().time_per_job);
}

/// A step of several rounds is one job of their summed times, or, where jobs are late, as many
/// rounds and what they leave, on its own.
#[test]
fn every_candidate_for_steps_is_what_the_simulator_says() {
    const ROUNDS: usize = 4;
    let (trace, dispatch) = (rows(Preset::Bursts, 6, 24 * ROUNDS, 2), 0.02);
    let additive = Growth::Additive { base: 1.0 / 6.0, slope: 1.5 };
    for (growth, of_steps) in [
        (Growth::usual(None, 6), Growth::usual(None, 6)),
        (additive, Growth::Additive { base: 1.0 / 6.0, slope: 1.5 * ROUNDS as f64 }),
    ] {
        let found = planned(&Question {
            accumulate: ROUNDS,
            dispatch,
            max_delay: 1,
            ..Question::new(&trace, growth)
        });
        assert_eq!((found.growth, found.jobs), (growth, 24));
        let sum = |step: &[Vec<f64>]| {
            (0..6).map(|worker| step.iter().map(|row| row[worker]).sum()).collect::<Vec<f64>>()
        };
        let steps: Vec<Vec<f64>> = trace.chunks(ROUNDS).map(sum).collect();
        for candidate in &found.candidates {
            let time = if candidate.delay == 0 {
                total(candidate, &steps, 24, of_steps, dispatch) / 24.0
            } else {
                let of_step = |step: usize| {
                    // The rounds after the step's own finish what is late in it.
                    let from = trace.iter().cycle().skip(step * ROUNDS).take(trace.len());
                    let from: Vec<Vec<f64>> = from.cloned().collect();
                    total(candidate, &from, ROUNDS, growth, dispatch)
                };
                (0..24).map(of_step).sum::<f64>() / 24.0
            };
            let off = (time / candidate.time_per_job - 1.0).abs();
            assert!(off < 1e-9, "{}: {time} {}", candidate.scheme, candidate.time_per_job);
        }
        assert!(found.candidates.iter().any(|candidate| candidate.delay > 0));
    }
}

#[test]
fn limits_are_kept() {
    let (trace, growth) = (rows(Preset::Iid, WORKERS, 40, 1), Preset::Iid.growth(WORKERS));
    let found = planned(&Question { max_delay: 1, max_work: 1.3, ..Question::new(&trace, growth) });
    assert!(
        found.candidates.iter().all(|candidate| candidate.delay <= 1 && candidate.work <= 1.3),
        "{:?}",
        found.candidates
    );
    let fixed = families(["groups", "m-sgc"]);
    let found = planned(&Question { families: &fixed, ..Question::new(&trace, growth) });
    assert_eq!(found.candidates.len(), 3);
    let inexact = planned(&Question {
        inexact: true,
        families: &families(["drop"]),
        ..Question::new(&trace, growth)
    });
    let exact =
        planned(&Question { families: &families(["drop"]), ..Question::new(&trace, growth) });
    assert!(inexact.recommended.starts_with("drop") && inexact.choice().coverage < 1.0);
    assert_eq!((exact.recommended.as_str(), exact.gain), ("uncoded", 0.0));
    let dropped =
        exact.candidates.iter().find(|candidate| candidate.scheme.family() == "drop").unwrap();
    assert!(dropped.reason.contains("biased"), "{}", dropped.reason);
}

/// A pull that costs as much as a share makes the queue lose.
#[test]
fn the_queue_pays_for_its_pulls() {
    let (trace, growth) = (rows(Preset::Bursts, WORKERS, 40, 1), Preset::Bursts.growth(WORKERS));
    let queue = |dispatch| {
        let families = families(["queue"]);
        planned(&Question { dispatch, families: &families, ..Question::new(&trace, growth) })
    };
    let (free, dear) = (queue(0.0), queue(1.0));
    assert!(free.recommended.starts_with("queue") && free.gain > 0.2, "{}", free.why);
    assert_eq!(dear.recommended, "uncoded", "{}", dear.why);
}

/// One model with accumulation: within a step uncoded workers do not wait for one another, and
/// rounds within it are barriers that the queue over the whole step does without.
#[test]
fn a_step_of_several_rounds_is_one_job() {
    let (trace, growth) =
        (rows(Preset::Proportional, WORKERS, 120, 3), Preset::Proportional.growth(WORKERS));
    let (rounds, steps) = (
        planned(&Question::new(&trace, growth)),
        planned(&Question { accumulate: 4, ..Question::new(&trace, growth) }),
    );
    assert_eq!((rounds.jobs, steps.jobs), (120, 30));
    assert!(
        steps.baseline < 0.95 * 4.0 * rounds.baseline,
        "{} {}",
        steps.baseline,
        rounds.baseline
    );
    assert!(steps.recommended.starts_with("queue"), "{}", steps.why);
    assert!(
        steps
            .candidates
            .iter()
            .any(|candidate| candidate.scheme.family() == "defer" && candidate.delay > 0)
    );
    let late = rows(Preset::Iid, WORKERS, 120, 3);
    let steps =
        planned(&Question { accumulate: 4, ..Question::new(&late, Preset::Iid.growth(WORKERS)) });
    assert!(
        steps.choice().delay > 0
            && steps.notes.iter().any(|note| note.contains("as if lateness ended with each round")),
        "{}",
        steps.why
    );
}

/// A trace to plan on, and what may be recommended.
struct Draw<'a> {
    preset: Preset,
    workers: usize,
    rounds: usize,
    seed: u64,
    families: &'a [Family],
}

/// Schemes whose assignment is fixed: they need no feedback, and no worker reads another's data.
const FIXED: [&str; 4] = ["groups", "min-load", "sr-sgc", "m-sgc"];
const WITHOUT_PULLS: [&str; 5] = ["groups", "min-load", "defer", "sr-sgc", "m-sgc"];

/// How a recommendation fares on a fresh draw: its time by the best scheme's there, and by
/// uncoded's.
fn regret(draw: &Draw<'_>) -> (f64, f64) {
    let Draw { preset, workers, rounds, seed, families } = *draw;
    let growth = preset.growth(workers);
    let (trace, fresh) =
        (rows(preset, workers, rounds, seed), rows(preset, workers, rounds, seed + 1000));
    let choice = planned(&Question { families, ..Question::new(&trace, growth) }).choice().clone();
    let there = planned(&Question { families, ..Question::new(&fresh, growth) });
    let exact = there.candidates.iter().filter(|candidate| candidate.exact);
    let best = exact.map(|candidate| candidate.time_per_job).fold(f64::INFINITY, f64::min);
    let time = simulated(&choice, &fresh, growth);
    println!(
        "{} {workers} {seed}: {} {time:.4}, best {best:.4}, uncoded {:.4}",
        preset.name(),
        choice.scheme,
        there.baseline
    );
    (time / best, time / there.baseline)
}

fn regrets(draws: &[Draw<'_>]) {
    let (mut by_best, by_uncoded): (Vec<f64>, Vec<f64>) = draws.iter().map(regret).unzip();
    by_best.sort_by(f64::total_cmp);
    let worst = by_uncoded.iter().copied().fold(0.0, f64::max);
    println!(
        "median {:.4} and worst {:.4} of the best, worst {worst:.4} of uncoded",
        by_best[by_best.len() / 2],
        by_best[by_best.len() - 1]
    );
    assert!(by_best[by_best.len() / 2] <= 1.05, "{by_best:?}");
    assert!(worst <= 1.03, "{by_uncoded:?}");
}

#[test]
fn recommendations_hold_on_fresh_draws() {
    for families in [&tried()[..], &families(FIXED)] {
        let draw = |preset| Draw { preset, workers: 6, rounds: 30, seed: 1, families };
        regrets(&presets().into_iter().map(draw).collect::<Vec<_>>());
    }
}

/// `cargo test --release -p codedgrad --no-default-features --test local regret -- --ignored
/// --nocapture`
#[test]
#[ignore = "minutes, even when optimized"]
fn regret_over_30_traces_of_all_presets() {
    let sizes = [(8, 100), (16, 100), (32, 60), (8, 40)];
    for families in [&tried()[..], &families(WITHOUT_PULLS), &families(FIXED)] {
        let draw = |draw: usize| {
            let ((workers, rounds), preset) = (sizes[draw / 9], presets()[draw % presets().len()]);
            Draw { preset, workers, rounds, seed: draw as u64, families }
        };
        regrets(&(0..30).map(draw).collect::<Vec<_>>());
    }
}

/// Nineteen rounds in which the last worker takes 2.35 s: no formula for independent workers knows
/// how long an uncoded round takes, and the rounds do.
#[test]
fn few_rounds_speak_for_themselves_and_for_no_code() {
    let mut row = vec![1.0; 8];
    row[7] = 2.35;
    let trace = vec![row; 19];
    let tried = families(["groups", "drop"]);
    let question =
        Question { max_delay: 0, families: &tried, ..Question::new(&trace, Growth::AS_RECORDED) };
    let found = planned(&question);
    assert!((found.baseline - 2.35).abs() < 1e-12, "{}", found.baseline);
    assert_eq!((found.recommended.as_str(), found.interval), ("uncoded", None));
    assert!(
        found.why.contains("a trace of 19 rounds is too short to recommend a code"),
        "{}",
        found.why
    );
    assert!(found.notes.iter().any(|note| note.contains("shorter than 20")), "{:?}", found.notes);
    for candidate in &found.candidates {
        let time = simulated(candidate, &trace, Growth::AS_RECORDED);
        assert!((candidate.time_per_job / time - 1.0).abs() < 1e-9, "{}", candidate.scheme);
    }
    // With one round more there is a recommendation.
    let trace = vec![trace[0].clone(); 20];
    let found = planned(&Question { rows: &trace, ..question });
    assert!(found.recommended.starts_with("groups"), "{}", found.why);
}

#[test]
fn one_round_shows_nobody_to_be_always_slow() {
    let trace = vec![vec![1.0, 5.0]];
    let found = planned(&Question::new(&trace, Growth::Proportional { base: 0.5 }));
    assert_eq!(found.baseline, 5.0);
    assert!(found.causes.is_empty(), "{:?}", found.causes);
    assert!(!found.why.contains("always"), "{}", found.why);
}

#[test]
fn closed_forms_are_those_of_independent_workers() {
    let growth = Growth::Additive { base: 0.125, slope: 0.5 };
    let replayed = planned(&Question::new(&rows(Preset::Iid, WORKERS, 2000, 2), growth));
    let uncoded = replayed.candidates.iter().find(|candidate| candidate.scheme == "uncoded");
    let (time, closed) = (uncoded.unwrap().time_per_job, uncoded.unwrap().closed_form.unwrap());
    assert!((time / closed - 1.0).abs() < 0.02, "independent workers: {time} {closed}");
}

/// All rounds wait for the slowest within twice the fastest answer, as the simulator does it.
#[test]
fn the_rules_of_the_paper_are_those_of_the_simulator() {
    let (trace, growth) = (rows(Preset::Bursts, WORKERS, 40, 2), Preset::Bursts.growth(WORKERS));
    let tried = families(["groups", "sr-sgc", "m-sgc"]);
    let question = Question { families: &tried, ..Question::new(&trace, growth) };
    let found = planned(&Question { rules: ClosingRules::Paper, ..question });
    assert_eq!(found.candidates.len(), 4);
    for candidate in &found.candidates {
        assert_eq!((candidate.close, candidate.mu), (Close::All, Some(1.0)));
        let time = simulated(candidate, &trace, growth);
        assert!((candidate.time_per_job / time - 1.0).abs() < 1e-9, "{}", candidate.scheme);
    }
    let usual = planned(&question);
    assert!(usual.candidates.iter().any(|candidate| candidate.close == Close::Decodable));
}

/// What a cause proposes is a candidate, timed as all are.
#[test]
fn workers_of_unequal_speeds_get_unequal_shares() {
    let row = |round: usize| {
        let noise = |worker: usize| 0.001 * ((round * 5 + worker * 3) % 10) as f64;
        (0..8).map(|worker| if worker == 7 { 2.36 } else { 1.0 } + noise(worker)).collect()
    };
    let rows: Vec<Vec<f64>> = (0..100).map(row).collect();
    let growth = Growth::Proportional { base: 0.125 };
    let families = families(["groups", "interval"]);
    let question = Question { families: &families, max_delay: 0, ..Question::new(&rows, growth) };
    let found = planned(&question);
    let choice = found.choice();
    assert!(found.recommended.starts_with("interval:speeds=1x7+0.42"), "{}", found.recommended);
    assert!(choice.gain > 0.52 && choice.work < 1.001, "{choice:?}");
    assert!((choice.time_per_job - simulated(choice, &rows, growth)).abs() < 1e-12);
    assert!(found.causes[0].words.contains(&found.recommended), "{:?}", found.causes);
    let others = Question { families: &families[..1], ..question };
    assert!(planned(&others).candidates.iter().all(|it| it.scheme.family() != "interval"));
}

/// A trace that is too short to say, or unsure, has no second reason that contradicts the first.
#[test]
fn what_would_pay_is_not_said_to_cost_as_much_as_the_wait() {
    let rows = rows(Preset::Hotspot, WORKERS, 1, 1);
    let growth = Growth::usual(Some(Preset::Hotspot), WORKERS);
    let found = planned(&Question { max_delay: 0, ..Question::new(&rows, growth) });
    assert!(found.why.contains("too short to recommend a code"), "{}", found.why);
    assert!(!found.why.contains("compute twice"), "{}", found.why);
}

#[test]
fn times_of_0_are_refused_or_have_no_ratio() {
    let growth = Growth::Proportional { base: 0.25 };
    let rows = vec![vec![0.0; 4]; 30];
    let refused = plan(&Question::new(&rows, growth), &|_| ()).unwrap_err();
    assert_eq!(refused, PlanError::NoTime);
    let row = |round: usize| vec![0.0, 0.0, if round.is_multiple_of(3) { 5.0 } else { 0.0 }, 0.0];
    let rows: Vec<Vec<f64>> = (0..100).map(row).collect();
    let found = planned(&Question { max_delay: 0, ..Question::new(&rows, growth) });
    let reasons = found.candidates.iter().map(|candidate| &candidate.reason);
    for said in reasons.chain([&found.why]) {
        assert!(!said.contains("inf") && !said.contains("NaN"), "{said}");
    }
}

/// The floor that was worked out of a time may lie a digit above it.
#[test]
fn the_last_digit_of_a_floor_is_no_refusal() {
    let (load, fastest) = (1.0 / 6.0, 0.021);
    let growth = Growth::Additive { base: load, slope: fastest / load };
    assert!(load * (fastest / load) > fastest);
    let rows: Vec<Vec<f64>> = (0..40)
        .map(|it| vec![fastest, 0.03, 0.03, 0.03, 0.03, if it % 4 == 0 { 0.3 } else { 0.03 }])
        .collect();
    let found = planned(&Question { max_delay: 0, ..Question::new(&rows, growth) });
    assert!(found.baseline > 0.03 && found.baseline < 0.3);
}

#[test]
fn traces_that_teach_nothing_are_left_uncoded() {
    let constant = vec![vec![2.0; 4]; 30];
    let proportional = |workers: usize| Growth::Proportional { base: 1.0 / workers as f64 };
    let found = planned(&Question::new(&constant, proportional(4)));
    assert_eq!((found.recommended.as_str(), found.baseline), ("uncoded", 2.0));
    assert_eq!(found.interval, None);
    assert!(found.notes.iter().any(|note| note.contains("exactly the same time")));
    let alone: Vec<Vec<f64>> = rows(Preset::Iid, 1, 40, 1);
    let found = planned(&Question::new(&alone, proportional(1)));
    assert_eq!((found.recommended.as_str(), found.candidates.len()), ("uncoded", 1));
    assert!(found.notes.iter().any(|note| note.contains("one worker")));
}

/// One stall in 60 rounds: whether it comes again cannot be known, and a code would cost 14 % until
/// it does.
#[test]
fn what_one_round_says_is_not_enough() {
    let mut trace = rows(Preset::Calm, 8, 60, 1);
    trace[30][2] = 60.0;
    let families = families(["groups"]);
    let found =
        planned(&Question { families: &families, ..Question::new(&trace, Preset::Calm.growth(8)) });
    let groups =
        found.candidates.iter().find(|candidate| candidate.scheme.family() == "groups").unwrap();
    assert!(groups.gain > 0.05, "{groups:?}");
    assert!(
        found.recommended == "uncoded" && found.why.contains("record more rounds"),
        "{}",
        found.why
    );
    assert!(groups.reason.contains("too unsure"), "{}", groups.reason);
}

#[test]
fn dead_workers_slow_shares_and_milliseconds_are_named() {
    let growth = Growth::Proportional { base: 0.25 };
    let mut dead = rows(Preset::Calm, 4, 40, 1);
    dead.iter_mut().skip(20).for_each(|row| row[1] = 1e7);
    let found = planned(&Question::new(&dead, growth));
    assert_eq!(
        (found.causes[0].kind, &found.causes[0].workers[..]),
        (CauseKind::DeadWorkers, &[1][..])
    );
    assert!(
        found.recommended != "uncoded" && found.why.contains("has stopped answering (round 20 on)"),
        "{}",
        found.why
    );

    // Times that follow the length of documents: copies would be as slow.
    let costs: Vec<Vec<f64>> = rows(Preset::Proportional, 4, 60, 1);
    let found = planned(&Question { share_costs: Some(&costs), ..Question::new(&costs, growth) });
    assert_eq!(
        (found.recommended.as_str(), found.causes[0].kind),
        ("uncoded", CauseKind::SlowShares)
    );
    assert!(found.why.contains("cut shares of equal cost"), "{}", found.why);
    let without = planned(&Question::new(&costs, growth));
    assert!(
        without.recommended != "uncoded",
        "blamed on the workers, it would pay: {}",
        without.why
    );

    let milliseconds: Vec<Vec<f64>> = rows(Preset::Iid, 4, 40, 1)
        .into_iter()
        .map(|row| row.into_iter().map(|x| 800.0 * x).collect())
        .collect();
    let found = planned(&Question::new(&milliseconds, growth));
    assert!(found.notes.iter().any(|note| note.contains("milliseconds")), "{:?}", found.notes);
}

#[test]
fn what_cannot_be_a_trace_is_refused() {
    let growth = Growth::Additive { base: 0.5, slope: 1.0 };
    let refused = |rows: &[Vec<f64>]| plan(&Question::new(rows, growth), &|_| ()).unwrap_err();
    assert_eq!(refused(&[]), PlanError::Empty);
    assert_eq!(refused(&[vec![]]), PlanError::Empty);
    assert_eq!(
        refused(&[vec![1.0, 2.0], vec![1.0]]).to_string(),
        "round 2 has a time for 1 worker, not for 2"
    );
    assert_eq!(
        refused(&[vec![1.0, f64::INFINITY]]).to_string(),
        "round 1, worker 1: inf is no time"
    );
    assert!(
        refused(&[vec![1.0, 0.25]]).to_string().contains("less than base load x slope = 0.5 s")
    );
    let trace = vec![vec![1.0, 2.0]; 30];
    let asked = |question: Question<'_>| plan(&question, &|_| ()).unwrap_err().to_string();
    let question = Question::new(&trace, growth);
    assert!(
        asked(Question { max_work: 0.5, ..question })
            .contains("max_work = 0.5: must be a number of at least 1")
    );
    assert!(asked(Question { dispatch: f64::NAN, ..question }).contains("dispatch"));
    assert_eq!(
        refused(&[vec![1.0, 1e308]]).to_string(),
        "round 1, worker 1: 1e308 is no time of at most 1e9 s"
    );
    for (growth, needle) in [
        (Growth::Proportional { base: 0.0 }, "base load = 0: must be a number of at least 1e-9"),
        (Growth::Proportional { base: f64::NAN }, "base load = NaN: must be a number of"),
        (Growth::Additive { base: 0.0, slope: 1e308 }, "slope = 1e308: must be at most 1e9"),
        (Growth::Additive { base: 0.0, slope: -1.0 }, "slope = -1: must be a number of"),
    ] {
        let error = asked(Question { accumulate: 2, ..Question::new(&trace, growth) });
        assert!(error.starts_with(needle), "{error}");
    }
    let uneven = vec![vec![1.0, 1e308, 1e308], vec![1e308, 1.0, 1e308], vec![1.0; 3]];
    let times = vec![vec![1.0, 2.0, 3.0], vec![3.0, 1.0, 2.0], vec![2.0, 2.0, 3.0]];
    let error = asked(Question { share_costs: Some(&uneven), ..Question::new(&times, growth) });
    assert!(error.contains("do these costs belong to this trace"), "{error}");
    assert!(
        asked(Question { accumulate: 31, ..question }).contains("does not fit into a trace of 30")
    );
    assert!(
        asked(Question { share_costs: Some(&trace[1..]), ..question })
            .contains("costs of shares for 29 rounds")
    );
}
