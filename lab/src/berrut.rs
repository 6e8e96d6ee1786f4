//! `codedgrad-lab berrut`: a coded computation of any function, with stragglers and liars, looked
//! at closely.

mod args;
mod panels;
mod scene;
mod sweep;

pub(crate) use args::BerrutArgs;

use anyhow::anyhow;
use clap::ValueEnum;
use codedgrad::codes::berrut::trial::Trial;
use codedgrad::codes::berrut::{BerrutCode, BerrutReport};
use codedgrad::ids::{Worker, WorkerSet};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::output::Output;
use codedgrad_shell::units::parse_workers;
use scene::Scene;
use serde_json::json;
use std::fmt::Write as _;
use sweep::sweep;

/// Workers drawn; of more, the first ones.
const DRAWN_MAX: usize = 64;
/// Width of the picture of [-1, 1].
const LINE: usize = 41;

/// A list of workers of an option, ascending.
fn listed(option: &str, list: Option<&str>, workers: usize) -> Result<WorkerSet, Failure> {
    let Some(list) = list else { return Ok(WorkerSet::empty(workers)) };
    let set = parse_workers(list, workers)
        .map_err(|problem| Failure::Input(anyhow!("{option} {list}: {problem}")))?;
    let first =
        |item: &str| item.split('-').next().and_then(|number| number.trim().parse::<u32>().ok());
    let firsts: Vec<u32> = list.split(',').filter_map(first).collect();
    if let Some(pair) = firsts.windows(2).find(|pair| pair[1] < pair[0]) {
        return Err(Failure::Input(anyhow!(
            "{option} {list}: {} is listed after {}; lists ascend",
            pair[1],
            pair[0]
        )));
    }
    Ok(set)
}

pub(crate) fn run(args: &BerrutArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    args.check()?;
    let (blocks, workers) = (args.data_blocks as usize, args.workers as usize);
    let late = listed("--stragglers", args.stragglers.as_deref(), workers)?;
    let wrong = listed("--byzantine", args.byzantine.as_deref(), workers)?;
    if let Some(both) = late.iter().find(|worker| wrong.contains(*worker)) {
        return Err(Failure::Input(anyhow!(
            "{both} is listed in --stragglers and in --byzantine: it can return wrong results or \
             none at all"
        )));
    }
    let code = BerrutCode::new(blocks, workers, args.points(), args.encoder()).or_input()?;
    let looked_for = args.max_byzantine.map_or(wrong.len(), |most| most as usize);
    if args.sweep {
        return sweep(args, late.len(), wrong.len(), output);
    }
    let trial = Trial::new(args.function(), blocks, args.seed);
    let mut scene = Scene { code: &code, trial, late: &late, wrong: &wrong, rms: args.corruption };
    let outputs = scene.outputs().or_work()?;
    let finite = |worker: &Worker| {
        !late.contains(*worker) && outputs[worker.index()].iter().all(|x| x.is_finite())
    };
    let survivors = Worker::all(workers).filter(finite).count();
    let security = args.secure.then(|| args.security(survivors, looked_for));
    let by = args.interpolant(survivors, if args.secure { looked_for } else { 0 });
    let nobody = WorkerSet::empty(workers);
    let (error, decoded) = scene.decoded(&outputs, &nobody, by, security, args.seed).or_input()?;
    if args.json {
        let shown = shown(args, &scene, error, &decoded.report);
        return writeln!(output.out, "{shown}").or_work();
    }
    let picture = picture(&code, &late, &wrong, &decoded.report);
    let oracle = scene.decoded(&outputs, &wrong, by, None, args.seed).ok().map(|(error, _)| error);
    let undefended =
        scene.decoded(&outputs, &nobody, by, None, args.seed).ok().map(|(error, _)| error);
    let words = words(args, &decoded.report, [Some(error), oracle, undefended]);
    write!(output.out, "{picture}{}", output.width().prose(&words)).or_work()
}

fn shown(
    args: &BerrutArgs,
    scene: &Scene<'_>,
    error: f64,
    report: &BerrutReport,
) -> serde_json::Value {
    let Scene { code, late, wrong, rms, .. } = scene;
    let found = report.verdict.as_ref().map(|verdict| &verdict.trimmed);
    let (encoder, decoder) = args.names();
    json!({
        "function": args.function.to_possible_value().map(|value| value.get_name().to_owned()),
        "data_blocks": code.blocks(),
        "workers": code.workers(),
        "stragglers": late.iter().collect::<Vec<_>>(),
        "byzantine": wrong.iter().collect::<Vec<_>>(),
        "corruption": rms,
        "secure": args.secure,
        "encoder": encoder,
        "decoder": decoder,
        "data_points": code.data_points(),
        "worker_points": code.worker_points(),
        "relative_error": error,
        "located": found.map_or(&[][..], |found| &found.workers),
        "suspect": report.verdict.as_ref().is_some_and(|verdict| verdict.suspect),
        "decode_weights": report.weights,
        "not_finite": report.not_finite,
        "scores": found.map_or(&[][..], |found| &found.scores),
        "error_sizes": found.map_or(&[][..], |found| &found.sizes),
        "capacity": report.verdict.as_ref().map(|verdict| verdict.capacity),
        "sigma2": found.map(|found| found.variance),
        "residual": found.map(|found| found.residual),
        "q": found.and_then(|found| found.exponent),
        "seed": args.seed,
    })
}

/// One line per worker: where it sits, what became of it, and its largest weight.
fn picture(
    code: &BerrutCode,
    late: &WorkerSet,
    wrong: &WorkerSet,
    report: &BerrutReport,
) -> String {
    let column = |x: f64| ((1.0 - x) / 2.0 * (LINE - 1) as f64).round() as usize;
    let mut blocks = vec![' '; LINE];
    code.data_points().iter().for_each(|alpha| blocks[column(*alpha)] = 'v');
    let mut text =
        format!("{:>11} 1{}-1   weight\n", "blocks", blocks.into_iter().collect::<String>());
    let uncoded = code.points().uncoded(code.blocks(), code.workers());
    let located = report.verdict.as_ref().map_or(&[][..], |verdict| &verdict.trimmed.workers);
    for worker in Worker::all(code.workers().min(DRAWN_MAX)) {
        let mut line = vec!['·'; LINE];
        line[column(code.worker_points()[worker.index()])] =
            if report.used.contains(&worker) { '█' } else { '░' };
        let weight = report.weights.iter().map(|row| row[worker.index()].abs()).fold(0.0, f64::max);
        let mut state = match () {
            () if late.contains(worker) => "straggler".to_owned(),
            () if report.not_finite.contains(&worker) => "not finite: erased".into(),
            () if located.contains(&worker) && wrong.contains(worker) => "located: wrong".into(),
            () if located.contains(&worker) => "located, though honest".into(),
            () if wrong.contains(worker) => format!("{weight:.3}  WRONG, and used"),
            () => format!("{weight:.3}"),
        };
        if let Some((_, block)) = uncoded.iter().find(|(at, _)| *at == worker) {
            let _ = write!(state, "  (holds block {} as it is)", block.0);
        }
        let _ = writeln!(
            text,
            "{:>11}  {}     {state}",
            worker.to_string(),
            line.into_iter().collect::<String>()
        );
    }
    if code.workers() > DRAWN_MAX {
        let _ = writeln!(text, "{:>11}  (the first {DRAWN_MAX} of {} workers)", "", code.workers());
    }
    text
}

fn words(
    args: &BerrutArgs,
    report: &BerrutReport,
    [error, oracle, undefended]: [Option<f64>; 3],
) -> String {
    let mut text = String::from("\n");
    let percent =
        |error: Option<f64>| error.map_or("none".into(), |error| format!("{:.3} %", 100.0 * error));
    let _ = write!(
        text,
        "Relative error of the {} decoded outputs: {}",
        args.data_blocks,
        percent(error)
    );
    let attacked = args.byzantine.is_some();
    let _ = match (&report.verdict, attacked) {
        (Some(_), true) => {
            writeln!(
                text,
                " ({} had the Byzantine workers been known, {} without --secure).",
                percent(oracle),
                percent(undefended)
            )
        }
        (Some(_), false) => writeln!(text, " ({} without --secure).", percent(undefended)),
        (None, true) => writeln!(
            text,
            " ({} without the Byzantine workers, whom --secure looks for).",
            percent(oracle)
        ),
        (None, false) => writeln!(text, "."),
    };
    let Some(verdict) = &report.verdict else { return text };
    let found = &verdict.trimmed;
    for ((worker, score), size) in found.workers.iter().zip(&found.scores).zip(&found.sizes) {
        let _ = writeln!(
            text,
            "Located {worker}: its error is {size:.2} rms of the outputs, {score:.3e} noise \
             variances."
        );
    }
    if found.workers.is_empty() {
        text.push_str("No worker is accused. ");
    }
    let _ = writeln!(text, "{} Byzantine workers more could be located.", verdict.capacity);
    if verdict.suspect {
        let next =
            args.max_byzantine.map_or_else(|| found.workers.len() + 1, |most| most as usize + 1);
        let _ = writeln!(
            text,
            "SUSPECT: more workers seem wrong than were looked for; try --max-byzantine {next}."
        );
    }
    text
}
