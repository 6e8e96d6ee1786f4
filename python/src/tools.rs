//! The program's commands: as a program, and as functions that give back what it would print.

use codedgrad_cli::ProgramCommand;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::ffi::OsString;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// How long Ctrl-C may go unnoticed.
const NOTICE: Duration = Duration::from_millis(20);
/// Of a tool's thread: what a program's first thread has.
const STACK: usize = 8 << 20;

/// The command line `arguments`, the program's name left out.
fn line(arguments: Vec<OsString>) -> impl Iterator<Item = OsString> {
    ["codedgrad".into()].into_iter().chain(arguments)
}

/// Runs a command as the program would, on this thread, and gives back its exit status. Where it
/// starts processes of this program, or scripts, this Python runs them.
#[pyfunction]
pub(crate) fn execute(py: Python<'_>, python: OsString, arguments: Vec<OsString>) -> u8 {
    let program = vec![python.clone(), "-m".into(), "codedgrad".into()];
    let itself = ProgramCommand { program, python };
    py.detach(|| codedgrad_cli::execute_as(&itself, line(arguments)))
}

/// What a tool prints and what it says beside that.
///
/// It runs in a thread of its own, so that Ctrl-C is noticed. No caller waits for that thread then:
/// what it computes is dropped.
#[pyfunction]
pub(crate) fn answer(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<(String, String)> {
    let (done, mut answered) = channel();
    let builder = thread::Builder::new().name("codedgrad-tool".into()).stack_size(STACK);
    builder.spawn(move || {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let ended = codedgrad_cli::answer(line(arguments), &mut out, &mut notes);
        // Who was interrupted does not listen.
        let _ = done.send(ended.map(|()| (out, notes)));
    })?;
    let ended = loop {
        let found;
        (found, answered) = py.detach(move || (answered.recv_timeout(NOTICE), answered));
        match found {
            Ok(ended) => break ended,
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the tool broke off: this is a bug"));
            }
        }
    };
    match ended {
        Ok((out, notes)) => Ok((text(&out), text(&notes))),
        Err(ended) if ended.status == 2 => Err(PyValueError::new_err(ended.message)),
        Err(ended) => Err(PyRuntimeError::new_err(ended.message)),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
