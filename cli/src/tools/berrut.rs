//! `codedgrad berrut`: a coded computation of any function, with stragglers and liars, looked at
//! closely.

use super::berrut_sweep::sweep;
use super::code::parse_workers;
use crate::layout::help;
use crate::output::Output;
use crate::units::{at_least, count};
use crate::{Failure, OrInput, OrWork};
use anyhow::anyhow;
use clap::{Args, ValueEnum};
use codedgrad::codes::berrut::trial::{Attack, Function, Trial, relative_error};
use codedgrad::codes::berrut::{
    BerrutCode, BerrutError, Decoded, Decoder, Encoder, Form, Interpolant, Locator, Points, Report,
    Security, Tolerance,
};
use codedgrad::ids::{Worker, WorkerSet};
use ndarray::{Array2, Ix2};
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Workers drawn; of more, the first ones.
const DRAWN_MAX: usize = 64;
/// Width of the picture of [-1, 1].
const LINE: usize = 41;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FunctionArg {
    X,
    Square,
    Sigmoid,
    Xsinx,
    Gram,
    Mlp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EncoderArg {
    Berrut,
    Spline,
    Lagrange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DecoderArg {
    Berrut,
    Spline,
    Lsq,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LocatorArg {
    Pgz,
    Music,
    Lts,
    Gp,
}

#[derive(Debug, Args)]
#[command(
    long_about = help("Decode any function of coded data, not only sums: Berrut approximated coded \
        computing.\n\n\
        K data blocks are mixed into N shares, one per worker. Each worker applies the function to \
        its share and the K results are interpolated from whoever answers. With --secure, answers \
        that are wrong are located and left out first. The data are random 8 x 8 blocks, so that \
        the error can be measured."),
    after_help = help("\
Functions:  x, square, sigmoid, xsinx act element by element; gram is X^T X; mlp is tanh(relu(X
            W1) W2).
Encoders:   spline (default), berrut (as the papers), lagrange (polynomials are decoded
            exactly).
Decoders:   spline (default), berrut (as the papers), lsq (the polynomial of degree below
            --dimension; with the Lagrange encoder unless another is asked for).
Locators:   gp (default) suits any function and takes back whom it accused for nothing. pgz and
            music are the papers', lts their robust cousin: they accuse exactly --max-byzantine
            workers and need outputs near polynomials of degree below --dimension (D(K-1)+1
            where that is exact, else 2K).
Lists:      0,2,5-7, ascending, counted from 0. Wrong workers add Gaussian errors of
            --corruption times the rms of all outputs.

Examples:
  codedgrad berrut --function sigmoid --stragglers 2,9
  codedgrad berrut --function mlp --data-blocks 8 --workers 32 --byzantine 3,17 --secure
  codedgrad berrut --function mlp --byzantine 3,7 --corruption 100             # no defence
  codedgrad berrut --function gram --stragglers 1 --byzantine 4-6 --secure --locator pgz
  codedgrad berrut --function square --sweep --out pictures")
)]
pub(crate) struct BerrutArgs {
    /// What workers compute
    #[arg(long, value_enum, default_value = "mlp")]
    pub(crate) function: FunctionArg,
    /// Number of data blocks, K
    #[arg(
        long, value_name = "K", default_value_t = 4,
        value_parser = count(1..=1024u32)
    )]
    pub(crate) data_blocks: u32,
    /// Number of workers, N
    #[arg(
        long, value_name = "N", default_value_t = 16,
        value_parser = count(1..=1024u32)
    )]
    pub(crate) workers: u32,
    /// Workers that do not answer, such as 2,9-11
    #[arg(long, value_name = "LIST")]
    pub(crate) stragglers: Option<String>,
    /// Workers that answer wrongly
    #[arg(long, value_name = "LIST")]
    pub(crate) byzantine: Option<String>,
    /// Size of wrong workers' errors, in units of the outputs' rms
    #[arg(long, value_name = "RMS", default_value_t = 10.0, allow_negative_numbers = true)]
    corruption: f64,
    /// Locate wrong workers and leave them out; workers then sit at points of the first kind
    #[arg(long)]
    pub(crate) secure: bool,
    /// Most wrong workers that are looked for; as many as --byzantine lists if not given
    #[arg(long, value_name = "A", requires = "secure")]
    pub(crate) max_byzantine: Option<u32>,
    /// How shares are made of the data
    #[arg(long, value_enum)]
    encoder: Option<EncoderArg>,
    /// How outputs are made of answers
    #[arg(long, value_enum, default_value = "spline")]
    decoder: DecoderArg,
    /// Degrees are below this, for --decoder lsq and --locator pgz, music, lts
    #[arg(long, value_name = "M", value_parser = at_least(1u32))]
    dimension: Option<u32>,
    /// How wrong workers are located; gp if not given
    #[arg(long, value_enum, requires = "secure")]
    locator: Option<LocatorArg>,
    /// Look for wrong workers even where too few others are left to tell them apart
    #[arg(long, requires = "secure")]
    force: bool,
    /// Draw the error against N, stragglers and attack size: sweep.svg and sweep.csv in a new
    /// folder
    #[arg(long)]
    sweep: bool,
    /// Folder for --sweep; a new one under runs/ if not given
    #[arg(long, value_name = "DIR", requires = "sweep")]
    pub(crate) out: Option<PathBuf>,
    /// Seed of the data, the network, the errors and the sketches
    #[arg(long, value_name = "S", default_value_t = 7)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of a picture and words
    #[arg(long)]
    pub(crate) json: bool,
}

impl BerrutArgs {
    pub(crate) fn function(&self) -> Function {
        match self.function {
            FunctionArg::X => Function::Identity,
            FunctionArg::Square => Function::Square,
            FunctionArg::Sigmoid => Function::Sigmoid,
            FunctionArg::Xsinx => Function::XSinX,
            FunctionArg::Gram => Function::Gram,
            FunctionArg::Mlp => Function::Mlp,
        }
    }

    pub(crate) fn encoder(&self) -> Encoder {
        match (self.encoder, self.decoder) {
            (Some(EncoderArg::Berrut), _) => Encoder::Berrut,
            (Some(EncoderArg::Lagrange), _) | (None, DecoderArg::Lsq) => Encoder::Lagrange,
            (Some(EncoderArg::Spline), _) | (None, _) => Encoder::Spline,
        }
    }

    /// What encoder and decoder are called.
    pub(crate) fn names(&self) -> (&'static str, &'static str) {
        let encoder = match self.encoder() {
            Encoder::Berrut => "berrut",
            Encoder::Spline => "spline",
            Encoder::Lagrange => "lagrange",
        };
        let decoder = match self.decoder {
            DecoderArg::Berrut => "berrut",
            DecoderArg::Spline => "spline",
            DecoderArg::Lsq => "lsq",
        };
        (encoder, decoder)
    }

    fn points(&self) -> Points {
        if self.secure { Points::FirstKind } else { Points::SecondKind }
    }

    /// The dimension of fits and codes, for so many survivors of which `wrong` may be wrong.
    fn dimension(&self, survivors: usize, wrong: usize) -> usize {
        let blocks = self.data_blocks as usize;
        let exact = self
            .function()
            .degree()
            .filter(|_| self.encoder() == Encoder::Lagrange)
            .map(|degree| degree * (blocks - 1) + 1);
        let given = self.dimension.map(|dimension| dimension as usize);
        given.or(exact).unwrap_or_else(|| Security::usual_dimension(blocks, survivors, wrong))
    }

    pub(crate) fn interpolant(&self, survivors: usize, wrong: usize) -> Interpolant {
        match self.decoder {
            DecoderArg::Berrut => Interpolant::Berrut,
            DecoderArg::Spline => Interpolant::SPLINE,
            DecoderArg::Lsq => {
                Interpolant::LeastSquares { dimension: self.dimension(survivors, wrong) }
            }
        }
    }

    pub(crate) fn security(&self, survivors: usize, wrong: usize) -> Security {
        let dimension = self.dimension(survivors, wrong);
        let locator = match self.locator.unwrap_or(LocatorArg::Gp) {
            LocatorArg::Gp => Locator::Robust(Tolerance::default()),
            LocatorArg::Lts => Locator::Trimmed { dimension },
            LocatorArg::Pgz => Locator::Dct { dimension, form: Form::Polynomial },
            LocatorArg::Music => Locator::Dct { dimension, form: Form::Subspace },
        };
        Security { wrong, locator, force: self.force }
    }

    fn check(&self) -> Result<(), Failure> {
        if self.corruption.is_nan() || self.corruption < 0.0 {
            return Err(Failure::Input(anyhow!(
                "--corruption {}: must be a number of 0 or more",
                self.corruption
            )));
        }
        let fitted = self.decoder == DecoderArg::Lsq
            || self.locator.is_some_and(|locator| locator != LocatorArg::Gp);
        if self.dimension.is_some() && !fitted {
            let why = "it bounds the degree for --decoder lsq and for --locator pgz, music and \
                lts, none of which is asked for";
            return Err(Failure::Input(anyhow!("--dimension without use: {why}")));
        }
        Ok(())
    }
}

/// A list of workers of an option, ascending.
pub(crate) fn listed(
    option: &str,
    list: Option<&str>,
    workers: usize,
) -> Result<WorkerSet, Failure> {
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

/// One computation: who is late, who lies and by how much.
pub(crate) struct Scene<'a> {
    pub(crate) code: &'a BerrutCode,
    pub(crate) trial: Trial,
    pub(crate) late: &'a WorkerSet,
    pub(crate) wrong: &'a WorkerSet,
    pub(crate) rms: f64,
}

impl Scene<'_> {
    /// What all workers answer.
    pub(crate) fn outputs(&mut self) -> Result<Vec<Array2<f64>>, BerrutError> {
        let blocks: Vec<_> = self.trial.blocks().iter().map(|block| block.view()).collect();
        let mut outputs: Vec<_> =
            self.code.encode(&blocks)?.iter().map(|share| self.trial.apply(share)).collect();
        let wrong: Vec<Worker> = self.wrong.iter().collect();
        self.trial.corrupt(&mut outputs, &wrong, Attack::Gaussian, self.rms);
        Ok(outputs)
    }

    /// The decode of these answers but `without`, and its relative error.
    pub(crate) fn decoded(
        &self,
        outputs: &[Array2<f64>],
        without: &WorkerSet,
        by: Interpolant,
        security: Option<Security>,
        seed: u64,
    ) -> Result<(f64, Decoded<f64, Ix2>), BerrutError> {
        let mut decoder: Decoder<'_, f64, Ix2> = Decoder::new(self.code, by);
        if let Some(security) = security {
            decoder = decoder.secured(security);
        }
        for worker in Worker::all(self.code.workers())
            .filter(|w| !self.late.contains(*w) && !without.contains(*w))
        {
            decoder.arrive(worker, outputs[worker.index()].clone())?;
        }
        let decoded = decoder.decode(seed)?;
        Ok((relative_error(&decoded.outputs, &self.trial.truth()), decoded))
    }
}

pub(crate) fn run(args: &BerrutArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    args.check()?;
    let (blocks, workers) = (args.data_blocks as usize, args.workers as usize);
    let late = listed("--stragglers", args.stragglers.as_deref(), workers)?;
    let wrong = listed("--byzantine", args.byzantine.as_deref(), workers)?;
    if let Some(both) = late.iter().find(|worker| wrong.contains(*worker)) {
        return Err(Failure::Input(anyhow!(
            "{both} is listed in --stragglers and in --byzantine: it can answer wrongly or not at \
             all"
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
        return writeln!(output.out, "{}", shown(args, &code, error, &decoded.report)).or_work();
    }
    let picture = picture(&code, &late, &wrong, &decoded.report);
    let oracle = scene.decoded(&outputs, &wrong, by, None, args.seed).ok().map(|(error, _)| error);
    let undefended =
        scene.decoded(&outputs, &nobody, by, None, args.seed).ok().map(|(error, _)| error);
    let words = words(args, &decoded.report, [Some(error), oracle, undefended]);
    write!(output.out, "{picture}{}", output.width().prose(&words)).or_work()
}

fn shown(args: &BerrutArgs, code: &BerrutCode, error: f64, report: &Report) -> serde_json::Value {
    let found = report.verdict.as_ref().map(|verdict| &verdict.trimmed);
    let (encoder, decoder) = args.names();
    json!({
        "function": args.function.to_possible_value().map(|value| value.get_name().to_owned()),
        "data_blocks": code.blocks(),
        "workers": code.workers(),
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
fn picture(code: &BerrutCode, late: &WorkerSet, wrong: &WorkerSet, report: &Report) -> String {
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
    report: &Report,
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
                " ({} had the wrong workers been known, {} without --secure).",
                percent(oracle),
                percent(undefended)
            )
        }
        (Some(_), false) => writeln!(text, " ({} without --secure).", percent(undefended)),
        (None, true) => writeln!(
            text,
            " ({} without the wrong workers, whom --secure looks for).",
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
        text.push_str("Nobody is accused. ");
    }
    let _ = writeln!(text, "{} wrong workers more could be located.", verdict.capacity);
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
