//! A worker of a run, driven event by event.

use crate::arguments::{Deadline, duration, lock, token, value_error};
use crate::numbers::{Layout, gather, scatter};
use crate::states::{IncomingState, vectors_of};
use codedgrad::ids::{self, Job, Step, Task};
use codedgrad::train::{
    Aggregator, AggregatorError, Coordinator, JoinError, OwnedEvent, ProvideRequest, RunError,
    Samples,
};
use codedgrad::transport::tcp::{Environment, Secrets, TcpError};
use codedgrad::transport::wire::InitialReplica;
use codedgrad::transport::{Cancel, Closer, ExitReason, FailedUnit, RunFacts, Start};
use pyo3::exceptions::{PyConnectionError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Between two looks at Python's signals: less than a short step, or one of several workers that
/// are told to leave at once hears of it when the others have left.
const LOOK: Duration = Duration::from_millis(10);
/// The run of a worker alone waits this long.
const ALONE_WAIT: Duration = Duration::from_secs(365 * 86_400);

pyo3::create_exception!(
    codedgrad._native,
    Replaced,
    PyRuntimeError,
    "Another process has this worker's number."
);

pyo3::create_exception!(
    codedgrad._native,
    Refused,
    PyValueError,
    "The run refuses this worker for good: it trains something else."
);

pyo3::create_exception!(
    codedgrad._native,
    Changed,
    PyRuntimeError,
    "Gradients were changed after they were said to be final: what is wrong, the unit, and the \
     first and the last of the arrays."
);

pyo3::create_exception!(
    codedgrad._native,
    NotNow,
    PyValueError,
    "The run cannot be joined now, and may be later."
);

/// A worker's part in a run.
#[pyclass(frozen, module = "codedgrad._native")]
pub(crate) struct Worker {
    inner: Mutex<Inner>,
    closer: Closer,
    /// Tells whether the current task is wanted also while another thread hands gradients over.
    cancel: Mutex<Cancel>,
    layout: Layout,
    /// The process that has joined: threads of the transport do not survive a fork.
    process: u32,
}

/// A decoded gradient, which is kept as long as this is.
#[pyclass(frozen, module = "codedgrad._native")]
pub(crate) struct DecodedGradient(Arc<Vec<f32>>);

#[pymethods]
impl DecodedGradient {
    /// Where its numbers lie, which are float32.
    #[getter]
    fn address(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// How many it has.
    #[getter]
    fn numbers(&self) -> usize {
        self.0.len()
    }
}

struct Inner {
    /// None once the run is over: the coordinator ends when its workers have hung up.
    aggregator: Option<Aggregator>,
    /// Whether this worker has left a run that goes on.
    left: bool,
    /// What is known of the run when it is over.
    known: KnownRun,
    at_hand: AtHand,
    /// Whether the address of the current task's message was given to Python.
    lent: bool,
    /// What is to be taken over.
    state: IncomingState,
    /// The coordinator of a run of this process alone.
    coordinator: Option<JoinHandle<Result<(), RunError>>>,
}

/// What was given to Python last.
enum AtHand {
    Nothing,
    Task(Task),
    Step(Step),
    Request(ProvideRequest),
}

/// What is known of a run.
struct KnownRun {
    worker: u32,
    workers: usize,
    job: String,
    next: u64,
    saver: Option<ids::Worker>,
    late: Option<u32>,
    traffic: (u64, u64),
    /// Why it is over.
    why: Option<String>,
}

impl KnownRun {
    fn of(aggregator: &Aggregator) -> Self {
        Self {
            worker: aggregator.worker().map_or(0, |worker| worker.0),
            workers: aggregator.workers().unwrap_or(1),
            job: aggregator.job().to_owned(),
            next: aggregator.next_step().0,
            saver: aggregator.saver(),
            late: aggregator.late_workers(),
            traffic: aggregator.traffic(),
            why: aggregator.why_over().map(str::to_owned),
        }
    }
}

fn has_left() -> PyErr {
    PyConnectionError::new_err(
        "this worker has left the run: close() was called, or its loop was left",
    )
}

/// What a worker trains, as far as it knows.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Facts {
    units: Option<u32>,
    unit_samples: usize,
    micro_steps: u64,
    steps: u64,
    dtype: String,
    layout: u64,
    frozen: Option<u64>,
    /// A digest of what all replicas must have in common before the first step.
    start: Option<u64>,
    /// What else the loop is told, by the names of the arguments.
    settings: BTreeMap<String, String>,
}

/// By what the coordinator knows its workers.
fn secrets(text: Option<&str>, keys: Option<PathBuf>) -> PyResult<Option<Secrets>> {
    if text.is_none() && keys.is_none() {
        return Ok(None);
    }
    let token = text.map(token).transpose()?;
    Ok(Some(Secrets { keys, token, token_file: None }))
}

fn join_error(error: JoinError) -> PyErr {
    match error {
        JoinError::Tcp(TcpError::Unreachable { .. }) => {
            PyConnectionError::new_err(error.to_string())
        }
        JoinError::Tcp(TcpError::Replaced) => Replaced::new_err(error.to_string()),
        JoinError::Tcp(TcpError::Refused { again: false, .. }) => {
            Refused::new_err(error.to_string())
        }
        JoinError::Tcp(
            TcpError::Refused { .. } | TcpError::Listen { .. } | TcpError::Threads(_),
        ) => NotNow::new_err(error.to_string()),
        error => value_error(error),
    }
}

impl Worker {
    fn new(
        aggregator: Aggregator,
        layout: Layout,
        coordinator: Option<JoinHandle<Result<(), RunError>>>,
    ) -> Self {
        let closer = aggregator.closer();
        let inner = Inner {
            known: KnownRun::of(&aggregator),
            aggregator: Some(aggregator),
            left: false,
            at_hand: AtHand::Nothing,
            lent: false,
            state: IncomingState::default(),
            coordinator,
        };
        let (inner, cancel) = (Mutex::new(inner), Mutex::default());
        Self { inner, closer, cancel, layout, process: std::process::id() }
    }

    fn lock(&self) -> PyResult<MutexGuard<'_, Inner>> {
        if std::process::id() != self.process {
            return Err(PyRuntimeError::new_err(
                "this process was forked from the one that joined the run: a run is its alone. \
                 Do not touch it in the workers of a DataLoader",
            ));
        }
        Ok(lock(&self.inner))
    }
}

impl Inner {
    fn error(&mut self, error: AggregatorError) -> PyErr {
        match error {
            AggregatorError::Disconnected => {
                let why = self.coordinator.take().and_then(|thread| thread.join().ok());
                match why {
                    Some(Err(why)) => PyRuntimeError::new_err(why.to_string()),
                    _ => PyConnectionError::new_err(
                        "the coordinator is lost: it did not come back within the patience, or \
                         another run is in its place",
                    ),
                }
            }
            AggregatorError::Closed => has_left(),
            AggregatorError::Replaced => Replaced::new_err(error.to_string()),
            AggregatorError::Refused { .. } => Refused::new_err(error.to_string()),
            error => PyRuntimeError::new_err(error.to_string()),
        }
    }

    fn aggregator(&mut self) -> PyResult<&mut Aggregator> {
        let left = self.left;
        let over = || if left { has_left() } else { PyRuntimeError::new_err("the run is over") };
        self.aggregator.as_mut().ok_or_else(over)
    }

    /// The run is over: hangs up, once what was said last is sent.
    fn end(&mut self) {
        if let Some(aggregator) = self.aggregator.take() {
            self.known = KnownRun::of(&aggregator);
        }
    }

    /// Something of a run that goes on, or of one that is over.
    fn told<T>(&self, now: impl Fn(&Aggregator) -> T, then: impl Fn(&KnownRun) -> T) -> T {
        self.aggregator.as_ref().map_or_else(|| then(&self.known), now)
    }

    fn task(&self) -> PyResult<Task> {
        match self.at_hand {
            AtHand::Task(task) => Ok(task),
            _ => Err(PyRuntimeError::new_err("no task is open")),
        }
    }

    fn step(&self) -> PyResult<Step> {
        match self.at_hand {
            AtHand::Step(step) => Ok(step),
            _ => Err(PyRuntimeError::new_err("no decided step is open")),
        }
    }
}

#[pymethods]
impl Worker {
    /// Joins a run over TCP. Without a first step that is not applied in it, this worker has no
    /// replica: it takes over another one's state before anything else.
    #[staticmethod]
    #[pyo3(signature = (arrays, facts, first, address, token, keys, worker, patience))]
    #[expect(clippy::too_many_arguments, reason = "these are the arguments of Python's join")]
    fn join(
        py: Python<'_>,
        arrays: Vec<(usize, String)>,
        facts: Facts,
        first: Option<u64>,
        address: Option<String>,
        token: Option<&str>,
        keys: Option<PathBuf>,
        worker: Option<u32>,
        patience: f64,
    ) -> PyResult<Self> {
        let layout = Layout::new(&arrays)?;
        let facts = RunFacts {
            length: Some(layout.length()),
            units: facts.units,
            unit_samples: Some(facts.unit_samples),
            micro_steps: Some(facts.micro_steps),
            models: Some(1),
            steps: Some(facts.steps),
            dtype: Some(facts.dtype),
            layout: Some(facts.layout),
            frozen: facts.frozen,
            start: first
                .zip(facts.start)
                .map(|(first, digest)| Start { step: Step(first), digest }),
            settings: facts.settings,
        };
        let environment = Environment::of_process().map_err(value_error)?;
        let address = address.or_else(|| environment.address.clone());
        let address = address.ok_or_else(|| {
            PyValueError::new_err("no address: say address=\"host:port\" or set CODEDGRAD_ADDRESS")
        })?;
        let worker = worker.or(environment.worker);
        let mut joining = Aggregator::join(address)
            .facts(facts)
            .has(first.map_or(InitialReplica::Nothing, |first| InitialReplica::Below(Step(first))))
            .patience(duration("patience", patience)?);
        if let Some(worker) = worker {
            joining = joining.worker(worker);
        }
        if let Some(secrets) = secrets(token, keys)? {
            joining = joining.security(secrets.security(worker).map_err(value_error)?);
        }
        // A call that is given up for a signal goes on in its thread, and ends by its patience.
        let calling = thread::spawn(move || joining.connect());
        while !calling.is_finished() {
            py.detach(|| thread::sleep(Duration::from_millis(1)));
            py.check_signals()?;
        }
        let joined = calling.join();
        let joined = joined.map_err(|_| PyRuntimeError::new_err("the transport has panicked"))?;
        Ok(Self::new(joined.map_err(join_error)?, layout, None))
    }

    /// A run of this process alone: uncoded, by the same summation tree as any other.
    #[staticmethod]
    fn alone(arrays: Vec<(usize, String)>, facts: Facts, first: u64) -> PyResult<Self> {
        let layout = Layout::new(&arrays)?;
        let mut run = Coordinator::builder("uncoded")
            .workers(1)
            .steps(facts.steps)
            .first(first)
            .length(layout.length())
            .unit_samples(facts.unit_samples)
            .micro_steps(facts.micro_steps)
            .max_wait(ALONE_WAIT);
        if let Some(units) = facts.units {
            run = run.units(units);
        }
        let (coordinator, workers) = run.local().map_err(value_error)?;
        let worker = workers.into_iter().next();
        let worker = worker.ok_or_else(|| PyRuntimeError::new_err("a run without workers"))?;
        let thread = thread::spawn(move || coordinator.run(&mut ()).map(|_| ()));
        Ok(Self::new(worker, layout, Some(thread)))
    }

    /// The worker's number.
    #[getter]
    fn worker(&self) -> PyResult<u32> {
        Ok(self.lock()?.known.worker)
    }

    /// How many workers the run has.
    #[getter]
    fn workers(&self) -> PyResult<usize> {
        Ok(self.lock()?.known.workers)
    }

    /// What the coordinator says of the run.
    #[getter]
    fn job(&self) -> PyResult<String> {
        Ok(self.lock()?.known.job.clone())
    }

    /// The first step that is not applied.
    #[getter]
    fn next_step(&self, py: Python<'_>) -> PyResult<u64> {
        // Another thread may wait for an event with the lock.
        py.detach(|| Ok(self.lock()?.told(|worker| worker.next_step().0, |known| known.next)))
    }

    /// The worker that saves, as of the last decided step.
    #[getter]
    fn saver(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        py.detach(|| Ok(self.lock()?.told(Aggregator::saver, |known| known.saver).map(|it| it.0)))
    }

    /// How many workers were late at the last decided step.
    #[getter]
    fn late_workers(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        py.detach(|| Ok(self.lock()?.told(Aggregator::late_workers, |known| known.late)))
    }

    /// Why the run is over, if the coordinator has said so.
    #[getter]
    fn why_over(&self, py: Python<'_>) -> PyResult<Option<String>> {
        py.detach(|| Ok(self.lock()?.known.why.clone()))
    }

    /// Bytes sent and received.
    fn traffic(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        py.detach(|| Ok(self.lock()?.told(Aggregator::traffic, |known| known.traffic)))
    }

    /// The next event, as a tuple that begins with its name; none when nothing comes in time.
    #[pyo3(signature = (seconds=None))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        seconds: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let deadline = Deadline::after(seconds)?;
        loop {
            let left = deadline.left(LOOK);
            let event = py.detach(|| {
                let mut inner = self.lock()?;
                inner.at_hand = AtHand::Nothing;
                let event = inner.aggregator()?.next_event_within(left);
                if matches!(event, Ok(Some(OwnedEvent::Over))) {
                    inner.end();
                }
                event.map_err(|error| inner.error(error))
            })?;
            if let Some(event) = event {
                return self.shown(py, event).map(Some);
            }
            py.check_signals()?;
            if deadline.is_over() {
                return Ok(None);
            }
        }
    }

    /// All units of the current task, with their samples in the batch and their coefficients.
    fn parts(&self) -> PyResult<Vec<(u32, usize, usize, f64)>> {
        let mut inner = self.lock()?;
        let task = inner.task()?;
        let parts = inner.aggregator()?.parts(task).map_err(|error| inner.error(error))?;
        let shown =
            |part: Samples| (part.unit, part.samples.start, part.samples.end, part.coefficient);
        Ok(parts.into_iter().map(shown).collect())
    }

    /// Whether the run still wants the current task.
    fn wanted(&self) -> bool {
        !self.closer.is_closed() && !lock(&self.cancel).is_cancelled()
    }

    /// Goes on to the next unit of the current task, whose gradient is taken from now on, if the
    /// run wants it. `summed`: the units' gradients are added up elsewhere, and of the last one the
    /// sum of all is taken.
    #[pyo3(signature = (summed=false))]
    fn part(&self, py: Python<'_>, summed: bool) -> PyResult<()> {
        // What was written before is added up here.
        py.detach(|| {
            let mut inner = self.lock()?;
            let task = inner.task()?;
            let aggregator = inner.aggregator()?;
            let part = match summed {
                true => aggregator.summed_part(task),
                false => aggregator.part(task),
            };
            part.map(|_| ()).map_err(|error| inner.error(error))
        })
    }

    /// Where the current unit's message lies until the task is handed in, and how many numbers it
    /// has, which are float32; none if the run does not want it any more.
    fn message(&self, py: Python<'_>) -> PyResult<Option<(usize, usize)>> {
        py.detach(|| {
            let mut inner = self.lock()?;
            let task = inner.task()?;
            let found = match inner.aggregator()?.buffer(task) {
                Ok(buffer) => Some((buffer.as_mut_ptr().expose_provenance(), buffer.len())),
                Err(AggregatorError::NoPart { .. }) if !self.wanted() => None,
                Err(error) => return Err(inner.error(error)),
            };
            inner.lent = found.is_some();
            Ok(found)
        })
    }

    /// Says that some arrays' numbers are in the message, and do not change any more.
    fn written(&self, py: Python<'_>, first: usize, count: usize) -> PyResult<()> {
        let (start, layout) = self.layout.part(first, count)?;
        self.write(py, |aggregator, task| aggregator.ready(task, start..start + layout.length()))
    }

    /// Takes the gradient of the current unit, times a factor.
    fn take(
        &self,
        py: Python<'_>,
        arrays: Vec<Option<Bound<'_, PyAny>>>,
        factor: f64,
    ) -> PyResult<()> {
        let sources = self.layout.sources(&arrays)?;
        let bare = sources.iter().map(|source| source.bare()).collect::<PyResult<Vec<_>>>()?;
        self.write(py, |aggregator, task| {
            gather(&bare, factor as f32, aggregator.buffer(task)?);
            Ok(())
        })
    }

    /// Whether it is of use to say of arrays of the current task's last unit that they are ready.
    fn in_parts(&self) -> PyResult<bool> {
        let mut inner = self.lock()?;
        let task = inner.task()?;
        let useful = inner.aggregator()?.in_parts(task);
        useful.map_err(|error| inner.error(error))
    }

    /// Takes the gradients of some arrays of the current unit, times a factor, which do not change
    /// any more: they can be summed while the others are computed.
    fn ready(
        &self,
        py: Python<'_>,
        first: usize,
        arrays: Vec<Option<Bound<'_, PyAny>>>,
        factor: f64,
    ) -> PyResult<()> {
        let (start, layout) = self.layout.part(first, arrays.len())?;
        let sources = layout.sources(&arrays)?;
        let bare = sources.iter().map(|source| source.bare()).collect::<PyResult<Vec<_>>>()?;
        let numbers = start..start + layout.length();
        self.write(py, |aggregator, task| {
            gather(&bare, factor as f32, &mut aggregator.buffer(task)?[numbers.clone()]);
            aggregator.ready(task, numbers)
        })
    }

    /// Hands the current task in, with scalars to be decoded; false if the run wanted it no more.
    /// `finite`: whether all of its numbers are, where that is known.
    #[pyo3(signature = (tail, finite=None))]
    fn submit(&self, py: Python<'_>, tail: Vec<f64>, finite: Option<bool>) -> PyResult<bool> {
        py.detach(|| {
            let mut inner = self.lock()?;
            let task = inner.task()?;
            let aggregator = inner.aggregator()?;
            let wanted = !aggregator.cancel().is_cancelled();
            let looked = finite.map_or(Ok(()), |finite| aggregator.looked(task, finite));
            let done = looked.and_then(|()| aggregator.submit(task, tail));
            done.map_err(|error| match error {
                AggregatorError::Changed { unit, start, end, .. } => {
                    let (first, last) = self.layout.arrays_of(start..end);
                    Changed::new_err((error.to_string(), unit, first, last))
                }
                error => inner.error(error),
            })?;
            inner.at_hand = AtHand::Nothing;
            inner.lent = false;
            Ok(wanted)
        })
    }

    /// Scalars decoded with the current step.
    fn tail(&self) -> PyResult<Vec<f64>> {
        let mut inner = self.lock()?;
        let step = inner.step()?;
        match inner.aggregator()?.aux(step) {
            Ok(tail) => Ok(tail.to_vec()),
            Err(error) => Err(inner.error(error)),
        }
    }

    /// Writes the decoded gradient of the current step, times a factor, to some arrays.
    fn give(
        &self,
        py: Python<'_>,
        first: usize,
        arrays: Vec<Option<Bound<'_, PyAny>>>,
        factor: f32,
    ) -> PyResult<()> {
        let (start, layout) = self.layout.part(first, arrays.len())?;
        let mut targets = layout.targets(&arrays)?;
        let mut bare =
            targets.iter_mut().map(|target| target.bare()).collect::<PyResult<Vec<_>>>()?;
        py.detach(|| {
            let mut inner = self.lock()?;
            let step = inner.step()?;
            match inner.aggregator()?.gradient(step) {
                Ok(gradient) => {
                    scatter(&gradient[start..start + layout.length()], factor, &mut bare);
                    Ok(())
                }
                Err(error) => Err(inner.error(error)),
            }
        })
    }

    /// The decoded gradient of the current step, where it lies.
    fn decoded(&self) -> PyResult<DecodedGradient> {
        let mut inner = self.lock()?;
        let step = inner.step()?;
        match inner.aggregator()?.shared_gradient(step) {
            Ok(gradient) => Ok(DecodedGradient(gradient)),
            Err(error) => Err(inner.error(error)),
        }
    }

    /// Reports the current step as applied, or counted.
    #[pyo3(signature = (digest=None))]
    fn applied(&self, digest: Option<u64>) -> PyResult<()> {
        let mut inner = self.lock()?;
        let step = inner.step()?;
        inner.at_hand = AtHand::Nothing;
        let done = inner.aggregator()?.applied(step, digest);
        done.map_err(|error| inner.error(error))
    }

    /// Answers the current request with this replica's state: byte strings of these lengths, whose
    /// bytes come in pieces, one behind the other.
    fn provide(
        &self,
        py: Python<'_>,
        lengths: Vec<usize>,
        pieces: Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let request = {
            let mut inner = self.lock()?;
            match std::mem::replace(&mut inner.at_hand, AtHand::Nothing) {
                AtHand::Request(request) => request,
                other => {
                    inner.at_hand = other;
                    return Err(PyRuntimeError::new_err("no state is asked for"));
                }
            }
        };
        request.reply(vectors_of(py, lengths, &pieces)?);
        Ok(())
    }

    /// How long each byte string of the state is that is to be taken over.
    fn state_lengths(&self) -> PyResult<Vec<usize>> {
        self.lock()?.state.lengths()
    }

    /// Some bytes of one of them, which is given back with its last byte.
    fn state_piece<'py>(
        &self,
        py: Python<'py>,
        vector: usize,
        start: usize,
        size: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.lock()?.state.piece(py, (vector, start, size))
    }

    /// The whole state that is to be taken over.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let lengths = self.state_lengths()?;
        let whole = |(vector, length)| self.state_piece(py, vector, 0, length);
        lengths.into_iter().enumerate().map(whole).collect()
    }

    /// Says that the current state was taken over.
    fn taken(&self, digests: Vec<u64>) -> PyResult<()> {
        let mut inner = self.lock()?;
        inner.state.clear();
        let done = inner.aggregator()?.taken(digests);
        done.map_err(|error| inner.error(error))
    }

    /// Says that the current state does not fit.
    fn refuse(&self, reason: String) -> PyResult<()> {
        let mut inner = self.lock()?;
        inner.state.clear();
        let done = inner.aggregator()?.refuse(reason);
        done.map_err(|error| inner.error(error))
    }

    /// Ends the run for all workers after the step that is open.
    fn finish(&self) -> PyResult<()> {
        if let Some(aggregator) = &mut self.lock()?.aggregator {
            aggregator.end_run();
        }
        Ok(())
    }

    /// Hangs up: this worker was not to join the run.
    fn close(&self) {
        if std::process::id() == self.process {
            self.closer.close();
        }
    }

    /// Says that this worker leaves within so many seconds: it goes on until it is let go, which
    /// shows as the end of the run.
    fn give_notice(&self, seconds: f64) -> PyResult<()> {
        let notice = duration("notice", seconds)?;
        if std::process::id() == self.process {
            self.closer.leave(notice);
        }
        Ok(())
    }

    /// Whether it has said that it leaves.
    #[getter]
    fn leaving(&self) -> bool {
        self.closer.is_leaving()
    }

    /// Leaves a run that goes on, and says why and how (`_core.parting.How`); where something went
    /// wrong, at which place of the script, and in which unit of which batch, of which samples, if
    /// it was in one. The word is on its way when this returns: the process may end.
    #[pyo3(signature = (reason, how, unit=None, place=None))]
    fn leave(
        &self,
        py: Python<'_>,
        reason: &str,
        how: &str,
        unit: Option<(u64, u32, usize, usize)>,
        place: Option<&str>,
    ) {
        if std::process::id() != self.process {
            return;
        }
        let failed = unit.map(|(batch, unit, start, end)| FailedUnit {
            job: Job(batch),
            unit,
            samples: start..end,
        });
        let word = match how {
            "for good" => ExitReason::for_good(reason),
            "told" => ExitReason::told(reason),
            "misuse" => ExitReason { failed, ..ExitReason::misuse(reason) },
            _ => ExitReason::failed(failed, reason),
        };
        self.closer.part(match place {
            Some(place) => word.at(place),
            None => word,
        });
        py.detach(|| {
            let mut inner = lock(&self.inner);
            inner.left = true;
            if inner.lent
                && let Some(aggregator) = &mut inner.aggregator
            {
                // Copies into the message may still be on their way.
                aggregator.forget_task();
            }
            inner.end();
        });
    }
}

impl Worker {
    /// Writes into the current unit, if the run still wants it.
    fn write(
        &self,
        py: Python<'_>,
        write: impl Send + FnOnce(&mut Aggregator, Task) -> Result<(), AggregatorError>,
    ) -> PyResult<()> {
        py.detach(|| {
            let mut inner = self.lock()?;
            let task = inner.task()?;
            match write(inner.aggregator()?, task) {
                // It was given up before this unit's turn came.
                Err(AggregatorError::NoPart { .. }) if !self.wanted() => Ok(()),
                done => done.map_err(|error| inner.error(error)),
            }
        })
    }

    /// An event in Python's words.
    fn shown<'py>(&self, py: Python<'py>, event: OwnedEvent) -> PyResult<Bound<'py, PyTuple>> {
        let mut inner = self.lock()?;
        match event {
            OwnedEvent::Compute(task) => {
                inner.at_hand = AtHand::Task(task);
                let aggregator = inner.aggregator()?;
                *lock(&self.cancel) = aggregator.cancel();
                let step = aggregator.step_of(task).0;
                ("compute", step, task.job.0).into_pyobject(py)
            }
            OwnedEvent::Apply(step) => {
                inner.at_hand = AtHand::Step(step);
                ("apply", step.0).into_pyobject(py)
            }
            OwnedEvent::Skip { step, units } => {
                inner.at_hand = AtHand::Step(step);
                let units: Vec<_> = units.iter().map(|units| (units.start, units.end)).collect();
                ("skip", step.0, units).into_pyobject(py)
            }
            OwnedEvent::Provide(request) => {
                let next = request.next_step().0;
                inner.at_hand = AtHand::Request(request);
                ("provide", next).into_pyobject(py)
            }
            OwnedEvent::Resync(state) => {
                let next = state.next.0;
                inner.state.set(state);
                ("resync", next).into_pyobject(py)
            }
            OwnedEvent::Over => ("over",).into_pyobject(py),
        }
    }
}
