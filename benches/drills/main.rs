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

mod case;
mod crew;
mod parts;
#[path = "../processes/mod.rs"]
mod processes;
#[path = "../../tests/proxy/mod.rs"]
mod proxy;
mod reconnects;
mod runs;
mod table;
mod tap;

use case::{Case, End, WORKERS};
use processes::{Outcome, median};
use runs::sail;
use std::env;
use std::path::Path;
use table::{gaps, show};
use tap::{Drill, FAULTS, Fault, PHASES, Phase};

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
    let mut rows = Vec::new();
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
                    let found = sail(&Case { drill: Some(drill), ..case.clone() });
                    rows.push(show(&fault_name, phase_name, calm, found));
                }
            }
        }
        for (end, phase_name) in
            [(End::InCompute(at), "computing"), (End::AtCommit(at), "committed, not applied")]
        {
            if format!("coordinator restarted, {phase_name}").contains(&only) && !quick {
                let found = sail(&Case { end: Some(end), ..case.clone() });
                rows.push(show("coordinator restarted", phase_name, &calm, found));
            }
        }
    }
    match rows.iter().filter(|good| !**good).count() {
        0 if rows.is_empty() => Err(format!("no fault and phase have {only:?} in them").into()),
        0 => Ok(()),
        bad => Err(format!("{bad} of {} runs lost a step or a gradient", rows.len()).into()),
    }
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
