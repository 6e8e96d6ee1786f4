//! A run that is served from a thread of this process.

use crate::arguments::{Deadline, duration, lock, token, value_error};
use crate::numbers::format_of;
use codedgrad::codes::SchemeSpec;
use codedgrad::run::NumberFormat;
use codedgrad::sums::DecodedSum;
use codedgrad::train::{
    self, AUTO, AutoSteps, Flow, Observer, Outcome, RunError, StepRecord, Stopper,
};
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{Exchange, Secrets, set_io_threads};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between two looks at Python's signals, and at whether the run is over.
const LOOK: Duration = Duration::from_millis(5);

/// A coordinator that runs.
#[pyclass(frozen, module = "codedgrad._native")]
pub(crate) struct Coordinator {
    address: String,
    token: Option<String>,
    stopper: Stopper,
    decided: Arc<Mutex<StepCounts>>,
    thread: Mutex<Option<JoinHandle<Result<Outcome, RunError>>>>,
}

/// What is known of the steps so far.
#[derive(Clone, Debug, Default)]
struct StepCounts {
    steps: u64,
    refused: u64,
    survivors: Vec<u32>,
}

/// A run, as Python tells it: one mapping, which all of these are read from.
struct RunSettings {
    run: Run,
    port: Port,
    limits: Limits,
}

/// What is made, and by how many.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Run {
    scheme: String,
    workers: usize,
    units: u32,
    steps: u64,
    length: usize,
    first: u64,
    unit_samples: usize,
    micro_steps: u64,
}

/// Where workers call, how they are known, and how vectors travel.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Port {
    address: String,
    token: Option<String>,
    keys: Option<PathBuf>,
    wire: String,
    exchange: Option<String>,
    io_threads: Option<usize>,
}

/// How long the run waits for a worker, in seconds, and with how few it goes on.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Limits {
    min_workers: Option<usize>,
    settle: Option<f64>,
    max_wait: Option<f64>,
    gather: Option<f64>,
    return_within: Option<f64>,
    silence: Option<f64>,
    log_steps: Option<u64>,
    unit_tries: u32,
}

impl Run {
    fn builder(&self) -> PyResult<train::Builder> {
        let auto = AutoSteps::parse(&self.scheme).map_err(value_error)?.map(AutoSteps::auto);
        let spec = if auto.is_some() { Ok(SchemeSpec::uncoded()) } else { self.scheme.parse() };
        let spec = spec.map_err(value_error)?;
        let name = if auto.is_some() { self.scheme.clone() } else { spec.to_string() };
        let run = train::Coordinator::builder(spec)
            .unmixed()
            .workers(self.workers)
            .units(self.units)
            .steps(self.steps)
            .first(self.first)
            .length(self.length)
            .unit_samples(self.unit_samples)
            .micro_steps(self.micro_steps)
            .job(format!("{{\"scheme\":{name:?}}}"));
        Ok(match auto {
            Some(auto) => run.auto(auto),
            None => run,
        })
    }
}

impl Port {
    fn security(&self) -> PyResult<Security> {
        let token = match (&self.token, &self.keys) {
            (Some(text), _) => Some(token(text)?),
            // Beside keys there may be one.
            (None, Some(_)) => None,
            (None, None) => Some(Token::fresh().map_err(value_error)?),
        };
        let secrets = Secrets { keys: self.keys.clone(), token, token_file: None };
        secrets.of_coordinator().map_err(value_error)
    }

    fn applied(&self, run: train::Builder) -> PyResult<train::Builder> {
        let run = run.wire(wire(&self.wire)?);
        let Some(exchange) = &self.exchange else { return Ok(run) };
        Ok(run.exchange(exchange.parse::<Exchange>().map_err(PyValueError::new_err)?))
    }
}

impl Limits {
    fn applied(&self, mut run: train::Builder) -> PyResult<train::Builder> {
        if let Some(fewest) = self.min_workers {
            run = run.min_workers(fewest);
        }
        if let Some(seconds) = self.settle {
            run = run.settle_within(duration("settle", seconds)?);
        }
        if let Some(steps) = self.log_steps {
            run = run.log_steps(steps);
        }
        run = run.unit_tries(self.unit_tries);
        if let Some(seconds) = self.max_wait {
            run = run.max_wait(duration("max_wait", seconds)?);
        }
        if let Some(seconds) = self.gather {
            run = run.gather_within(duration("gather", seconds)?);
        }
        if let Some(seconds) = self.return_within {
            run = run.return_within(duration("return_within", seconds)?);
        }
        if let Some(seconds) = self.silence {
            run = run.silence(duration("silence", seconds)?);
        }
        Ok(run)
    }
}

impl RunSettings {
    fn of(told: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { run: told.extract()?, port: told.extract()?, limits: told.extract()? })
    }

    fn builder(&self) -> PyResult<train::Builder> {
        self.limits.applied(self.port.applied(self.run.builder()?)?)
    }
}

fn wire(name: &str) -> PyResult<NumberFormat> {
    let framed = |format: &NumberFormat| *format != NumberFormat::F16;
    format_of(name).filter(framed).ok_or_else(|| {
        PyValueError::new_err(format!(
            "wire is {name:?}: vectors travel as \"float32\" or \"bfloat16\""
        ))
    })
}

/// Counts steps.
struct Counter(Arc<Mutex<StepCounts>>);

impl Observer for Counter {
    fn step(
        &mut self,
        record: &StepRecord,
        _decoded: Option<&DecodedSum>,
    ) -> Result<Flow, Box<dyn std::error::Error + Send + Sync>> {
        if let Some(why) = record.under.using.as_ref().and_then(|using| using.why.as_ref()) {
            eprintln!("codedgrad: {AUTO}: step {}: {why}", record.step);
        }
        let mut decided = lock(&self.0);
        decided.steps = record.step + 1;
        decided.refused += u64::from(!record.refused.is_empty());
        decided.survivors = record.survivors.iter().map(|worker| worker.0).collect();
        Ok(Flow::Continue)
    }
}

#[pymethods]
impl Coordinator {
    #[new]
    fn new(told: &Bound<'_, PyAny>) -> PyResult<Self> {
        let told = RunSettings::of(told)?;
        let security = told.port.security()?;
        let token = match &security {
            Security::Plain { token } => Some(token.hex()),
            Security::Tls { token, .. } => token.as_ref().map(Token::hex),
        };
        told.port.io_threads.map_or(Ok(()), set_io_threads).map_err(value_error)?;
        let served = told.builder()?.serve(&told.port.address, security).map_err(value_error)?;
        let (address, stopper) = (served.address().to_string(), served.stopper());
        let decided =
            Arc::new(Mutex::new(StepCounts { steps: told.run.first, ..StepCounts::default() }));
        let mut counter = Counter(Arc::clone(&decided));
        let thread = thread::spawn(move || served.run(&mut counter));
        Ok(Self { address, token, stopper, decided, thread: Mutex::new(Some(thread)) })
    }

    /// Where it listens.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// The job's token, if there is one.
    #[getter]
    fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// Steps decided, those before the first counted; those refused; and whose results are in the
    /// last one.
    fn decided(&self) -> (u64, u64, Vec<u32>) {
        let StepCounts { steps, refused, survivors } = lock(&self.decided).clone();
        (steps, refused, survivors)
    }

    /// Waits until the run is over: true if it came to its end, false if it was stopped, none
    /// if it still goes on after so many seconds.
    #[pyo3(signature = (seconds=None))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<bool>> {
        let deadline = Deadline::after(seconds)?;
        let ended = || lock(&self.thread).as_ref().is_none_or(JoinHandle::is_finished);
        while !ended() {
            if deadline.is_over() {
                return Ok(None);
            }
            py.detach(|| thread::sleep(LOOK));
            py.check_signals()?;
        }
        let thread = lock(&self.thread).take();
        let thread = thread.ok_or_else(|| PyRuntimeError::new_err("it was waited for before"))?;
        match thread.join() {
            Ok(Ok(outcome)) => Ok(Some(matches!(outcome, Outcome::Finished | Outcome::Left))),
            Ok(Err(error)) => Err(PyRuntimeError::new_err(error.to_string())),
            Err(_) => Err(PyRuntimeError::new_err("the coordinator has panicked")),
        }
    }

    /// Ends the run at the next step.
    fn stop(&self) {
        self.stopper.stop();
    }
}
