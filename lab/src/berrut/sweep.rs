//! `codedgrad-lab berrut --sweep`: the error against the number of workers, of stragglers, and the
//! size of an attack.

use super::args::BerrutArgs;
use super::panels::{Panel, panels};
use super::scene::Scene;
use anyhow::anyhow;
use codedgrad::codes::berrut::trial::Trial;
use codedgrad::codes::berrut::{BerrutCode, BerrutError, Encoder, Interpolant, Points};
use codedgrad::ids::{Worker, WorkerSet};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::folder::{PLAN, RunFolder};
use codedgrad_shell::output::Output;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::fmt::Write as _;

/// Draws of data and workers behind every point.
const DRAWS: u64 = 9;
/// Sizes of attack, in units of the outputs' rms.
const SIZES: [f64; 11] = [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1e3, 1e4, 1e6];
/// Multiples of the number of data blocks that are tried for the number of workers.
const MULTIPLES: [f64; 10] = [1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0];

/// One curve: how shares and outputs are made, and what is done against liars.
#[derive(Clone, Copy)]
enum Way {
    Papers,
    Chosen,
    Undefended,
    Secured,
    Oracle,
}

/// What one point of a curve is measured on.
#[derive(Clone, Copy)]
struct Setting {
    workers: usize,
    late: usize,
    wrong: usize,
    rms: f64,
}

/// A number of distinct workers of those not in `taken`.
fn draw(rng: &mut ChaCha8Rng, taken: &WorkerSet, workers: usize, count: usize) -> WorkerSet {
    let mut left: Vec<Worker> =
        Worker::all(workers).filter(|worker| !taken.contains(*worker)).collect();
    let mut drawn = WorkerSet::empty(workers);
    for _ in 0..count.min(left.len()) {
        let at = (rng.next_u64() % left.len() as u64) as usize;
        drawn.insert(left.swap_remove(at));
    }
    drawn
}

/// The error of one draw; none where such a decode is refused.
fn error(
    args: &BerrutArgs,
    way: Way,
    setting: Setting,
    seed: u64,
) -> Result<Option<f64>, BerrutError> {
    let Setting { workers, late, wrong, rms } = setting;
    let blocks = args.data_blocks as usize;
    let points = if matches!(way, Way::Papers | Way::Chosen) && !args.secure {
        Points::SecondKind
    } else {
        Points::FirstKind
    };
    let encoder = if matches!(way, Way::Papers) { Encoder::Berrut } else { args.encoder() };
    let code = BerrutCode::new(blocks, workers, points, encoder)?;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let late_ones = draw(&mut rng, &WorkerSet::empty(workers), workers, late);
    let wrong_ones = draw(&mut rng, &late_ones, workers, wrong);
    let mut scene = Scene {
        code: &code,
        trial: Trial::new(args.function(), blocks, seed),
        late: &late_ones,
        wrong: &wrong_ones,
        rms,
    };
    let outputs = scene.outputs()?;
    let survivors = workers - late;
    let by = if matches!(way, Way::Papers) {
        Interpolant::Berrut
    } else {
        args.interpolant(survivors, wrong)
    };
    let security = matches!(way, Way::Secured).then(|| args.security(survivors, wrong));
    let without =
        if matches!(way, Way::Oracle) { wrong_ones.clone() } else { WorkerSet::empty(workers) };
    Ok(scene.decoded(&outputs, &without, by, security, seed).ok().map(|(error, _)| error))
}

/// Least, median and largest error over the draws.
fn spread(args: &BerrutArgs, way: Way, setting: Setting) -> Result<Option<[f64; 3]>, BerrutError> {
    let mut errors = Vec::new();
    for seed in args.seed..args.seed.saturating_add(DRAWS) {
        match error(args, way, setting, seed)? {
            Some(error) if error.is_finite() => errors.push(error),
            _ => return Ok(None),
        }
    }
    errors.sort_by(f64::total_cmp);
    Ok(Some([errors[0], errors[errors.len() / 2], errors[errors.len() - 1]]))
}

/// Writes `sweep.svg` and `sweep.csv`.
pub(super) fn sweep(
    args: &BerrutArgs,
    late: usize,
    wrong: usize,
    output: &mut Output<'_>,
) -> Result<(), Failure> {
    let (blocks, workers) = (args.data_blocks as usize, args.workers as usize);
    let late = if args.stragglers.is_some() { late } else { workers / 8 };
    let room = (workers - late).saturating_sub((3 * blocks).div_ceil(2)) / 2;
    let wrong = if args.byzantine.is_some() {
        wrong
    } else {
        args.max_byzantine.map_or(2, |most| most as usize).min(room)
    };
    if late >= workers {
        return Err(Failure::Input(anyhow!(
            "--sweep with {late} stragglers of {workers} workers: at least one must answer"
        )));
    }
    if wrong > 0 && args.secure {
        let code =
            BerrutCode::new(blocks, workers, Points::FirstKind, args.encoder()).or_input()?;
        args.security(workers - late, wrong).capacity(&code, workers - late).or_input()?;
    }
    let plain = |workers: usize, late: usize| Setting { workers, late, wrong: 0, rms: 0.0 };
    let mut counts: Vec<usize> =
        MULTIPLES.iter().map(|m| (m * blocks as f64).round() as usize).collect();
    counts.retain(|count| *count >= blocks.max(late + 2));
    counts.dedup();
    let most_late = (workers - blocks.min(workers)).max(1);
    let steps = most_late.div_ceil(12).max(1);
    let by_count = |way| counts.iter().map(move |n| (way, *n as f64, plain(*n, late)));
    let by_late =
        |way| (0..=most_late).step_by(steps).map(move |s| (way, s as f64, plain(workers, s)));
    let by_size =
        |way| SIZES.into_iter().map(move |rms| (way, rms, Setting { workers, late, wrong, rms }));
    let (encoder, decoder) = args.names();
    let codes = [
        ("Berrut as in the papers".to_owned(), Way::Papers),
        (format!("{encoder} encoder + {decoder} decoder"), Way::Chosen),
    ];
    let defences = [
        ("no defence", Way::Undefended),
        ("located and left out", Way::Secured),
        ("Byzantine workers known", Way::Oracle),
    ];
    let bar = output.progress_bar(
        (2 * counts.len() + 2 * (most_late / steps + 1) + 3 * SIZES.len()) as u64,
        "sweep",
    );
    let mut csv = String::from("panel,series,x,least,median,largest\n");
    let mut measure = |panel: &str,
                       name: &str,
                       points: Vec<(Way, f64, Setting)>|
     -> Result<(String, Vec<(f64, f64)>), Failure> {
        let mut curve = Vec::new();
        for (way, x, setting) in points {
            if let Some([least, median, largest]) = spread(args, way, setting).or_input()? {
                let _ = writeln!(csv, "{panel},{name},{x},{least:e},{median:e},{largest:e}");
                curve.push((x, median));
            }
            bar.inc(1);
        }
        Ok((name.to_owned(), curve))
    };
    let panel = |title: String, axis: &'static str, logarithmic: bool, series: Vec<_>| Panel {
        title,
        axis,
        logarithmic,
        series,
    };
    let mut drawn = Vec::new();
    let measured = codes
        .iter()
        .map(|(name, way)| measure("workers", name, by_count(*way).collect()))
        .collect::<Result<_, _>>()?;
    drawn.push(panel(format!("{late} stragglers"), "workers", false, measured));
    let measured = codes
        .iter()
        .map(|(name, way)| measure("stragglers", name, by_late(*way).collect()))
        .collect::<Result<_, _>>()?;
    drawn.push(panel(format!("{workers} workers"), "stragglers", false, measured));
    if wrong > 0 {
        let measured = defences
            .iter()
            .map(|(name, way)| measure("attack", name, by_size(*way).collect()))
            .collect::<Result<_, _>>()?;
        let title = format!("{workers} workers, {late} stragglers, {wrong} wrong");
        drawn.push(panel(title, "size of the errors (rms of outputs)", true, measured));
    }
    bar.finish_and_clear();
    let svg = panels(
        &format!("Relative error of {blocks} decoded outputs (median of {DRAWS} draws)"),
        &drawn,
    )
    .or_work()?;
    let folder = RunFolder::create(PLAN, args.out.as_deref(), false)?;
    folder.write_whole("sweep.csv", csv.as_bytes()).or_work()?;
    folder.write_whole("sweep.svg", svg.as_bytes()).or_work()?;
    let path = |name: &str| folder.file(name).display().to_string();
    if args.json {
        let shown =
            serde_json::json!({"csv": path("sweep.csv"), "svg": path("sweep.svg"), "draws": DRAWS});
        return writeln!(output.out, "{shown}").or_work();
    }
    let (svg, csv) = (path("sweep.svg"), path("sweep.csv"));
    let words = format!("Drawn in {svg}, the numbers in {csv}.\n");
    output.out.write_all(output.width().prose(&words).as_bytes()).or_work()
}
