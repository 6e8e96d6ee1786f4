//! Wrong decoders, which no check believes, and claims that chance does not refute.

use codedgrad::codes::registry::{Family, Recipe, Registry};
use codedgrad::codes::{
    Choice, Decoder, Defect, DenseCode, Facts, Gate, GateError, GradientCode, Graph, Groups,
    ParameterError, Report, Row, SchemeSpec, Status, Verification, decode, decode_judged, verify,
};
use codedgrad::ids::{Share, Worker, WorkerSet};
use codedgrad::run::NumberFormat;
use codedgrad::train::{Aggregator, Coordinator, Event};
use std::error::Error as _;
use std::thread;

/// What a decoder does that is wrong.
#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    /// It reports what it believes of weights 1.
    Believes,
    /// Its report forgets the rounding errors' growth.
    Amplification,
    /// It uses the message of worker 0 too, which may be missing.
    UsesAll,
    /// It takes the last that came for the one that is missing.
    Order,
    /// Only weights of few messages are wrong.
    Fewest,
}

/// Shares of their own, of which every worker but the last holds one; the last holds all.
struct Wrong(Facts, Vec<Row>, Mistake);

impl Wrong {
    fn new(workers: usize, mistake: Mistake) -> Self {
        let shares = workers - 1;
        let mut rows: Vec<Row> = (0..shares as u32).map(|j| vec![(Share(j), 1.0)]).collect();
        rows.push((0..shares as u32).map(|j| (Share(j), 1.0)).collect());
        let facts = Facts {
            workers,
            share_weights: vec![1.0 / shares as f64; shares],
            tolerance: 1,
            load: 1.0,
            error_max: 0.0,
        };
        Self(facts, rows, mistake)
    }
}

impl GradientCode for Wrong {
    fn facts(&self) -> &Facts {
        &self.0
    }

    fn row(&self, worker: Worker) -> &[(Share, f64)] {
        &self.1[worker.index()]
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        let (rows, shares) = (self.1.clone(), self.0.share_weights.clone());
        Box::new(WrongDecoder { rows, shares, mistake: self.2, arrived: Vec::new() })
    }
}

struct WrongDecoder {
    rows: Vec<Row>,
    shares: Vec<f64>,
    mistake: Mistake,
    arrived: Vec<Worker>,
}

impl Decoder for WrongDecoder {
    fn arrive(&mut self, worker: Worker) -> Status {
        if self.arrived.contains(&worker) {
            return Status::Useless;
        }
        self.arrived.push(worker);
        if self.arrived.len() + 1 == self.rows.len() { Status::Decodable } else { Status::Pending }
    }

    fn weights(&mut self, choice: Choice, out: &mut [f64]) -> Report {
        out.fill(0.0);
        let last = out.len() - 1;
        let has_all = self.arrived.iter().any(|worker| worker.index() == last);
        if self.mistake == Mistake::Fewest && choice == Choice::Fewest {
            out[self.arrived[0].index()] = 1.0;
        } else if self.mistake == Mistake::Believes || !has_all {
            self.arrived.iter().for_each(|worker| out[worker.index()] = 1.0);
        } else if self.mistake == Mistake::UsesAll {
            out[..last].fill(1.0);
        } else if self.mistake == Mistake::Order
            && self.arrived.last() != Some(&Worker(last as u32))
        {
            out[self.arrived[0].index()] = 1.0;
        } else {
            out[last] = 1.0;
        }
        let decodable = self.arrived.len() + 1 >= self.rows.len();
        let report = codedgrad::codes::judge(&self.rows, &self.shares, out, decodable);
        match self.mistake {
            Mistake::Believes => {
                Report { residual: 0.0, amplification: 1.0, coverage: 1.0, error: 0.0, ..report }
            }
            Mistake::Amplification => Report { amplification: 0.5, ..report },
            _ => report,
        }
    }

    fn reset(&mut self) {
        self.arrived.clear();
    }
}

fn verified(code: &dyn GradientCode) -> Verification {
    verify(code, &Gate::new(NumberFormat::F32, code.facts()), 7, &mut |_, _| ())
}

fn without(workers: usize, missing: &[u32]) -> WorkerSet {
    WorkerSet::of(workers, missing.iter().copied().map(Worker)).complement()
}

#[test]
fn what_a_decoder_reports_is_not_believed() {
    let code = Wrong::new(4, Mistake::Believes);
    let judged = decode_judged(&code, &without(4, &[2]), Choice::MinimumNorm);
    assert_eq!((judged.report.residual, judged.report.coverage), (1.0, 1.0));
    let Some(Defect::Report { what, reported, judged }) = judged.defect else { panic!() };
    assert_eq!((what, reported, judged), ("the residual", 0.0, 1.0));
    let (_, report) = decode(&code, &without(4, &[3]), Choice::MinimumNorm);
    assert_eq!((report.residual, report.error), (0.0, 0.0), "the three shares of the others");

    let found = verified(&code);
    assert_eq!((found.sets, found.failed, found.worst_residual), (5, 4, 1.0), "all but {{3}}");
    let defect = |found: &Verification, at: usize| found.failures[at].refusal;
    assert!(matches!(defect(&found, 0), Some(GateError::Defect(Defect::Report { .. }))));

    let found = verified(&Wrong::new(4, Mistake::Amplification));
    let Some(GateError::Defect(Defect::Report { what, reported, .. })) = defect(&found, 0) else {
        panic!("{found:?}")
    };
    assert_eq!((what, reported), ("the amplification", 0.5));
}

#[test]
fn a_weight_of_a_missing_worker_is_a_defect() {
    let code = Wrong::new(4, Mistake::UsesAll);
    let judged = decode_judged(&code, &without(4, &[1]), Choice::Fewest);
    let absent = Defect::Weight { worker: Worker(1), weight: 1.0 };
    assert_eq!((judged.report.residual, judged.defect), (0.0, Some(absent)));
    let found = verified(&code);
    assert_eq!(found.failed, 3, "without any of the first three");
    assert!(absent.to_string().contains("worker 1"), "{absent}");
}

#[test]
fn verification_shuffles_arrivals_and_decodes_as_a_run_does() {
    let everybody = WorkerSet::full(4);
    let ascending = |mistake| decode(&Wrong::new(4, mistake), &everybody, Choice::MinimumNorm).1;
    assert_eq!(ascending(Mistake::Order).residual, 0.0, "in ascending order it is right");
    assert_eq!(ascending(Mistake::Fewest).residual, 0.0);
    let code = Wrong::new(40, Mistake::Order);
    assert!(verified(&code).failed > 30);
    let few = verified(&Wrong::new(40, Mistake::Fewest));
    assert!(few.failed > 3, "{}", few.failed);
    let honest = verified(&DenseCode::new(&dense_of(&code)).unwrap());
    assert_eq!((honest.sets, honest.failed), (41, 0));
}

fn dense_of(code: &dyn GradientCode) -> Vec<Vec<f64>> {
    let dense = crate::dense(code);
    dense.row_iter().map(|row| row.iter().copied().collect()).collect()
}

fn registry(claim: Option<usize>) -> Registry {
    const CLAIMING: Family = Family {
        name: "wrong",
        examples: &["wrong"],
        summary: "a wrong decoder",
        ..Family::new(|_| Ok(recipe().claiming(Some(1))))
    };
    const SILENT: Family = Family { parse: |_| Ok(recipe()), ..CLAIMING };
    fn recipe() -> Recipe {
        Recipe::code(|workers| Ok(Wrong::new(workers, Mistake::Believes)))
    }
    Registry::default().with(if claim.is_some() { CLAIMING } else { SILENT }).unwrap()
}

#[test]
fn a_claim_of_a_wrong_decoder_is_refused_by_its_name() {
    let spec = registry(Some(1)).parse("wrong").unwrap();
    let error = spec.check_claim(4).unwrap_err();
    assert!(matches!(error, ParameterError::Defect { .. }));
    let said = error.to_string();
    assert!(said.starts_with("wrong has a defect, which shows without worker 0: "), "{said}");
    assert!(
        said.contains("reports the residual 0e0") && said.contains("1e0 by the rows"),
        "{said}"
    );
}

/// Nothing that a wrong decoder gives is applied: the run ends, and says why.
#[test]
fn training_ends_at_a_defect() {
    let spec: SchemeSpec = registry(None).parse("wrong").unwrap();
    spec.check_claim(4).unwrap();
    let delays = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
    std::fs::write(delays.path(), "9,0,0,0\n").unwrap();
    let run = Coordinator::builder(spec).workers(4).steps(20).length(1).units(3);
    let run = run.delays(delays.path().to_str().unwrap(), 1).modelled().step_seconds(0.25);
    let (coordinator, workers) = run.local().unwrap();
    let work = |mut worker: Aggregator| {
        while let Ok(Some(event)) = worker.next_event() {
            let Event::Compute(mut task) = event else { panic!("nothing is applied") };
            while let Some(part) = task.next_part() {
                task.message()[0] = part.coefficient as f32;
            }
            task.submit(vec![]).unwrap();
        }
    };
    let begin = |worker| thread::spawn(move || work(worker));
    let threads: Vec<_> = workers.into_iter().map(begin).collect();
    let error = coordinator.run(&mut ()).unwrap_err();
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said += &format!(": {error}");
        cause = error.source();
    }
    assert!(said.contains("the code has a defect: its decoder reports"), "{said}");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// 64 workers and 8 shares, of which share 0 is held by five workers alone.
fn share_of_five() -> DenseCode {
    let holders = [3, 11, 22, 38, 60];
    let rows: Vec<Vec<f64>> = (0..64)
        .map(|worker| {
            let share = if holders.contains(&worker) { 0 } else { 1 + worker % 7 };
            (0..8).map(|j| f64::from(u8::from(j == share))).collect()
        })
        .collect();
    DenseCode::new(&rows).unwrap().claiming(5).unwrap()
}

#[test]
fn the_holders_of_a_share_are_always_tried() {
    let code = share_of_five();
    let found = verified(&code);
    assert!(!found.exhaustive);
    assert_eq!(found.failures[0].stragglers.to_string(), "3,11,22,38,60");
    let four = code.claiming(4).unwrap();
    assert_eq!(verified(&four).failed, 0);
}

/// Before a run too, where fewer sets are tried.
#[test]
fn the_holders_of_a_share_refute_a_claim_before_a_run() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let line = |row: &Vec<f64>| row.iter().map(f64::to_string).collect::<Vec<_>>().join(",");
    let lines: Vec<String> = dense_of(&share_of_five()).iter().map(line).collect();
    std::fs::write(file.path(), lines.join("\n")).unwrap();
    let spec: SchemeSpec = format!("matrix:{},s=5", file.path().display()).parse().unwrap();
    let said = spec.check_claim(64).unwrap_err().to_string();
    assert!(said.contains("does not decode without workers 3, 11, 22, 38, 60"), "{said}");
}

/// An approximate code bears the loss of any one share, but not of two.
#[test]
fn the_holders_of_two_shares_are_tried() {
    let mut rows: Vec<Vec<f64>> = (0..80)
        .map(|worker| (0..20).map(|j| f64::from(u8::from(worker % 20 == j))).collect())
        .collect();
    // Shares 4 and 11 have three holders each instead of four.
    rows[64][4] = 0.0;
    rows[71][11] = 0.0;
    let code = DenseCode::approximate(&rows, 0.06).unwrap().claiming(6).unwrap();
    let found = verified(&code);
    assert!(!found.exhaustive && found.worst_error > 0.09);
    assert!(
        found.failures.iter().any(|failed| failed.stragglers.to_string() == "4,11,24,31,44,51")
    );
    assert_eq!(verified(&code.claiming(5).unwrap()).failed, 0);
}

/// The normalised error on average, and of the worst set.
#[test]
fn verification_tells_errors() {
    let code = Graph::from_edges(3, &[(0, 1), (1, 2), (0, 2)], 0.2).unwrap();
    assert_eq!(code.facts().tolerance, 1, "a path of three: (2-1)^2/3/3 = 1/9");
    let found = verified(&code);
    assert_eq!(found.sets, 4);
    assert!((found.worst_error - 1.0 / 9.0).abs() < 1e-12, "{found:?}");
    assert!((found.mean_error - 3.0 / 36.0).abs() < 1e-12, "{found:?}");
    let exact = verified(&Groups::tolerating(8, 1).unwrap());
    assert_eq!((exact.worst_error, exact.mean_error), (0.0, 0.0));
}

/// Seven workers and shares, three shares each, any two workers with one in common: without one
/// worker the best weights leave an error of 1/28.
#[test]
fn the_error_of_a_set_that_does_not_decode() {
    let lines = [[0, 1, 2], [0, 3, 4], [0, 5, 6], [1, 3, 5], [1, 4, 6], [2, 3, 6], [2, 4, 5]];
    let row = |line: &[usize; 3]| (0..7).map(|j| f64::from(u8::from(line.contains(&j)))).collect();
    let rows: Vec<Vec<f64>> = lines.iter().map(row).collect();
    let exact = DenseCode::new(&rows).unwrap();
    let (_, report) = decode(&exact, &without(7, &[2]), Choice::MinimumNorm);
    assert!(!report.decodable && (report.error - 1.0 / 28.0).abs() < 1e-12, "{report:?}");
    let approximate = DenseCode::approximate(&rows, 0.036).unwrap();
    assert_eq!(approximate.facts().tolerance, 1);
    let (_, report) = decode(&approximate, &without(7, &[2]), Choice::Fewest);
    assert!(report.decodable && (report.error - 1.0 / 28.0).abs() < 1e-12, "{report:?}");
    let (_, nobody) = decode(&exact, &WorkerSet::empty(7), Choice::MinimumNorm);
    assert!(nobody.coverage == 0.0 && nobody.coverage.is_sign_positive());
    assert_eq!(nobody.error, 1.0);
}
