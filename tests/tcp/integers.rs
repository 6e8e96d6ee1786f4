//! A model of small integers and 64ths of them, and runs of it: whoever adds up its gradients, in
//! whichever order and language, the bits are the same. examples/python_worker.py trains the same.

use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::Step;
use codedgrad::run::{Limits, RunConfig, Shape};
use codedgrad::schedulers::{Engine, Settings};
use codedgrad::sums::DecodedSum;
use codedgrad::train::{
    Aggregator, Coordinator, Event, Flow, Incident, Observer, Outcome, RunClock, RunError,
    StepRecord,
};
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{Exchange, Join, Listen, TcpLink, TcpTransport};
use codedgrad::transport::{Link, RunFacts, Transport, local};
use std::error::Error;
use std::thread;
use std::time::Duration;

pub(crate) const WORKERS: usize = 3;
pub(crate) const UNITS: u32 = 3;
pub(crate) const UNIT_SAMPLES: usize = 2;
pub(crate) const RUN: u64 = 0xc0de;

/// What is trained, and how long.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    pub(crate) scheme: &'static str,
    pub(crate) length: usize,
    pub(crate) steps: u64,
    /// Who sums; if not the coordinator, it does not get the sums either.
    pub(crate) exchange: Exchange,
}

impl Job {
    fn config(self) -> RunConfig {
        let limits = Limits { max_wait_seconds: 20.0, ..Limits::default() };
        let usual = RunConfig::new(Shape::new(WORKERS, UNITS), self.length, self.steps);
        RunConfig { limits, ..usual }
    }
}

pub(crate) struct Secret {
    pub(crate) hex: String,
    pub(crate) security: Security,
}

pub(crate) fn secret() -> Secret {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let token = Token::fresh().unwrap();
    token.write(&path).unwrap();
    Secret { hex: std::fs::read_to_string(&path).unwrap(), security: Security::Plain { token } }
}

/// Adds the gradient of one sample.
pub(crate) fn add_gradient(
    out: &mut [f32],
    parameters: &[f32],
    batch: u64,
    sample: usize,
    coefficient: f64,
) {
    for (i, (out, p)) in out.iter_mut().zip(parameters).enumerate() {
        let target = ((7 * i + 13 * sample + 31 * batch as usize) % 101) as f32 - 50.0;
        *out += coefficient as f32 * (p.floor() - target);
    }
}

/// A worker, from its first event to its last; its parameters then. It is in no hurry at any step
/// before it `may` go on.
pub(crate) fn work(link: Box<dyn Link>, length: usize, may: impl Fn(u64) -> bool) -> Vec<f32> {
    train(Aggregator::new(link, length, UNIT_SAMPLES), may)
}

pub(crate) fn train(aggregator: Aggregator, may: impl Fn(u64) -> bool) -> Vec<f32> {
    train_until(aggregator, may, None)
}

/// The same by a worker that ends the run for all workers when it applies a step.
pub(crate) fn train_until(
    mut aggregator: Aggregator,
    may: impl Fn(u64) -> bool,
    last: Option<u64>,
) -> Vec<f32> {
    let mut parameters = vec![0.0f32; aggregator.length()];
    while let Ok(Some(event)) = aggregator.next_event() {
        match event {
            Event::Compute(mut task) => {
                let (batch, mut count) = (task.batch(), 0.0);
                while let Some(part) = task.next_part() {
                    while !may(batch) {
                        thread::sleep(Duration::from_millis(1));
                    }
                    let message = task.message();
                    message.fill(0.0);
                    for sample in part.samples {
                        add_gradient(message, &parameters, batch, sample, part.coefficient);
                        count += part.coefficient;
                    }
                }
                task.submit(vec![count]).unwrap();
            }
            Event::Apply(mut step) => {
                parameters.iter_mut().zip(step.gradient()).for_each(|(p, g)| *p -= g / 64.0);
                if last == Some(step.index) {
                    step.end_run();
                }
            }
            Event::Skip(_) => {}
            Event::Provide(request) => request.reply(vec![parameters.clone()]),
            Event::Resync(state) => parameters.clone_from(&state.vectors[0]),
        }
    }
    parameters
}

/// What came of a run.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) records: Vec<StepRecord>,
    /// The bits of every gradient.
    pub(crate) gradients: Vec<Vec<u32>>,
    pub(crate) faults: Vec<(u64, u32, String)>,
}

/// What is done at a fault of a worker.
type AtFault<'a> = Box<dyn FnMut(u32, &str) + 'a>;

/// Writes down what happens, and does something at every step, and at every fault of a worker.
pub(crate) struct Watch<'a> {
    pub(crate) log: Log,
    pub(crate) at: Box<dyn FnMut(u64) + 'a>,
    pub(crate) at_fault: AtFault<'a>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(at: impl FnMut(u64) + 'a) -> Self {
        Self { log: Log::default(), at: Box::new(at), at_fault: Box::new(|_, _| {}) }
    }
}

impl Observer for Watch<'_> {
    fn step(
        &mut self,
        record: &StepRecord,
        decoded: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn Error + Send + Sync>> {
        self.log.records.push(record.clone());
        let bits = |decoded: &DecodedSum| decoded.gradient.iter().map(|x| x.to_bits()).collect();
        self.log.gradients.push(decoded.map(bits).unwrap_or_default());
        (self.at)(record.step);
        Ok(Flow::Continue)
    }

    fn event(&mut self, Incident { step, what, .. }: &Incident) {
        let Some(worker) = what.worker() else { return };
        let said = what.to_string();
        (self.at_fault)(worker.0, &said);
        self.log.faults.push((step.0, worker.0, said));
    }
}

pub(crate) fn coordinate(
    job: Job,
    transport: impl Transport<Vector = Vec<f32>>,
    watch: &mut Watch<'_>,
) -> Result<Outcome, RunError> {
    let run_clock = RunClock::wall(WORKERS, &Delays::None, job.steps as usize, 0.0);
    coordinate_at(run_clock, job, transport, watch)
}

pub(crate) fn coordinate_at(
    run_clock: RunClock,
    job: Job,
    transport: impl Transport<Vector = Vec<f32>>,
    watch: &mut Watch<'_>,
) -> Result<Outcome, RunError> {
    let scheme =
        job.scheme.parse::<SchemeSpec>().unwrap().scheme(WORKERS, UNITS, 0..job.steps).unwrap();
    let engine = Engine::new(scheme, job.config(), Settings::default()).unwrap();
    Coordinator::new(transport, engine, run_clock).run(watch)
}

/// The run as it should be: gradients, and the parameters that all end with.
pub(crate) fn run_locally(job: Job) -> (Log, Vec<f32>) {
    let (transport, links) = local::connect(WORKERS);
    let begin = |link| thread::spawn(move || work(Box::new(link), job.length, |_| true));
    let threads: Vec<_> = links.into_iter().map(begin).collect();
    let mut watch = Watch::new(|_| {});
    assert_eq!(coordinate(job, transport, &mut watch).unwrap(), Outcome::Finished);
    let mut parameters: Vec<Vec<f32>> =
        threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(
        parameters.iter().all(|other| *other == parameters[0])
            && parameters[0].iter().any(|p| *p != 0.0)
    );
    (watch.log, parameters.remove(0))
}

pub(crate) fn listen(job: Job, secret: &Secret) -> TcpTransport {
    TcpTransport::listen(Listen {
        address: ([127, 0, 0, 1], 0).into(),
        security: secret.security.clone(),
        run: RUN,
        config: job.config(),
        exchange: job.exchange,
        overlap: true,
        keeps: job.exchange == Exchange::Star,
        first: Some(Step(0)),
        job: format!("{{\"unit_samples\":{UNIT_SAMPLES}}}"),
        facts: RunFacts::default(),
        sure: None,
        silence: Duration::from_secs(10),
        stall: Duration::from_secs(10),
        spare: Duration::from_secs(2),
    })
    .unwrap()
}

/// A worker of this process, over TCP.
pub(crate) fn join(
    job: Job,
    worker: u32,
    address: String,
    secret: &Secret,
    may: impl Fn(u64) -> bool + Send + 'static,
) -> thread::JoinHandle<Vec<f32>> {
    let patience = Duration::from_secs(10);
    let identity = format!("rust-{worker}");
    let join = Join {
        worker: Some(worker),
        identity,
        patience,
        ..Join::new(address, secret.security.clone())
    };
    thread::spawn(move || work(Box::new(TcpLink::join(join).unwrap().0), job.length, may))
}
