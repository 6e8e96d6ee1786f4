//! A worker that hands over another state than its own to one that comes back.

use super::bare::{self, Bare};
use super::{PLAN, WORKERS, count_faults, last_words, lines};
use crate::coordinated::{Run, uncoded};
use crate::processes::wait_for;
use codedgrad::run::NumberFormat;
use codedgrad::sums::{Header, Kind, chunk_range, chunks};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const STEPS: &str = "800";
/// The step at which the one that lies hangs up: who saves the model has to have one.
const LEAVES: u64 = 795;
/// More than are kept for those who come back: they take over a state.
const BEHIND: usize = 75;
/// The one that lies has the lowest number: of those that have come equally far, it is asked first.
const LIAR: usize = 0;
const REJOINER: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Lie {
    Zeros,
    OneVectorLess,
    OneNumberLess,
    Ahead,
}

impl Lie {
    /// The first step that is not applied in the state that is handed over, and the lengths of its
    /// vectors, which are zeros.
    fn state(self, next: u64, length: usize) -> (u64, Vec<usize>) {
        match self {
            Self::Zeros => (next, vec![length; 3]),
            Self::OneVectorLess => (next, vec![length; 2]),
            Self::OneNumberLess => (next, vec![length - 1; 3]),
            Self::Ahead => (next + 3, vec![length; 3]),
        }
    }
}

/// A worker with the job's token that says it applies every step, computes nothing, and lies about
/// its state.
struct Liar {
    call: Bare,
    lie: Lie,
    welcome: Value,
    next: u64,
    /// How often it was asked for its state.
    asked: Arc<AtomicU64>,
}

impl Liar {
    fn join(run: &Run, lie: Lie, asked: Arc<AtomicU64>) -> Self {
        let token = fs::read_to_string(run.folder.path().join("run/token")).unwrap();
        let mut call = Bare::call(&run.address, &token).unwrap();
        call.tell(&json!({"type": "hello", "worker": LIAR, "identity": "liar", "process": 7,
                "address": null, "offer": null, "supports_collectives": false}));
        let welcome = call.hear();
        assert_eq!(welcome["type"], "welcome");
        Self { call, lie, welcome, next: 0, asked }
    }

    /// Takes part until the run is over, or it is thrown out.
    fn lives(mut self) {
        while let Ok((header, body)) = self.call.try_next() {
            if header.kind == Kind::Control && self.obeys(&bare::told(&body)).is_err() {
                return;
            }
        }
    }

    fn obeys(&mut self, message: &Value) -> io::Result<()> {
        match message["type"].as_str().unwrap() {
            "apply" | "skip" => {
                let step = message["step"].as_u64().unwrap();
                self.next = step + 1;
                if step >= LEAVES {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                self.call.try_tell(&json!({"type": "applied", "step": step, "digest": null}))
            }
            "ping" => self.call.try_tell(&json!({"type": "pong", "number": message["number"]})),
            "send_state" => {
                let transfer = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
                self.hands_over(&message["needy"], transfer)
            }
            "stop" => Err(io::ErrorKind::ConnectionAborted.into()),
            _ => Ok(()),
        }
    }

    fn hands_over(&mut self, needy: &Value, transfer: u64) -> io::Result<()> {
        let number = |field: &str| self.welcome[field].as_u64().unwrap();
        let (next, lengths) = self.lie.state(self.next, number("length") as usize);
        let own = Header {
            run: number("run"),
            layout: number("layout"),
            worker: LIAR as u32,
            number: transfer,
            ..Header::control(0)
        };
        let state = json!({"type": "state", "needy": needy, "transfer": transfer, "next": next,
            "lengths": lengths});
        self.call.try_tell(&state)?;
        for (piece, length) in (0..).zip(lengths) {
            for range in (0..chunks(length)).map(|chunk| chunk_range(chunk, length)) {
                let chunk = Header::chunk(Kind::State, NumberFormat::F32, range.start, range.len());
                let kind = chunk.kind;
                let format = chunk.format;
                let offset = chunk.offset;
                self.call.try_put(
                    &Header { kind, format, offset, piece, ..own },
                    &vec![0; 4 * range.len()],
                )?;
            }
        }
        Ok(())
    }
}

/// A worker dies, and comes back when it has missed so much that it takes over a state.
fn rejoins_beside(lie: Lie) {
    let mut run = Run::start(STEPS, &format!("{PLAN} --exchange star"));
    let mut workers: Vec<_> = (1..WORKERS).map(|number| run.worker(number, "")).collect();
    run.knows_what_is_trained();
    let asked = Arc::new(AtomicU64::new(0));
    let liar = Liar::join(&run, lie, Arc::clone(&asked));
    let liar = thread::spawn(|| liar.lives());
    run.wait_for_steps(3);
    let mut rejoiner = workers.pop().unwrap();
    rejoiner.signal("-KILL");
    rejoiner.ends();
    run.wait_for_steps(lines(&run.record()).len() + BEHIND);
    let mut rejoiner = run.worker(REJOINER, "");
    wait_for("the return", || rejoiner.said().contains("joined again (join 2)").then_some(()));
    let summary = run.finishes(&mut workers);
    liar.join().unwrap();
    let asked = asked.load(Ordering::Acquire);
    let differing = count_faults(&summary, REJOINER, "its parameters differ");
    let what = format!(
        "{lie:?}, for which it was asked {asked} times; {differing} times other parameters"
    );
    println!("{what}");
    assert_eq!(rejoiner.ends(), Some(0), "{what}: {}", last_words(&rejoiner));
    assert!(count_faults(&summary, REJOINER, "takes over") > 0, "{what}: it needed no state");
    run.has_trained(&uncoded("4", STEPS), &what);
    // The others' word on the parameters may come after it goes on from them.
    assert!(asked <= 2, "{what}");
}

#[test]
fn a_state_of_zeros_harms_nobody() {
    rejoins_beside(Lie::Zeros);
}

#[test]
fn a_state_that_lacks_a_vector_harms_nobody() {
    rejoins_beside(Lie::OneVectorLess);
}

#[test]
fn a_state_that_lacks_a_number_harms_nobody() {
    rejoins_beside(Lie::OneNumberLess);
}

#[test]
fn a_state_of_a_step_to_come_harms_nobody() {
    rejoins_beside(Lie::Ahead);
}
