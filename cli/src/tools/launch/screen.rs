//! What people see of a run: lines of its processes, notes, and a bar below.
//!
//! A thread writes it all: a terminal that stands still, or a pipe without a reader, holds up the
//! processes that speak, and never the launcher.

use codedgrad_shell::layout::Width;
use codedgrad_shell::output;
use codedgrad_shell::progress::Progress;
use codedgrad_shell::steps::StepSummary;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

/// Lines that wait to be written; who has more to say waits.
const WAITING: usize = 1024;
/// How long a note waits for its place, in tries and milliseconds between them.
const TRIES: (u32, Duration) = (100, Duration::from_millis(10));
/// How long it is waited for the last lines.
const LAST: Duration = Duration::from_secs(2);

/// Where a line belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputStream {
    Out,
    Err,
}

enum Say {
    Line {
        to: OutputStream,
        text: Vec<u8>,
    },
    Step(StepSummary),
    /// The last of all.
    End,
}

/// Where lines are brought to.
#[derive(Clone, Debug)]
pub(super) struct Voice(SyncSender<Say>);

impl Voice {
    /// Brings a line, and waits while too many are before it.
    pub(super) fn line(&self, to: OutputStream, text: Vec<u8>) {
        // At the launcher's end no thread reads it any more.
        let _ = self.0.send(Say::Line { to, text });
    }
}

pub(super) struct Screen {
    voice: Voice,
    done: Receiver<()>,
}

impl Screen {
    pub(super) fn open() -> Self {
        let (sender, said) = sync_channel(WAITING);
        let (end, done) = sync_channel(1);
        thread::spawn(move || {
            show(&said);
            let _ = end.send(());
        });
        Self { voice: Voice(sender), done }
    }

    pub(super) fn voice(&self) -> Voice {
        self.voice.clone()
    }

    /// Says a line beside what the run prints.
    pub(super) fn note(&self, text: &str) {
        self.verbatim(&Width::of_stderr().prose(text));
    }

    /// Says what another process has said, in the lines that it had.
    pub(super) fn verbatim(&self, text: &str) {
        self.bring(Say::Line { to: OutputStream::Err, text: text.as_bytes().to_vec() }, TRIES.0);
    }

    /// Shows a step; where too much waits to be written, the next one is as good.
    pub(super) fn step(&self, step: StepSummary) {
        self.bring(Say::Step(step), 1);
    }

    fn bring(&self, mut say: Say, tries: u32) {
        for left in (0..tries).rev() {
            match self.voice.0.try_send(say) {
                Err(TrySendError::Full(back)) if left > 0 => {
                    say = back;
                    thread::sleep(TRIES.1);
                }
                _ => return,
            }
        }
    }

    /// Writes what waits, for as long as that may take.
    pub(super) fn close(self) {
        self.bring(Say::End, TRIES.0);
        let _ = self.done.recv_timeout(LAST);
    }
}

/// Writes until the end is said. A reader that cannot be written to misses it.
fn show(said: &Receiver<Say>) {
    let together = io::stdout().is_terminal();
    let mut bar = Progress::hidden();
    let mut begun = false;
    while let Ok(say) = said.recv() {
        match say {
            Say::Line { to, mut text } => {
                text.push(b'\n');
                match to {
                    OutputStream::Out if together => output::suspend(|| write(io::stdout(), &text)),
                    OutputStream::Out => write(io::stdout(), &text),
                    OutputStream::Err => output::above_bars(&text),
                }
            }
            Say::Step(step) => {
                if !begun {
                    bar = Progress::new(step.steps, [step.step]);
                    bar.begin(0, "run".into());
                    begun = true;
                }
                bar.show(&step);
            }
            Say::End => break,
        }
    }
    bar.finish();
}

fn write(mut to: impl Write, text: &[u8]) {
    let _ = to.write_all(text).and_then(|()| to.flush());
}
