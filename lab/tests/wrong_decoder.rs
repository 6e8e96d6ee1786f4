//! A code of one's own whose decoder is wrong, in both programs: every command says so, and
//! nothing is trained with it. Without arguments this runs itself with some.

use codedgrad::codes::registry::{Family, Recipe, Registry};
use codedgrad::codes::{Choice, Decoder, Facts, GradientCode, Report, Row, Status};
use codedgrad::ids::{Share, Worker};
use std::process::{Command, ExitCode};
use std::{env, fs};

/// Uncoded rows.
struct Lie(Facts, Vec<Row>);

impl GradientCode for Lie {
    fn facts(&self) -> &Facts {
        &self.0
    }

    fn row(&self, worker: Worker) -> &[(Share, f64)] {
        &self.1[worker.index()]
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(Wrong { here: vec![false; self.0.workers] })
    }
}

/// Takes what is there for the whole, and reports that it is.
struct Wrong {
    here: Vec<bool>,
}

impl Decoder for Wrong {
    fn arrive(&mut self, worker: Worker) -> Status {
        self.here[worker.index()] = true;
        let count = self.here.iter().filter(|here| **here).count();
        if count + 1 == self.here.len() { Status::Decodable } else { Status::Pending }
    }

    fn weights(&mut self, _: Choice, out: &mut [f64]) -> Report {
        for (weight, here) in out.iter_mut().zip(&self.here) {
            *weight = f64::from(u8::from(*here));
        }
        Report { decodable: true, residual: 0.0, amplification: 1.0, coverage: 1.0, error: 0.0 }
    }

    fn reset(&mut self) {
        self.here.fill(false);
    }
}

fn lie(workers: usize) -> Lie {
    let rows = (0..workers).map(|worker| vec![(Share::at(worker), 1.0)]).collect();
    let facts = Facts {
        workers,
        share_weights: vec![1.0 / workers as f64; workers],
        tolerance: 1,
        load: 1.0 / workers as f64,
        error_max: 0.0,
    };
    Lie(facts, rows)
}

/// Nothing is said of whether the tolerance is proven.
const LIE: Family = Family {
    name: "lie",
    examples: &["lie"],
    summary: "a wrong decoder",
    ..Family::new(|_| Ok(Recipe::code(|workers| Ok(lie(workers)))))
};
/// A claim is checked before a run.
const CLAIM: Family = Family {
    name: "claim",
    examples: &["claim"],
    summary: "the same, claimed",
    ..Family::new(|_| Ok(Recipe::code(|workers| Ok(lie(workers))).claiming(Some(1))))
};

/// Status, output and errors of a command, in a folder.
fn told(folder: &std::path::Path, arguments: &str) -> (Option<i32>, String, String) {
    let mut program = Command::new(env::current_exe().unwrap());
    let output = program.current_dir(folder).args(arguments.split(' ')).output().unwrap();
    let text = |bytes: &[u8]| {
        String::from_utf8_lossy(bytes).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn check() {
    let folder = tempfile::tempdir().unwrap();
    let told = |arguments: &str| told(folder.path(), arguments);
    let defect = "its decoder reports the residual 0e0, but the weights that it gives have 1e0 by \
                  the rows";

    let (status, words, _) = told("code lie --workers 4 --verify");
    assert_eq!(status, Some(1), "{words}");
    assert!(words.contains("4 FAILED: without 0: the code has a defect: "), "{words}");
    assert!(words.contains(defect) && words.contains("claims to tolerate any 1"), "{words}");

    let (status, words, errors) = told("code lie --workers 4 --survivors 0-2");
    assert_eq!(status, Some(1), "{words}");
    let judged = "Residual 1.0e0, normalised error 2.50e-1";
    assert!(words.contains(judged) && words.contains("coverage 0.750"), "{words}");
    assert!(!words.contains("exact gradient") && errors.contains(defect), "{words} {errors}");

    let small = "--workers 4 --steps 6 --layers 1 --heads 1 --width 8 --context 8 --clock virtual";
    let delays = "--delays static --out run -q";
    let (status, words, errors) = told(&format!("train --scheme lie {small} {delays}"));
    assert!(status.is_some_and(|status| status > 0), "{words}");
    assert!(errors.contains(defect), "{errors}");
    let record = fs::read_to_string(folder.path().join("run/run.jsonl")).unwrap_or_default();
    assert!(!record.contains("\"residual\""), "nothing was applied: {record}");

    let (status, _, errors) =
        told(&format!("train --scheme claim {small} --delays static --out other -q"));
    assert_eq!(status, Some(2));
    assert!(errors.contains("claim has a defect, which shows without worker 0"), "{errors}");
}

fn main() -> ExitCode {
    if env::args().any(|argument| argument == "--list") {
        println!("check: test");
        return ExitCode::SUCCESS;
    }
    let commands = ["code", "train"];
    if env::args().nth(1).is_none_or(|first| !commands.contains(&first.as_str())) {
        check();
        return ExitCode::SUCCESS;
    }
    let registry = Registry::default().with(LIE).and_then(|registry| registry.with(CLAIM));
    let registry = registry.expect("names of their own");
    match env::args().nth(1).as_deref() {
        Some("train") => codedgrad_lab::main_with(registry),
        _ => codedgrad_cli::main_with(registry),
    }
}
