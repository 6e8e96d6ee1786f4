//! Connections that are cut again and again while workers only call again: of how many runs every
//! step was committed with the gradient of a run without faults.

use super::case::{Case, WORKERS};
use super::crew::Crew;
use super::processes::{Outcome, again, token};
use super::proxy::Proxy;
use super::runs::{Commits, read, sail};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::env;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Longest time, in steps, between two cuts, and for which a connection is held up before it is
/// cut.
const BETWEEN: f64 = 6.0;
const HELD: f64 = 3.0;

/// Cuts connections until the run is over; how many it were.
fn cut(proxies: &[Proxy], step_seconds: f64, seed: u64, over: &AtomicBool) -> usize {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut cuts = 0;
    while !over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_secs_f64(random.random_range(0.0..BETWEEN * step_seconds)));
        let proxy = &proxies[random.random_range(0..proxies.len())];
        proxy.hold();
        thread::sleep(Duration::from_secs_f64(random.random_range(0.0..HELD * step_seconds)));
        cuts += proxy.cut();
    }
    cuts
}

/// A run in which connections are cut, and how many were.
fn once(case: &Case, seed: u64) -> Outcome<(Outcome<Commits>, usize)> {
    let token = token();
    let folder = env::temp_dir().join(format!("reconnects-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let words = vec![serde_json::to_string(case)?];
    let mut coordinator =
        again(&words, "DRILL_COORDINATOR", &format!("{token} {}", folder.display()))?;
    let address = folder.join("address");
    while !address.exists() {
        thread::sleep(Duration::from_millis(1));
    }
    let address = fs::read_to_string(address)?;
    let proxies = (0..WORKERS).map(|_| Proxy::to(&address)).collect::<Result<Vec<_>, _>>()?;
    let start = |(me, proxy): (usize, &Proxy)| {
        again(&words, "DRILL_WORKER", &format!("{} {token} {me} false", proxy.address()))
    };
    let workers = proxies.iter().enumerate().map(start).collect::<Result<_, _>>()?;
    let crew = Crew(Arc::new(std::sync::Mutex::new(workers)), Arc::default());
    let over = AtomicBool::new(false);
    let mut commits = Commits::new();
    let (found, cuts) = thread::scope(|scope| {
        let cutting = scope.spawn(|| cut(&proxies, case.compute_seconds, seed, &over));
        let found = read(&mut coordinator, case.steps, &mut commits);
        over.store(true, Ordering::Relaxed);
        (found, cutting.join())
    });
    drop(crew);
    drop(coordinator.kill());
    coordinator.wait()?;
    fs::remove_dir_all(folder)?;
    let whole = commits.len() as u64 == case.steps;
    let found = found.and_then(|()| {
        if whole {
            Ok(commits)
        } else {
            Err(format!("it ends after {} steps", commits.len()).into())
        }
    });
    Ok((found, cuts.map_err(|_| "the proxy has failed")?))
}

/// A table, by exchange, of runs with so many cuts in all.
pub(crate) fn reconnects(exchanges: &str, cuts: usize) -> Outcome<()> {
    println!("| exchange | runs | reconnects | equal bits | other |\n|---|---|---|---|---|");
    let exchanges: Vec<&str> = exchanges.split(',').collect();
    let mut bad = 0;
    for exchange in &exchanges {
        let exchange = (*exchange).to_owned();
        let elements = 3 << 16;
        let compute_seconds = 0.01;
        let calm = Case {
            workers: WORKERS,
            exchange,
            elements,
            steps: 100,
            compute_seconds,
            busy_seconds: 0.0,
            drill: None,
            end: None,
        };
        let expected = sail(&calm)?;
        let differs = |found: &Commits| {
            let is_other = |(step, commit): &(&u64, &(f64, String))| {
                found.get(step).is_none_or(|other| other.1 != commit.1)
            };
            expected.iter().find(is_other).map(|(step, _)| *step)
        };
        let case = Case { busy_seconds: compute_seconds, ..calm };
        let mut runs = 0;
        let mut made = 0;
        let mut others = Vec::new();
        while made < cuts.div_ceil(exchanges.len()) {
            runs += 1;
            let (found, count) = once(&case, runs)?;
            made += count;
            match found.map(|found| differs(&found)) {
                Ok(None) => {}
                Ok(Some(step)) => others.push(format!("seed {runs}: NOT EQUAL from step {step}")),
                Err(error) => others.push(format!("seed {runs}: {error}")),
            }
        }
        bad += others.len();
        let (equal, other) = (runs - others.len() as u64, others.join("; "));
        println!("| {} | {runs} | {made} | {equal} | {other} |", case.exchange);
    }
    match bad {
        0 => Ok(()),
        bad => Err(format!("{bad} runs lost a step or a gradient").into()),
    }
}
