//! Steps of profiler traces (the trace format of Chrome), one file per rank.

use crate::output::Output;
use crate::{Failure, OrInput};
use anyhow::{Context, anyhow};
use codedgrad::delays::LongTable;
use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Microseconds, in which such traces count, in a second.
const PER_SECOND: f64 = 1e6;
/// What the names of steps begin with.
const STEP: &str = "ProfilerStep#";
/// What names of communication have in them, in small letters.
const COMMUNICATION: [&str; 5] = ["nccl", "gloo:", "mpi:", "c10d::", "ucc:"];
/// What the names of computation on the host begin with.
const HOST_COMPUTATION: &str = "aten::";

/// How compressed files begin.
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// So much of a file tells whether it can be a trace.
const BEGINNING: u64 = 4096;
/// No trace is larger: it is read whole.
const TRACE_MAX: u64 = 4 << 30;

/// From when to when, in microseconds.
type Span = (f64, f64);

/// An event of a trace, as far as it is looked at.
#[derive(Deserialize)]
struct TraceEvent<'a> {
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
struct Events {
    host_steps: BTreeMap<u64, Span>,
    device_steps: BTreeMap<u64, Span>,
    host_computation: Vec<Span>,
    host_communication: Vec<Span>,
    device_computation: Vec<Span>,
    device_communication: Vec<Span>,
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
            let on_device = event.cat == "gpu_user_annotation";
            let steps = if on_device { &mut self.device_steps } else { &mut self.host_steps };
            // A step of several tracks is as long as all of them.
            let whole = steps.entry(number).or_insert(span);
            *whole = (whole.0.min(span.0), whole.1.max(span.1));
            return;
        }
        let name = event.name.to_lowercase();
        let communicates = COMMUNICATION.iter().any(|word| name.contains(word));
        match &*event.cat {
            "kernel" | "gpu_memcpy" | "gpu_memset" if communicates => {
                self.device_communication.push(span);
            }
            "kernel" | "gpu_memcpy" | "gpu_memset" => self.device_computation.push(span),
            "cpu_op" | "user_annotation" if communicates => self.host_communication.push(span),
            "cpu_op" if name.starts_with(HOST_COMPUTATION) => self.host_computation.push(span),
            _ => {}
        }
    }

    /// How long each step took without the time in which there was nothing but communication: on
    /// the device where there is one, else on the host.
    fn steps(self) -> impl Iterator<Item = (u64, f64)> {
        let on_device = !self.device_computation.is_empty();
        let (communication, computation) = match on_device {
            true => (self.device_communication, self.device_computation),
            false => (self.host_communication, self.host_computation),
        };
        let (communication, computation) = (united(communication), united(computation));
        let steps = match on_device && !self.device_steps.is_empty() {
            true => self.device_steps,
            false => self.host_steps,
        };
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
struct ProfilerTrace {
    #[serde(rename = "traceEvents")]
    events: Events,
    #[serde(rename = "distributedInfo")]
    distributed: Option<Distributed>,
}

#[derive(Deserialize)]
struct Distributed {
    rank: Option<u64>,
}

/// The bytes of a trace, of which there are so many at most. What cannot be one, such as a device
/// without end, is not read to its end.
fn contents(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    let cannot = || format!("cannot read the trace {name}");
    let mut file = File::open(path).with_context(cannot).or_input()?;
    let mut text = Vec::new();
    file.by_ref().take(BEGINNING).read_to_end(&mut text).with_context(cannot).or_input()?;
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    let compressed = text.starts_with(&GZIP);
    if !compressed && !matches!(first, Some(b'{' | b'[')) {
        return Err(Failure::Input(anyhow!(
            "{name} is no trace of a profiler (traceEvents): it does not begin as JSON does"
        )));
    }
    if compressed {
        return Ok(text);
    }
    file.take(most).read_to_end(&mut text).with_context(cannot).or_input()?;
    if text.len() as u64 > most {
        return Err(Failure::Input(anyhow!(
            "{name} has more than {} MiB: have the profiler record fewer steps",
            most >> 20
        )));
    }
    Ok(text)
}

/// The times of the steps of all ranks, in seconds.
pub(super) fn read(files: &[PathBuf], output: &mut Output<'_>) -> Result<LongTable, Failure> {
    let mut table = LongTable::default();
    let mut ranks: BTreeMap<u64, &Path> = BTreeMap::new();
    for (number, path) in (0..).zip(files) {
        let name = path.display();
        let text = contents(path, TRACE_MAX)?;
        if text.starts_with(&GZIP) {
            return Err(Failure::Input(anyhow!("{name} is compressed: gunzip it first")));
        }
        let list = text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
        let parsed = if list {
            let events = serde_json::from_slice(&text);
            events.map(|events| ProfilerTrace { events, distributed: None })
        } else {
            serde_json::from_slice(&text)
        };
        let trace = parsed
            .with_context(|| format!("{name} is no trace of a profiler (traceEvents)"))
            .or_input()?;
        let told = trace.distributed.and_then(|distributed| distributed.rank);
        let steps: Vec<(u64, f64)> = trace.events.steps().collect();
        if steps.is_empty() {
            return Err(Failure::Input(anyhow!(
                "{name} has no {STEP}N: the profiler must be told of steps (profiler.step())"
            )));
        }
        let rank = told.or_else(|| last_number(path)).unwrap_or(number);
        if let Some(other) = ranks.insert(rank, path) {
            let other = other.display();
            return Err(Failure::Input(anyhow!("{other} and {name} are both of rank {rank}")));
        }
        for (step, time) in steps {
            table.insert(&step.to_string(), &rank.to_string(), time / PER_SECOND);
        }
    }
    if ranks.len() == 1 {
        output.note(format_args!(
            "warning: that is one worker; give the traces of all ranks, a file of each"
        ));
    }
    Ok(table)
}

/// The last number in a file's name.
fn last_number(path: &Path) -> Option<u64> {
    let name = path.file_stem()?.to_str()?;
    let mut numbers = name.split(|letter: char| !letter.is_ascii_digit());
    numbers.rfind(|number| !number.is_empty())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(events: &serde_json::Value) -> Vec<(u64, f64)> {
        let text = events.to_string();
        serde_json::from_str::<Events>(&text).unwrap().steps().collect()
    }

    fn event(name: &str, cat: &str, ts: f64, dur: f64) -> serde_json::Value {
        serde_json::json!({"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "args": {}})
    }

    #[test]
    fn a_file_is_read_with_a_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let said = |most| match contents(&path, most) {
            Err(Failure::Input(error)) => error.to_string(),
            other => panic!("{other:?}"),
        };
        let text = format!("{{\"traceEvents\": [{}]}}", " ".repeat(2 << 20));
        std::fs::write(&path, &text).unwrap();
        assert_eq!(contents(&path, text.len() as u64).unwrap(), text.as_bytes());
        assert!(said(1 << 20).contains("has more than 1 MiB"), "{}", said(1 << 20));
        std::fs::write(&path, vec![0; 8192]).unwrap();
        assert!(said(u64::MAX).contains("does not begin as JSON does"));
        if cfg!(unix) {
            let endless = contents(Path::new("/dev/zero"), TRACE_MAX);
            assert!(matches!(endless, Err(Failure::Input(_))), "{endless:?}");
        }
    }

    #[test]
    fn what_waits_for_others_is_left_out() {
        let host = [
            event("ProfilerStep#3", "user_annotation", 100.0, 50.0),
            event("ProfilerStep#4", "user_annotation", 150.0, 50.0),
            event("aten::mm", "cpu_op", 100.0, 25.0),
            // Beside a computation for 5, alone for 15, and 10 in the next step.
            event("gloo:all_reduce", "user_annotation", 120.0, 20.0),
            event("c10d::allreduce_", "cpu_op", 130.0, 5.0),
            event("gloo:all_reduce", "user_annotation", 145.0, 15.0),
            event("autograd::engine", "cpu_op", 100.0, 100.0),
        ];
        assert_eq!(steps(&host.to_vec().into()), [(3, 30.0), (4, 40.0)]);
        let mut device = host.to_vec();
        device.extend([
            event("ProfilerStep#3", "gpu_user_annotation", 200.0, 100.0),
            event("sgemm", "kernel", 200.0, 60.0),
            event("ncclDevKernel_AllReduce_Sum", "kernel", 250.0, 40.0),
        ]);
        assert_eq!(steps(&device.into()), [(3, 70.0)]);
    }

    #[test]
    fn what_is_no_span_is_passed_over() {
        let odd = serde_json::json!([
            {"ph": "M", "name": "process_name", "args": {"name": "python"}},
            {"ph": "X", "name": "ProfilerStep#x", "ts": 1.0, "dur": 1.0},
            {"ph": "X", "name": "ProfilerStep#1", "ts": 1.0, "dur": -1.0},
            {"ph": "i", "name": "ProfilerStep#2", "ts": 1.0, "s": "p"},
            {"ph": "X", "name": "quoted \"name\"", "cat": "cpu_op", "ts": 1, "dur": 2},
        ]);
        assert_eq!(steps(&odd), []);
    }

    #[test]
    fn ranks_are_in_names() {
        let rank = |name: &str| last_number(Path::new(name));
        assert_eq!(rank("a1/host_rank12.pt.trace.json"), Some(12));
        assert_eq!((rank("worker7.json"), rank("trace.json")), (Some(7), None));
    }
}
