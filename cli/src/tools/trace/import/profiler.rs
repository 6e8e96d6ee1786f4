//! Steps of profiler traces (the trace format of Chrome), one file or several per rank.

mod events;

use crate::tools::times::Times;
use crate::tools::times::names;
use anyhow::{Context, anyhow};
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::input::Input;
use codedgrad_shell::output::Output;
use events::BrokenEvents;
use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What timelines of Horovod's have, which are traces in form alone.
const HOROVOD: &[u8] = b"NEGOTIATE_ALLREDUCE";
/// Microseconds, in which such traces count, in a second.
const PER_SECOND: f64 = 1e6;
/// What the names of steps begin with.
const STEP: &str = "ProfilerStep#";
/// What names of communication have in them, in small letters without underscores: the collectives,
/// and libraries for them.
const COMMUNICATION: [&str; 15] = [
    "gloo:",
    "mpi:",
    "c10d::",
    "ucc:",
    "hcom",
    "allreduce",
    "allgather",
    "reducescatter",
    "alltoall",
    "sendrecv",
    "ncclsend",
    "ncclrecv",
    "oneccl",
    "horovod",
    "barrier:",
];
/// What names of such libraries end with: nccl, rccl, oneccl, hccl, xccl.
const LIBRARY: &str = "ccl";
/// What the names of computation on the host begin with.
const HOST_COMPUTATION: &str = "aten::";

/// So much of a file tells whether it can be a trace: before its events are a host's devices.
const BEGINNING: usize = 64 << 10;
/// What stands at the beginning of a trace, and of no other JSON that has times of workers.
const MARKS: [&[u8]; 4] =
    [b"\"traceEvents\"", b"\"schemaVersion\"", b"\"deviceProperties\"", b"\"ph\""];
/// No trace is larger: it is read whole.
const TRACE_MAX: u64 = 4 << 30;

/// From when to when, in microseconds.
type Span = (f64, f64);

/// An event of a trace, as far as it is looked at.
#[derive(Default, Deserialize)]
pub(super) struct TraceEvent<'a> {
    #[serde(default, borrow)]
    ph: Cow<'a, str>,
    #[serde(default, borrow)]
    name: Cow<'a, str>,
    #[serde(default, borrow)]
    cat: Cow<'a, str>,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
}

/// What matters of the events of a trace.
#[derive(Default)]
pub(super) struct Events {
    host_steps: BTreeMap<u64, Span>,
    device_steps: BTreeMap<u64, Span>,
    host_computation: Vec<Span>,
    host_communication: Vec<Span>,
    device_computation: Vec<Span>,
    device_communication: Vec<Span>,
}

/// Whether a name, in small letters, is that of communication.
fn communicates(name: &str) -> bool {
    let plain = name.replace('_', "");
    let library = plain.match_indices(LIBRARY).any(|(at, word)| {
        // An occlusion is no communication.
        !plain[at + word.len()..].starts_with('u')
    });
    library || COMMUNICATION.iter().any(|word| plain.contains(word))
}

impl Events {
    fn add(&mut self, event: &TraceEvent<'_>) {
        let span = (event.ts, event.ts + event.dur);
        let legal = span.0.is_finite() && span.1.is_finite() && event.dur >= 0.0;
        if event.ph != "X" || !legal {
            return;
        }
        if let Some(number) = event.name.strip_prefix(STEP) {
            let Ok(number) = number.parse() else { return };
            let on_device = event.cat.eq_ignore_ascii_case("gpu_user_annotation");
            let steps = if on_device { &mut self.device_steps } else { &mut self.host_steps };
            // A step of several tracks is as long as all of them.
            let whole = steps.entry(number).or_insert(span);
            *whole = (whole.0.min(span.0), whole.1.max(span.1));
            return;
        }
        let name = event.name.to_lowercase();
        let communicates = communicates(&name);
        // Older profilers write `Kernel`, `Memcpy` and `Operator`.
        match &*event.cat.to_lowercase() {
            "kernel" | "gpu_memcpy" | "gpu_memset" | "memcpy" | "memset" => match communicates {
                true => self.device_communication.push(span),
                false => self.device_computation.push(span),
            },
            "cpu_op" | "operator" | "user_annotation" | "cpu_instant_event" => {
                if communicates {
                    self.host_communication.push(span);
                } else if name.starts_with(HOST_COMPUTATION) {
                    self.host_computation.push(span);
                }
            }
            _ => {}
        }
    }

    /// Whether it shows communication where computation is looked for.
    fn shows_communication(&self) -> bool {
        match self.device_computation.is_empty() {
            true => !self.host_communication.is_empty(),
            false => !self.device_communication.is_empty(),
        }
    }

    /// How long each step took without the time in which there was nothing but communication: on
    /// the device where there is one, else on the host.
    fn steps(self, cut: bool) -> impl Iterator<Item = (u64, f64)> {
        let on_device = !self.device_computation.is_empty();
        let (communication, computation) = match on_device {
            true => (self.device_communication, self.device_computation),
            false => (self.host_communication, self.host_computation),
        };
        let (communication, computation) = (united(communication), united(computation));
        let mut steps = match on_device && !self.device_steps.is_empty() {
            true => self.device_steps,
            false => self.host_steps,
        };
        // Of the last step before a cut events may be lost.
        if cut && steps.len() > 1 {
            steps.pop_last();
        }
        steps.into_iter().map(move |(number, step)| {
            let waiting: f64 =
                within(&communication, step).map(|span| alone(span, &computation)).sum();
            (number, (step.1 - step.0 - waiting).max(0.0))
        })
    }
}

/// The same time as spans that do not overlap, in order.
fn united(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut united: Vec<Span> = Vec::with_capacity(spans.len());
    for span in spans {
        match united.last_mut() {
            Some(last) if span.0 <= last.1 => last.1 = last.1.max(span.1),
            _ => united.push(span),
        }
    }
    united
}

/// The parts of spans, which do not overlap, that lie within another.
fn within(spans: &[Span], whole: Span) -> impl Iterator<Item = Span> + '_ {
    let first = spans.partition_point(|span| span.1 <= whole.0);
    let spans = spans[first..].iter().take_while(move |span| span.0 < whole.1);
    spans.map(move |span| (span.0.max(whole.0), span.1.min(whole.1)))
}

/// How much of a span no other covers.
fn alone(span: Span, others: &[Span]) -> f64 {
    let covered: f64 = within(others, span).map(|part| part.1 - part.0).sum();
    span.1 - span.0 - covered
}

/// Reads events one by one: traces are large, and little of them matters.
struct IntoEvents<'a>(&'a mut Events);

impl<'de> Visitor<'de> for IntoEvents<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(event) = list.next_element::<TraceEvent<'de>>()? {
            self.0.add(&event);
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for IntoEvents<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Deserialize<'de> for Events {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut events = Self::default();
        IntoEvents(&mut events).deserialize(deserializer)?;
        Ok(events)
    }
}

/// A trace with what is said of it.
#[derive(Deserialize)]
pub(super) struct ProfilerTrace {
    #[serde(rename = "traceEvents")]
    events: Events,
    #[serde(rename = "distributedInfo")]
    distributed: Option<DistributedInfo>,
}

#[derive(Deserialize)]
pub(super) struct DistributedInfo {
    rank: Option<u64>,
}

/// Whether a file begins as traces do. What a pipe gives is given once, so that it is not looked
/// at.
pub(super) fn is_trace(path: &Path) -> bool {
    let input = path.is_file().then(|| Input::open(path).ok()).flatten();
    let start = input.and_then(|input| input.with_start(BEGINNING).ok()).map(|(start, _)| start);
    start.is_some_and(|start| {
        let marked = |mark: &&[u8]| start.windows(mark.len()).any(|part| part == *mark);
        begins_as_json(&start) && MARKS.iter().any(marked)
    })
}

/// Whether an object or a list begins there.
fn begins_as_json(start: &[u8]) -> bool {
    matches!(start.trim_ascii_start().first(), Some(b'{' | b'['))
}

/// The bytes of a trace, of which there are so many at most. What cannot be one, such as a device
/// without end, is not read to its end.
fn contents(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    let cannot = || format!("cannot read the trace {name}");
    let (start, all) = Input::open(path)
        .and_then(|input| input.with_start(BEGINNING))
        .with_context(cannot)
        .or_input()?;
    if !begins_as_json(&start) {
        return Err(Failure::Input(anyhow!(
            "{name} is no trace of a profiler (traceEvents): it does not begin as JSON does"
        )));
    }
    let mut text = Vec::new();
    all.take(most.saturating_add(1)).read_to_end(&mut text).with_context(cannot).or_input()?;
    if text.len() as u64 > most {
        return Err(Failure::Input(anyhow!(
            "{name} has more than {} MiB: have the profiler record fewer steps",
            most >> 20
        )));
    }
    Ok(text)
}

/// The times of the steps of all ranks, in seconds.
pub(super) fn read(files: &[PathBuf], output: &mut Output<'_>) -> Result<Times, Failure> {
    let mut times = Times::default();
    let mut seen: BTreeMap<String, (String, BTreeSet<u64>)> = BTreeMap::new();
    for (path, own) in files.iter().zip(names::of_files(files)) {
        let name = path.display().to_string();
        let text = contents(path, TRACE_MAX)?;
        let (trace, broken) = parsed(&text, &name)?;
        if let Some(broken) = &broken {
            output.note(format_args!("warning: {name}: {broken}"));
        }
        let told = trace.distributed.and_then(|distributed| distributed.rank);
        let shown = trace.events.shows_communication();
        let cut = broken.is_some_and(|broken| broken.cut);
        let steps: Vec<(u64, f64)> = trace.events.steps(cut).collect();
        if steps.is_empty() && text.windows(HOROVOD.len()).any(|part| part == HOROVOD) {
            return Err(Failure::Input(anyhow!(
                "{name} is a timeline of Horovod's, which has collectives and no steps: what ranks \
                 compute is not in it. Log each rank's seconds from a step's beginning to its last \
                 gradient, and import them by --pattern"
            )));
        }
        if steps.is_empty() {
            return Err(Failure::Input(anyhow!(
                "{name} has no {STEP}N: the profiler must be told of steps (profiler.step())"
            )));
        }
        if !shown && files.len() > 1 {
            output.note(format_args!(
                "warning: {name} shows no communication that is known as such: what this rank \
                 waits for others counts as its own time, and who is slow may not be seen"
            ));
        }
        let worker = told.map_or(own, |rank| rank.to_string());
        let (other, before) = seen.entry(worker.clone()).or_insert((name.clone(), BTreeSet::new()));
        if let Some((step, _)) = steps.iter().find(|(step, _)| before.contains(step)) {
            let said = format!("{other} and {name} are both of rank {worker} and have step {step}");
            return Err(Failure::Input(anyhow!("{said}")));
        }
        for (step, time) in steps {
            before.insert(step);
            times.insert(&step.to_string(), &worker, time / PER_SECOND)?;
        }
    }
    if times.workers() == 1 {
        output.note(format_args!(
            "warning: that is one worker; give the traces of all ranks, a file of each"
        ));
    }
    Ok(times)
}

/// What a trace tells, and what is broken in it.
fn parsed(text: &[u8], name: &str) -> Result<(ProfilerTrace, Option<BrokenEvents>), Failure> {
    let list = text.trim_ascii_start().starts_with(b"[");
    let parsed = if list {
        let events = serde_json::from_slice(text);
        events.map(|events| ProfilerTrace { events, distributed: None })
    } else {
        serde_json::from_slice(text)
    };
    match parsed {
        Ok(trace) => Ok((trace, None)),
        Err(error) => events::rescued(&String::from_utf8_lossy(text), error.is_eof())
            .map(|(trace, broken)| (trace, Some(broken)))
            .ok_or(error)
            .with_context(|| format!("{name} is no trace of a profiler (traceEvents)"))
            .or_input(),
    }
}

#[cfg(test)]
mod tests;
