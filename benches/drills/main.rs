//! What faults cost: of every fault at every phase of a step, the longest time without a committed
//! step, and whether every step was committed with the gradient of a run without faults. Workers
//! and coordinator are processes; a fault befalls worker 0 (or the coordinator) once, at one step;
//! its partner, which computes the same, is a tenth slower. A worker that comes back late has one
//! partner alone, which goes on meanwhile and then hands over its state.
//!
//! `cargo bench -p codedgrad --bench drills -- --exchange sharded`;
//! `--only stopped`, `--only sums` or the like for a part of it; `--compute 1` for steps of a
//! second instead of a tenth, `--pause 0.2` for how long what is slow stands still, instead of ten
//! steps. `--reconnects 3000` instead cuts connections so often in all, by seeds, and says of how
//! many runs the gradients were equal: some ten minutes.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures time")]

mod crew;
mod parts;
#[path = "../processes/mod.rs"]
mod processes;
#[path = "../../tests/proxy/mod.rs"]
mod proxy;
mod reconnects;
mod table;
mod tap;

use crew::{Crew, replace};
use parts::{End, UNITS, WORKERS};
use processes::{Outcome, again, median, token};
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use table::{gaps, show};
use tap::{Drill, FAULTS, Fault, HAPPENED, PHASES, Phase};

/// How often a run is made until its fault has happened.
const TRIES: usize = 9;

/// A run, and what happens in it.
#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Case {
    workers: usize,
    exchange: String,
    elements: usize,
    steps: u64,
    /// Seconds of computing in a step.
    compute_seconds: f64,
    /// For how long, at most, the coordinator is at something else at each commit.
    busy_seconds: f64,
    drill: Option<Drill>,
    end: Option<End>,
}

impl Case {
    /// The time for one of a worker's units; every second worker takes a tenth longer, unless both
    /// of a group are to be asked: who is late when a step begins is not expected to help.
    fn part(&self, worker: u32) -> Duration {
        let equal = self.drill.is_some_and(|drill| drill.phase == Phase::Asked);
        Duration::from_secs_f64(
            self.compute_seconds / f64::from(self.units_of_task())
                * if worker % 2 == 1 && !equal { 1.1 } else { 1.0 },
        )
    }

    /// Units of a worker's task: under `groups:s=1` two workers compute each.
    fn units_of_task(&self) -> u32 {
        UNITS / self.workers as u32 * 2
    }
}

/// What came of a run: of every step, when it was committed first, and its gradient's digest.
type Commits = BTreeMap<u64, (f64, String)>;

/// Reads a coordinator's commits until the last step or its end.
fn read(child: &mut Child, steps: u64, commits: &mut Commits) -> Outcome<()> {
    let Some(out) = child.stdout.take() else { return Err("nothing to read from".into()) };
    for line in BufReader::new(out).lines() {
        let line = line?;
        let [step, time, digest, coverage] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(line.into());
        };
        let step: u64 = step.parse()?;
        let digest =
            if coverage == "1" { digest.to_owned() } else { format!("{coverage} of {digest}") };
        if let Some((_, first)) = commits.get(&step).filter(|known| known.1 != digest) {
            return Err(format!("step {step} was committed as {first} and as {digest}").into());
        }
        commits.entry(step).or_insert((time.parse()?, digest));
        if step + 1 == steps {
            break;
        }
    }
    Ok(())
}

/// A run with its fault. Now and then worker 0's partner has answered before it, and it never comes
/// to the phase.
fn sail(case: &Case) -> Outcome<Commits> {
    for _ in 0..TRIES {
        let (commits, happened) = sail_once(case)?;
        if happened || case.drill.is_none() {
            return Ok(commits);
        }
    }
    Err("it never came to that".into())
}

fn sail_once(case: &Case) -> Outcome<(Commits, bool)> {
    let token = token();
    let folder = env::temp_dir().join(format!("drill-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let words = vec![serde_json::to_string(case)?];
    let place = format!("{token} {}", folder.display());
    let mut commits = Commits::new();
    let mut coordinator = again(&words, "DRILL_COORDINATOR", &place)?;
    let address = folder.join("address");
    while !address.exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let address = fs::read_to_string(address)?;
    let place_of = |me: usize, drilled: bool| format!("{address} {token} {me} {drilled}");
    let workers = (0..case.workers)
        .map(|me| again(&words, "DRILL_WORKER", &place_of(me, me == 0)))
        .collect::<Result<_, _>>()?;
    let crew = Crew(Arc::new(Mutex::new(workers)), Arc::default());
    let after = case.drill.and_then(|drill| match drill.fault {
        Fault::Back => Some(Duration::ZERO),
        Fault::BackLate => Some(Duration::from_secs_f64(drill.slow_seconds)),
        _ => None,
    });
    if let Some(after) = after {
        replace(&crew, words.clone(), place_of(0, false), after);
    }
    let mut read_all = || -> Outcome<()> {
        read(&mut coordinator, case.steps, &mut commits)?;
        if case.end.is_some() {
            coordinator.wait()?;
            coordinator = again(&words, "DRILL_COORDINATOR", &place)?;
            read(&mut coordinator, case.steps, &mut commits)?;
        }
        Ok(())
    };
    let ended = read_all();
    let said = crew.children().first_mut().and_then(|victim| victim.stdout.take());
    drop(crew);
    drop(coordinator.kill());
    coordinator.wait()?;
    fs::remove_dir_all(folder)?;
    let mut text = String::new();
    said.into_iter().try_for_each(|mut said| said.read_to_string(&mut text).map(drop))?;
    ended.map(|()| (commits, text.contains(HAPPENED)))
}

fn drills(words: &[String]) -> Outcome<()> {
    let value = |name: &str| {
        words.iter().position(|word| word == name).and_then(|at| words.get(at + 1)).cloned()
    };
    let quick = words.iter().any(|word| word == "--test");
    let only = value("--only").unwrap_or_default();
    let seconds = |name: &str| value(name).map(|text| text.parse::<f64>()).transpose();
    let (elements, steps, usual_seconds) =
        if quick { (1 << 17, 5, 0.02) } else { (1 << 19, 30, 0.1) };
    let compute_seconds = seconds("--compute")?.unwrap_or(usual_seconds);
    let pause = seconds("--pause")?;
    let at = steps / 4;
    if let Some(count) = value("--reconnects") {
        return reconnects::reconnects(
            &value("--exchange").unwrap_or("star,sharded,hold".into()),
            count.parse()?,
        );
    }
    for exchange in value("--exchange").unwrap_or("sharded".into()).split(',') {
        let case = Case {
            workers: WORKERS,
            exchange: exchange.into(),
            elements,
            steps,
            compute_seconds,
            busy_seconds: 0.0,
            drill: None,
            end: None,
        };
        let calm = sail(&case)?;
        let pair = Case { workers: 2, ..case.clone() };
        let calm_pair = sail(&pair)?;
        let (step, longest) =
            (median(gaps(&calm)), gaps(&calm).into_iter().skip(1).fold(0.0, f64::max));
        println!("\n{exchange}: a step takes {step:.3} s, without faults at most {longest:.3} s\n");
        println!(
            "| fault | phase | longest s | steps | lost | gradients |\n|---|---|---|---|---|---|"
        );
        let bytes = 4 * elements as u64;
        let sharded = exchange == "sharded";
        for (fault, usual_name) in FAULTS {
            let paused = pause.filter(|_| fault == Fault::Slow);
            let fault_name = paused.map_or(usual_name.into(), |pause| format!("slow, {pause} s"));
            let (case, calm) = match fault {
                Fault::BackLate => (&pair, &calm_pair),
                _ => (&case, &calm),
            };
            let comes_to_it = |phase| match phase {
                Phase::Asked | Phase::HalfSummed => sharded && case.workers > 2,
                // Two workers have the same result: neither need send it, nor the sum.
                Phase::MidSend | Phase::AllGather => case.workers > 2,
                _ => true,
            };
            for (phase, phase_name) in PHASES.into_iter().filter(|known| comes_to_it(known.0)) {
                let (name, sent) = (
                    format!("{fault_name}, {phase_name}"),
                    if sharded { bytes / case.workers as u64 } else { bytes / 2 },
                );
                let wanted = if quick {
                    matches!(fault, Fault::Killed | Fault::BackLate) && phase == Phase::AfterDone
                } else {
                    name.contains(&only)
                };
                if wanted {
                    let drill = Drill {
                        fault,
                        phase,
                        step: at,
                        slow_seconds: pause.unwrap_or(10.0 * step),
                        sent,
                        gathered: sent,
                        summed: bytes / 8,
                        sums: sharded,
                    };
                    show(
                        &fault_name,
                        phase_name,
                        calm,
                        sail(&Case { drill: Some(drill), ..case.clone() }),
                    );
                }
            }
        }
        for (end, phase_name) in
            [(End::InCompute(at), "computing"), (End::AtCommit(at), "committed, not applied")]
        {
            if format!("coordinator restarted, {phase_name}").contains(&only) && !quick {
                show(
                    "coordinator restarted",
                    phase_name,
                    &calm,
                    sail(&Case { end: Some(end), ..case.clone() }),
                );
            }
        }
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let case =
        || -> Outcome<Case> { Ok(serde_json::from_str(words.first().map_or("", String::as_str))?) };
    if let Ok(place) = env::var("DRILL_WORKER") {
        let [address, token, me, drilled] = place.split(' ').collect::<Vec<_>>()[..] else {
            return Err("no place".into());
        };
        return parts::worker(address, token, me.parse()?, drilled.parse()?, &case()?);
    }
    if let Ok(place) = env::var("DRILL_COORDINATOR") {
        let (token, folder) = place.split_once(' ').ok_or("no place")?;
        return parts::coordinator(token, Path::new(folder), &case()?);
    }
    drills(&words)
}
