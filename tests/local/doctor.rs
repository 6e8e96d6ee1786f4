//! The doctor against an independent implementation, and against slower ways to the same numbers.

use codedgrad::codes::SchemeSpec;
use codedgrad::codes::registry::Registry;
use codedgrad::doctor::{
    AnswerRows, Caution, Examination, ExaminedWorker, LevelShift, LevelShifts, NoReplay, Problem,
    Record, RecordedStep, RunContext, RunEvent, SlowCause, WorkReport, examine,
};
use codedgrad::sim::{Close, Rules, simulate};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::fs;
use std::path::Path;

const RUNS: [&str; 4] = ["static_uncoded", "static_groups", "made_up_uncoded", "made_up_groups"];

fn data(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/doctor");
    fs::read_to_string(folder.join(name)).unwrap()
}

fn steps(run: &str) -> Vec<RecordedStep> {
    let text = data(&format!("{run}.jsonl"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn record(steps: impl IntoIterator<Item = RecordedStep>) -> Record {
    let mut record = Record::default();
    steps.into_iter().for_each(|step| record.push(step).unwrap());
    record
}

fn examined(record: &Record) -> Examination {
    examine(record, &RunContext::default())
}

fn known_events(events: &[RunEvent]) -> RunContext<'_> {
    RunContext { registry: Registry::builtin(), events }
}

/// The examination with the names that the expected files have.
fn told(found: &Examination) -> Value {
    let what_if = &found.what_if;
    json!({
        "workers": found.workers,
        "rounds": found.rounds,
        "estimated": found.estimated,
        "time": found.time,
        "effective": found.effective,
        "replayed": what_if.replayed,
        "replay_error": what_if.replay_error,
        "slowdown": what_if.slowdown,
        "worst_workers": what_if.worst_workers,
        "slow_rounds": what_if.slow_rounds,
        "of_workers": found.of_workers,
        "changes": found.changes,
    })
}

/// Compares every key that is expected.
fn compare(at: &str, found: &Value, expected: &Value) {
    match (found, expected) {
        (Value::Object(_), Value::Object(expected)) => {
            for (key, expected) in expected {
                compare(&format!("{at}.{key}"), &found[key], expected);
            }
        }
        (Value::Array(found), Value::Array(expected)) => {
            assert_eq!(found.len(), expected.len(), "{at}");
            for (place, (found, expected)) in found.iter().zip(expected).enumerate() {
                compare(&format!("{at}[{place}]"), found, expected);
            }
        }
        (Value::Number(found), Value::Number(expected)) => {
            let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
            let relative = if at.ends_with("effective") { 1e-8 } else { 1e-9 };
            let near = (found - expected).abs() <= (relative * expected.abs()).max(1e-12);
            assert!(near, "{at}: {found}, expected {expected}");
        }
        _ => assert_eq!(found, expected, "{at}"),
    }
}

#[test]
fn examinations_agree_with_an_independent_implementation() {
    for run in RUNS {
        let found = told(&examined(&record(steps(run))));
        let expected: Value = serde_json::from_str(&data(&format!("{run}.expected.json"))).unwrap();
        assert!(expected.as_object().unwrap().len() >= 10, "{run}");
        compare(run, &found, &expected);
    }
}

/// The kinds of findings, their workers, and since which round.
fn kinds(found: &Examination) -> Vec<(&'static str, Vec<usize>, Option<u64>)> {
    let of = |finding: &codedgrad::doctor::Finding| {
        (finding.kind(), finding.workers(), finding.since().map(|since| since.round))
    };
    found.findings.iter().map(of).collect()
}

#[test]
fn findings_come_the_dearest_first() {
    let of = |run| kinds(&examined(&record(steps(run))));
    let (lost, rounds) = (("lost-time", vec![], None), ("slow-rounds", vec![], None));
    let slower = ("slower-since", vec![5], Some(60));
    let slightly = ("slightly-slow-workers", vec![2], None);
    assert_eq!(
        of("made_up_groups"),
        [lost.clone(), rounds.clone(), slightly.clone(), slower.clone()]
    );
    assert_eq!(of("made_up_uncoded"), [lost, slower, rounds, slightly]);
    for run in ["static_uncoded", "static_groups"] {
        assert_eq!(of(run), [("constantly-slow-workers", vec![7], None)], "{run}");
    }
}

#[test]
fn the_simulator_gives_the_replayed_times() {
    for (run, seconds) in [("made_up_groups", 126.209413), ("made_up_uncoded", 147.739944)] {
        let record = record(steps(run));
        let found = simulated(record.scheme(), &AnswerRows::of(&record).rows);
        assert!((found - seconds).abs() < 1e-9 * seconds, "{run}: {found}");
        assert_eq!(examined(&record).what_if.replayed, Some(found));
    }
}

/// Seconds that a scheme takes for rows, by the simulator.
fn simulated(scheme: &str, rows: &[Vec<f64>]) -> f64 {
    let spec: SchemeSpec = scheme.parse().unwrap();
    let units = spec.natural(rows[0].len()).unwrap().units;
    let jobs = rows.len() as u64;
    let mut scheme = spec.scheme(rows[0].len(), units, 0..jobs).unwrap();
    let rules = Rules { close: Close::Decodable, mu: 1.0, growth: None, dispatch: 0.0 };
    let mut rows = rows.iter();
    let mut next = || Ok::<_, Infallible>(rows.next().unwrap().clone());
    simulate(&mut *scheme, jobs, &mut next, &rules, &mut |_| ()).unwrap().total_time
}

#[test]
fn level_shifts_agree_with_an_independent_implementation() {
    let series: Vec<Value> = serde_json::from_str(&data("levels.json")).unwrap();
    assert_eq!(series.len(), 12);
    for (at, series) in series.iter().enumerate() {
        let values: Vec<f64> = serde_json::from_value(series["values"].clone()).unwrap();
        let found = LevelShifts::of(&values);
        compare(&format!("series {at}"), &json!(found), &series["changes"]);
        let shift = series["at"].as_u64();
        match series["kind"].as_str().unwrap() {
            "none" => assert!(found.is_empty()),
            "step" => shifts_are(&found, &[shift.unwrap()]),
            "bump" => shifts_are(&found, &[shift.unwrap(), shift.unwrap() + 50]),
            kind => assert_eq!(kind, "bursts"),
        }
    }
}

/// Every shift is found within 3 values of where it is, and seen within 7.
fn shifts_are(found: &[LevelShift], expected: &[u64]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.round.abs_diff(*expected) <= 3, "{found:?} {expected}");
        assert!(found.seen - expected <= 7, "{found:?} {expected}");
    }
}

#[test]
fn a_burst_is_taken_back() {
    let burst = |at: u64| if (50..58).contains(&at) { 4.0 } else { 1.0 + (at % 3) as f64 / 100.0 };
    let mut shifts = LevelShifts::default();
    let mut seen = 0;
    for at in 0..120 {
        shifts.push(burst(at));
        seen = seen.max(shifts.found().len());
    }
    assert_eq!((seen, shifts.found().len()), (1, 0));
}

fn rows() -> impl Strategy<Value = Vec<Vec<f64>>> {
    let times = prop::sample::select(vec![0.5, 1.0, 1.0, 1.25, 2.0, 4.0]);
    prop::collection::vec(prop::collection::vec(times, 7), 2..20)
}

fn median(row: &[f64]) -> f64 {
    let mut row = row.to_vec();
    row.sort_by(f64::total_cmp);
    f64::midpoint(row[(row.len() - 1) / 2], row[row.len() / 2])
}

/// A record of a scheme whose rounds close when it can decode.
fn coded(scheme: &str, rows: &[Vec<f64>]) -> Record {
    let mut now = 0.0;
    let lines = (0..).zip(rows).map(|(step, row)| {
        let seconds = simulated(scheme, std::slice::from_ref(row));
        let arrivals: Vec<_> = row.iter().map(|time| (*time <= seconds).then_some(*time)).collect();
        let late = |(worker, time): (usize, &f64)| {
            (*time > seconds).then(|| json!([step, worker, time / 2.0, 1.0, time]))
        };
        let spent: Vec<Value> = row.iter().enumerate().filter_map(late).collect();
        let opened = now;
        now += seconds;
        let line = json!({
            "scheme": scheme, "step": step, "committed": now, "seconds": seconds, "spent": spent,
            "rounds": [
                {"round": step, "opened": opened, "seconds": seconds, "arrivals": arrivals}
            ],
        });
        serde_json::from_value::<RecordedStep>(line).unwrap()
    });
    record(lines.collect::<Vec<_>>())
}

proptest! {
    /// The what-ifs of all workers at once are those of one replay each, for groups of one, of
    /// equal and of unequal sizes, and for codes that are replayed by the simulator.
    #[test]
    fn what_ifs_are_replays(rows in rows()) {
        for scheme in ["uncoded", "groups:s=1", "groups:l=4", "groups:l=1", "min-load:s=1"] {
            let found = examined(&coded(scheme, &rows));
            prop_assert_eq!(found.estimated, Some(0.0));
            let (total, medians) = (
                simulated(scheme, &rows),
                rows.iter().map(|row| median(row)).sum::<f64>(),
            );
            prop_assert!((found.what_if.replayed.unwrap() - total).abs() < 1e-9);
            for ExaminedWorker { worker, only, saves, .. } in &found.of_workers {
                let with = |change: &dyn Fn(&mut Vec<f64>, f64)| {
                    let rows: Vec<Vec<f64>> = rows.iter().map(|row| {
                        let (mut changed, median) = (row.clone(), median(row));
                        change(&mut changed, median);
                        changed
                    }).collect();
                    simulated(scheme, &rows)
                };
                let alone = with(&|row, median| {
                    let time = row[*worker];
                    row.fill(median);
                    row[*worker] = time;
                });
                let without = with(&|row, median| row[*worker] = row[*worker].min(median));
                let only = only.unwrap();
                prop_assert!((only - alone / medians).abs() < 1e-9, "{} {}", scheme, worker);
                prop_assert!((saves.unwrap() - (1.0 - without / total)).abs() < 1e-9);
            }
        }
    }

    /// Whatever is recorded, an examination ends.
    #[test]
    fn odd_times_are_survived(rows in prop::collection::vec(
        prop::collection::vec(prop::sample::select(vec![0.0, 0.0, 1e-300, 1.0, 1e300]), 4), 0..60,
    )) {
        let found = examined(&Record::of_trace(rows.clone()).unwrap());
        prop_assert_eq!(found.rounds, rows.len());
        prop_assert!(serde_json::to_string(&told(&found)).is_ok());
    }
}

#[test]
fn reports_tell_what_nobody_waited_for() {
    let line = json!({
        "scheme": "uncoded", "step": 0, "committed": 2.0, "seconds": 2.0,
        "rounds": [{
            "round": 4, "opened": 0.0, "seconds": 2.0,
            "arrivals": [1.5, null, null, null, null],
            "delays": [0.5, 0.0, 0.25, 3.0, 0.125],
        }],
        // Half of it in 1.5 s, with 0.5 s elsewhere; nothing; an unfinished task beside an arrival.
        "spent": [[4, 1, 1.5, 0.5, 2.0], [4, 2, 1.5, 0.5, 2.0], [4, 4, 0.0, 0.0, 2.0],
            [4, 0, 9.0, 0.5, 9.0], [5, 3, 1.0, 1.0, 1.0]],
    });
    let record = record([serde_json::from_value(line).unwrap()]);
    let found = AnswerRows::of(&record);
    assert_eq!(found.rows, [[1.5, 3.5, 3.75, 4.0, 2.0]]);
    assert_eq!(found.estimated, 2);
}

/// Forty workers: 3 % of them are two.
#[test]
fn the_worst_workers_are_three_in_a_hundred() {
    let row = |round: usize| -> Vec<f64> {
        let time = |worker| match worker {
            31 if round.is_multiple_of(2) => 1.5,
            7 if round.is_multiple_of(3) => 2.0,
            _ => 1.0,
        };
        (0..40).map(time).collect()
    };
    let found = examined(&Record::of_trace((0..30).map(row)).unwrap());
    let worst = found.what_if.worst_workers.unwrap();
    assert_eq!((worst.workers, worst.explain), (vec![7, 31], 1.0));
}

#[test]
fn a_worker_slower_by_a_tenth_is_found_and_noise_is_not() {
    // Times that vary by 3 %, the same every time.
    let noise = |round: usize, worker: usize| {
        let mixed = (round * 31 + worker * 17) * 2_654_435_761 % 1_000_003;
        1.0 + 0.05 * (mixed as f64 / 1_000_003.0 - 0.5)
    };
    let found = |slow: f64| {
        let row = |round| {
            let time = |worker| noise(round, worker) * if worker == 3 { slow } else { 1.0 };
            (0..8).map(time).collect::<Vec<f64>>()
        };
        kinds(&examined(&Record::of_trace((0..100).map(row)).unwrap()))
    };
    assert_eq!(found(1.0), []);
    assert_eq!(found(1.1), [("slightly-slow-workers", vec![3], None)]);
}

#[test]
fn everybody_may_become_slower() {
    let row = |round: usize| {
        let level = if round < 70 { 1.0 } else { 1.25 };
        (0..5).map(|worker| level + 0.01 * ((round + worker) % 5) as f64).collect::<Vec<f64>>()
    };
    let found = examined(&Record::of_trace((0..140).map(row)).unwrap());
    assert_eq!(kinds(&found), [("everybody-slower-since", vec![], Some(70))]);
    assert!(found.findings[0].to_string().contains("1.25 times as long since step 70 (1:12)"));
    assert!((found.findings[0].costs.unwrap() - (1.0 - 140.0 / 157.5)).abs() < 0.01);
}

#[test]
fn part_of_a_run_is_told_by_the_runs_own_numbers() {
    let all = record(steps("made_up_uncoded"));
    let part = all.clone().between(Some(35), Some(85)).unwrap();
    let found = examined(&part);
    let slower = ("slower-since", vec![5], Some(60));
    assert_eq!(kinds(&found)[0], slower);
    assert_eq!(found.findings[0].since().unwrap().step, 60);
    let Problem::SlowerSince { because, times, .. } = found.findings[0].problem else { panic!() };
    assert_eq!(because, Some(SlowCause::Computing));
    assert!((times - 1.3).abs() < 0.02, "{times}");
    let two = examined(&all.between(Some(30), Some(31)).unwrap());
    assert_eq!((two.rounds, two.steps), (2, 2));
}

#[test]
fn less_is_said_where_less_is_known() {
    let said = |record: &Record| {
        let found = examined(record);
        assert_eq!(found.what_if.slowdown, None);
        (found.what_if.reason.unwrap().to_string(), found.of_workers.len(), found.estimated)
    };
    let first = steps("static_groups").swap_remove(0);
    let (reason, workers, _) = said(&record([first]));
    assert!(reason.contains("too few rounds to compare workers: 1,") && workers == 0, "{reason}");
    let (reason, workers, _) = said(&Record::default());
    assert!(reason.contains("workers: 0,") && workers == 0, "{reason}");
    let under = |scheme: &str| {
        let named = |step| RecordedStep { scheme: scheme.into(), ..step };
        record(steps("made_up_groups").into_iter().map(named))
    };
    let (reason, workers, estimated) = said(&under("queue:m=16"));
    assert!(reason.contains("queue:m=16 workers take tasks until none is left"), "{reason}");
    assert_eq!((workers, estimated), (8, None));
    let (reason, ..) = said(&under("gruops:s=1"));
    assert!(reason.contains("groups:s=1"), "{reason}");
    // That a worker is gone comes first, though not what it costs.
    let lost = [event("lost", &json!({"worker": 6}))];
    let gone = examine(&under("queue:m=16"), &known_events(&lost));
    assert_eq!((gone.findings[0].kind(), gone.findings[0].costs), ("dead-workers", None));
    assert!(gone.findings.len() > 1, "what is known of others follows");
    // Of schemes over rounds the pace is known where all workers have reported.
    let delayed = examined(&under("m-sgc:B=1,W=2,lambda=2"));
    assert!(matches!(delayed.what_if.reason, Some(NoReplay::Delayed { .. })));
    let slower = ("slower-since", vec![5], Some(60));
    let at = kinds(&delayed).iter().position(|kind| *kind == slower).unwrap();
    assert_eq!((delayed.findings[at].costs, delayed.what_if.replayed), (None, None));
    assert_eq!(delayed.of_workers[5].late_rounds, Some(0));
    let (reason, ..) = said(&under("uncoded"));
    assert!(reason.contains("away from the record"), "{reason}");
}

#[test]
fn a_scheme_that_changed_is_looked_at_from_its_last_change_on() {
    let using = |step: RecordedStep| {
        let scheme = if step.step < 20 { "queue:m=16" } else { "groups:s=1" };
        let using = serde_json::from_value(json!({"scheme": scheme})).unwrap();
        RecordedStep { scheme: "auto".into(), using: Some(using), ..step }
    };
    let all = record(steps("static_groups").into_iter().map(using));
    let reason = examined(&all).what_if.reason.unwrap();
    assert_eq!(reason, NoReplay::SchemeChanged { first: 20, last: 20 });
    let found = examined(&all.between(Some(20), None).unwrap());
    assert_eq!(kinds(&found), [("constantly-slow-workers", vec![7], None)]);
    assert_eq!(found.scheme, "groups:s=1");
}

fn event(kind: &str, more: &Value) -> RunEvent {
    let mut event = json!({"at": 1_700_000_150.0, "run": 0, "kind": kind, "what": "words"});
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(event).unwrap()
}

/// As long as it does not go on, and only beside the last of its steps.
#[test]
fn a_run_that_broke_off_is_told_with_why() {
    let steps = || Record::of_trace((0..20).map(|_| vec![1.0, 1.0])).unwrap();
    let event =
        |kind: &str, step: u64, what: &str| event(kind, &json!({"step": step, "what": what}));
    let end = || event("end", 20, "failed: step 20 cannot be decoded");
    let cautions = |record: &Record, events: &[RunEvent]| -> Vec<String> {
        let found = examine(record, &RunContext { events, ..RunContext::default() });
        found.cautions.iter().map(ToString::to_string).collect()
    };
    let told = "the run broke off in step 20, of which nothing is recorded: step 20 cannot be \
                decoded";
    let begin = event("begin", 0, "the run begins");
    assert_eq!(cautions(&steps(), &[begin.clone(), end()]), [told]);
    let first = steps().between(None, Some(9)).unwrap();
    let stopped = event("end", 20, "stopped by a signal");
    let resumed = event("resume", 20, "failed: no word of its own");
    assert!(cautions(&first, &[begin.clone(), end()]).is_empty());
    assert!(cautions(&steps(), &[begin, end(), resumed]).is_empty());
    assert!(cautions(&steps(), &[stopped]).is_empty());
}

#[test]
fn events_are_counted_and_judged() {
    let checkpoint = |blocked: f64| event("checkpoint", &json!({"blocked": blocked, "step": 50}));
    let mut events = vec![checkpoint(2.0), checkpoint(1.5), event("lost", &json!({"worker": 6}))];
    for _ in 0..3 {
        events.push(event("lost", &json!({"worker": 3, "step": 89})));
        events.push(event("join", &json!({"worker": 3, "step": 89})));
    }
    events.push(event("lost", &json!({"worker": 1, "step": 500})));
    let found = examine(&record(steps("made_up_groups")), &known_events(&events));
    let kinds = kinds(&found);
    assert_eq!(kinds[0].0, "lost-time");
    assert!(kinds.contains(&("checkpoint-stalls", vec![], None)), "{kinds:?}");
    assert!(kinds.contains(&("flapping", vec![3], None)), "{kinds:?}");
    assert!(kinds.contains(&("dead-workers", vec![6], None)), "{kinds:?}");
    assert_eq!((found.checkpoints.count, found.checkpoints.blocked), (2, 3.5));
    assert_eq!(found.events["lost"], 4, "that of a step beyond the record is none of it");
}

/// One round in which all workers wait for one is no run of many late ones.
#[test]
fn a_step_that_stood_still_is_named() {
    let row = |round| vec![0.2, if round == 50 { 60.0 } else { 0.2 }, 0.2, 0.2];
    let found = examined(&Record::of_trace((0..100).map(row)).unwrap());
    let [stalls] = &found.findings[..] else { panic!("{:?}", found.findings) };
    assert_eq!(stalls.to_string(), "step 50 stood still for 59.8 s: worker 1 was waited for");
    assert!((stalls.costs.unwrap() - 59.8 / 79.8).abs() < 1e-9, "{stalls:?}");
    // In the decision of a step, all of whose answers are there.
    let mut steps = steps("made_up_uncoded");
    let later = steps.split_off(30);
    for (at, step) in (30..).zip(later) {
        let mut step = step;
        step.committed += 100.0;
        step.rounds.iter_mut().filter(|_| at > 30).for_each(|round| round.opened += 100.0);
        steps.push(step);
    }
    let found = examined(&record(steps));
    assert!(kinds(&found).iter().all(|(kind, ..)| *kind != "deciding"), "{:?}", found.findings);
    let words = found.findings.iter().find(|it| it.kind() == "stalls").unwrap().to_string();
    assert!(words.ends_with(" s, all answers there: its sum was waited for"), "{words}");
}

#[test]
fn who_came_back_is_slow_still() {
    let kinds_with = |events: &[RunEvent]| {
        let found = examine(&record(steps("made_up_uncoded")), &known_events(events));
        kinds(&found)
    };
    let slow = ("slower-since", vec![5]);
    let is_slow =
        |(kind, workers, _): &(&str, Vec<usize>, Option<u64>)| (*kind, workers.clone()) == slow;
    assert!(kinds_with(&[]).iter().any(is_slow));
    let events = ["lost", "join"].map(|kind| event(kind, &json!({"worker": 5, "step": 9})));
    let found = kinds_with(&events);
    assert!(found.contains(&("came-back", vec![5], None)), "{found:?}");
    assert!(found.iter().any(is_slow), "{found:?}");
}

/// What took long in the first steps is the warm-up, and who answered in time is not waited for.
#[test]
fn a_stall_blames_nobody_who_is_innocent() {
    let row = |round| vec![0.2, if round == 0 { 60.0 } else { 0.2 }, 0.2, 0.2];
    let found = examined(&Record::of_trace((0..100).map(row)).unwrap());
    assert!(kinds(&found).iter().all(|(kind, ..)| *kind != "stalls"), "{:?}", found.findings);
    let mut steps = steps("made_up_uncoded");
    let workers = steps[30].rounds[0].arrivals.len();
    let round = &mut steps[30].rounds[0];
    round.seconds = 60.0;
    round.arrivals = vec![Some(1.0); workers];
    round.arrivals[1] = None;
    let stalls = |steps: &[RecordedStep]| {
        let found = examined(&record(steps.to_vec()));
        found.findings.iter().find(|it| it.kind() == "stalls").unwrap().clone()
    };
    let one = stalls(&steps);
    assert_eq!(one.workers(), [1], "its answer alone did not come");
    steps[30].rounds[0].arrivals[2] = None;
    let nobody = stalls(&steps);
    assert!(nobody.to_string().ends_with(" s, waiting for answers"), "{nobody}");
    assert_eq!(nobody.workers(), [0; 0]);
}

/// Rounds of workers with so many units each, whose answers come after so many seconds.
fn with_units(of_workers: &[(u64, f64)]) -> Vec<RecordedStep> {
    let mut steps = steps("made_up_uncoded");
    for step in &mut steps {
        let round = &mut step.rounds[0];
        round.arrivals = of_workers.iter().map(|(_, seconds)| Some(*seconds)).collect();
        round.delays.clear();
        round.seconds = of_workers.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
        let report = |(worker, (units, seconds)): (u64, &(u64, f64))| WorkReport {
            round: round.round,
            worker,
            computed: 0.1 * *units as f64,
            progress: 1.0,
            came: *seconds,
            units: Some(*units),
        };
        step.spent = (0..).zip(of_workers).map(report).collect();
    }
    steps
}

#[test]
fn who_has_more_to_do_is_not_called_slow() {
    let found = |of_workers: &[(u64, f64)], named: &[usize]| {
        let found = examined(&record(with_units(of_workers)));
        let finding = found.findings.iter().find(|it| it.workers() == named);
        finding.unwrap_or_else(|| panic!("{:?}", found.findings)).to_string()
    };
    // Eight units of three workers.
    assert_eq!(
        found(&[(2, 0.2), (3, 0.3), (3, 0.3)], &[1, 2]),
        "workers 1, 2 compute 3 micro-batches of a round and others 2; choose a number of \
         micro-batches divisible by the number of workers, and a scheme that gives each worker the \
         same number"
    );
    // One of them has no more than others, and one takes longer than its units would have it.
    let [two, three] = [(2, 0.2), (3, 0.3)];
    let slow = found(&[two, two, two, two, three, (2, 0.6)], &[4, 5]);
    assert!(slow.contains("times as long in almost every round"), "{slow}");
    let late = found(&[two, two, two, (3, 1.5)], &[3]);
    assert!(late.contains("times as long in almost every round"), "{late}");
}

#[test]
fn what_is_odd_is_said() {
    let mut steps = steps("made_up_uncoded");
    steps[7].at = Some(1.0);
    let wrong =
        WorkReport { round: 1, worker: 99, computed: 1.0, progress: 1.0, came: 1.0, units: None };
    steps[3].spent.push(wrong);
    let found = examined(&record(steps));
    assert_eq!(
        found.cautions,
        [Caution::UnsoundReports { count: 1 }, Caution::ClockWentBack { step: 7 }]
    );
    assert_eq!(found.effective, None);
    assert!(kinds(&found).iter().all(|(kind, ..)| *kind != "lost-time"));
    let mut steps = self::steps("made_up_uncoded");
    steps.drain(20..23);
    steps.remove(11);
    let found = examined(&record(steps));
    assert_eq!(found.cautions, [Caution::StepsMissing { count: 4, step: 23 }]);
    let rows = (0..40).map(|round| (10 * round, vec![1.0, 1.0, 1.0]));
    let found = examined(&Record::of_numbered_trace(rows).unwrap());
    assert_eq!(found.cautions, [], "the rounds of a trace have the numbers that they had");
}

/// Four workers, each late by itself in a quarter of the rounds; in none more than two are.
fn late_by_themselves() -> Vec<Vec<f64>> {
    let text = data("late_by_themselves.csv");
    let row = |line: &str| line.split(',').map(|cell| cell.parse().unwrap()).collect();
    text.lines().map(row).collect()
}

#[test]
fn workers_late_by_themselves_do_not_make_everybody_slow() {
    let found = examined(&Record::of_trace(late_by_themselves()).unwrap());
    assert_eq!(kinds(&found), [("waiting", vec![], None)]);
    let costs = found.findings[0].costs.unwrap();
    assert!((costs - (1.0 - 60.0 * 0.08 / (21.0 * 0.08 + 39.0 * 0.48))).abs() < 1e-9, "{costs}");
    assert_eq!(found.what_if.slow_rounds.unwrap().rounds, 0);
    // A round in which all four are late is slow.
    let mut rows = late_by_themselves();
    rows[7] = vec![0.48; 4];
    let found = examined(&Record::of_trace(rows).unwrap());
    assert_eq!(found.what_if.slow_rounds.unwrap().rounds, 1);
    // What one worker explains needs no other word.
    let constant = (0..60).map(|_| vec![1.0, 1.0, 4.0, 1.0]);
    let found = examined(&Record::of_trace(constant).unwrap());
    assert_eq!(kinds(&found), [("constantly-slow-workers", vec![2], None)]);
}

/// A run in which every worker computes two units a round.
fn pulled(scheme: &str, seconds_per_unit: [f64; 4]) -> Record {
    let line = |step: u64| {
        let round = json!({
            "round": step, "opened": step, "seconds": 0.98, "arrivals": [0.96, 0.98, 0.97, 0.96]
        });
        let spent = |(worker, seconds): (usize, &f64)| {
            // A longer round now and then makes no worker slow.
            let computed = 2.0 * seconds + if step % 10 == 3 { 0.1 } else { 0.0 };
            json!([step, worker, computed, 1.0, 0.98, 2])
        };
        let spent: Vec<Value> = seconds_per_unit.iter().enumerate().map(spent).collect();
        let line = json!({
            "scheme": scheme, "step": step, "committed": step + 1, "seconds": 1.0,
            "rounds": [round], "spent": spent
        });
        serde_json::from_value(line).unwrap()
    };
    record((0..40).map(line))
}

#[test]
fn who_computes_slowly_is_named_where_workers_pull_their_tasks() {
    for scheme in ["queue:m=2", "ring:reach=2"] {
        let found = examined(&pulled(scheme, [0.1, 0.1, 0.4, 0.1]));
        assert_eq!(kinds(&found), [("slow-per-unit", vec![2], None)], "{scheme}");
        let words = found.findings[0].to_string();
        assert!(words.starts_with("worker 2 computes 4.00 times as long per unit"), "{words}");
        assert_eq!(found.of_workers[2].because, Some(SlowCause::Computing));
        assert_eq!(found.of_workers[0].slow, Some(false));
        let even = examined(&pulled(scheme, [0.1, 0.1, 0.101, 0.1]));
        assert!(even.findings.is_empty(), "{:?}", even.findings);
    }
    // A record that does not tell units says nothing of any worker.
    let under = |step| RecordedStep { scheme: "queue:m=2".into(), ..step };
    let found = examined(&record(steps("made_up_groups").into_iter().map(under)));
    assert!(found.of_workers.iter().all(|worker| worker.ratio.is_none() && worker.slow.is_none()));
}
