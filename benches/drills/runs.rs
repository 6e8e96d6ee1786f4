//! A run of the drills, with or without a fault.

use super::case::Case;
use super::crew::{Crew, replace};
use super::processes::{Outcome, again, token};
use super::tap::{Fault, HAPPENED};
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How often a run is made until its fault has happened.
const TRIES: usize = 9;

/// What came of a run: of every step, when it was committed first, and its gradient's digest.
pub(crate) type Commits = BTreeMap<u64, (f64, String)>;

/// Reads a coordinator's commits until the last step or its end.
pub(crate) fn read(child: &mut Child, steps: u64, commits: &mut Commits) -> Outcome<()> {
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
pub(crate) fn sail(case: &Case) -> Outcome<Commits> {
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
