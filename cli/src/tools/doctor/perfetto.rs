//! The steps of a run as a trace in the format that Perfetto and Chrome open.

use super::advice::Advice;
use codedgrad::doctor::{Record, RecordedRound, RunContext, RunEvent, TimelineStep};
use serde_json::json;
use std::io::{self, Write};

/// How a trace begins, by which it is known again.
pub(super) const OPENING: &str =
    r#"{"otherData":{"writer":"codedgrad doctor"},"displayTimeUnit":"ms","traceEvents":["#;

/// Writes the trace entry by entry: a million results would not fit into memory at once.
pub(super) fn write(
    record: &Record,
    known: &RunContext<'_>,
    advice: &Advice<'_>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let workers = record.workers();
    let mut trace = Trace { out, round: 0, decision: 0, place: 0 };
    let process = json!({"ph": "M", "pid": 0, "tid": 0, "name": "process_name",
        "args": {"name": "coordinator"}});
    write!(trace.out, "{OPENING}{process}")?;
    for worker in 0..workers {
        let name = format!("worker {}", advice.name(worker));
        let process = json!({"ph": "M", "pid": worker + 1, "tid": 0, "name": "process_name",
            "args": {"name": name}});
        write!(trace.out, ",\n{process}")?;
    }
    record.timeline().try_for_each(|step| trace.step(&step))?;
    record.dated_events(known.events).try_for_each(|dated| trace.event(dated))?;
    writeln!(trace.out, "]}}")
}

/// A moment of the run in whole microseconds.
fn micros(seconds: f64) -> u64 {
    (seconds * 1e6).round() as u64
}

/// A trace that is being written. A slice begins where the one before it on its thread ended, or
/// later: viewers nest slices that overlap.
struct Trace<'a> {
    out: &'a mut dyn Write,
    /// Where the last round ended, and the last decision.
    round: u64,
    decision: u64,
    /// Rounds so far; a resumed run may use their numbers again.
    place: usize,
}

impl Trace<'_> {
    fn step(&mut self, step: &TimelineStep<'_>) -> io::Result<()> {
        step.rounds.iter().try_for_each(|round| self.round(step, round))?;
        if step.rounds.is_empty() {
            return Ok(());
        }
        let start = self.round.max(self.decision);
        self.decision = micros(step.committed).max(start);
        write!(
            self.out,
            ",\n{{\"ph\":\"X\",\"pid\":0,\"tid\":1,\"name\":\"decide step {0}\",\"ts\":{start},\
             \"dur\":{1},\"args\":{{\"step\":{0}}}}}",
            step.step,
            self.decision - start
        )
    }

    fn round(&mut self, step: &TimelineStep<'_>, round: &RecordedRound) -> io::Result<()> {
        let opened = micros(round.opened).max(self.round);
        let close = micros(round.opened + round.seconds).max(opened);
        self.round = close;
        write!(
            self.out,
            ",\n{{\"ph\":\"X\",\"pid\":0,\"tid\":0,\"name\":\"round {}\",\"ts\":{opened},\
             \"dur\":{},\"args\":{{\"step\":{}}}}}",
            round.round,
            close - opened,
            step.step
        )?;
        for (worker, arrival) in round.arrivals.iter().enumerate() {
            if arrival.is_none() && !step.has_task(worker) {
                continue;
            }
            let end = arrival.map_or(close, |arrival| micros(round.opened + arrival));
            let end = end.clamp(opened, close);
            let name = if arrival.is_some() { "answer" } else { "abandoned" };
            write!(
                self.out,
                ",\n{{\"ph\":\"X\",\"pid\":{},\"tid\":0,\"name\":\"{name}\",\"ts\":{opened},\
                 \"dur\":{},\"args\":{{\"round\":{},\"step\":{}}}}}",
                worker + 1,
                end - opened,
                round.round,
                step.step
            )?;
            // An arrow begins and ends within a slice, so that both need a length.
            if end > opened && arrival.is_some() && step.counts(worker) {
                let id = self.place * round.arrivals.len() + worker;
                self.arrow(id, (worker + 1, end - 1), close - 1)?;
            }
        }
        self.place += 1;
        Ok(())
    }

    /// Draws an arrow from a moment of a process to one of the coordinator.
    fn arrow(&mut self, id: usize, (process, from): (usize, u64), to: u64) -> io::Result<()> {
        let what = format!("\"name\":\"used\",\"cat\":\"answer\",\"id\":{id}");
        write!(
            self.out,
            ",\n{{\"ph\":\"s\",\"pid\":{process},\"tid\":0,{what},\"ts\":{from}}},\n\
             {{\"ph\":\"f\",\"bp\":\"e\",\"pid\":0,\"tid\":0,{what},\"ts\":{to}}}"
        )
    }

    /// Marks what happened beside the steps.
    fn event(&mut self, (at, event): (f64, &RunEvent)) -> io::Result<()> {
        let mark = json!({"ph": "i", "s": "g", "pid": 0, "tid": 1, "name": event.kind,
            "ts": micros(at), "args": {"what": event.what, "worker": event.worker}});
        write!(self.out, ",\n{mark}")
    }
}
