//! The native part of the Python package `codedgrad`.
//!
//! A [`Worker`](worker::Worker) is an [`Aggregator`](codedgrad::train::Aggregator) that Python
//! drives event by event, a [`Coordinator`](coordinator::Coordinator) a run that is served from a
//! thread. All waits and all copies of gradients are made with the interpreter detached.

#![expect(clippy::needless_pass_by_value, reason = "what Python gives comes by value")]

mod arguments;
mod coordinator;
mod leaving;
mod mailbox;
mod memory;
mod numbers;
mod states;
mod tools;
mod worker;

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use std::ffi::CString;

/// The module `codedgrad._native`: what the package is made of; nothing in it is public.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::coordinator::Coordinator;
    #[pymodule_export]
    use super::leaving::Loop;
    #[pymodule_export]
    use super::mailbox::Mailbox;
    #[pymodule_export]
    use super::memory::{freed, hold, let_go};
    #[pymodule_export]
    use super::numbers::{digest, digest_of_bits, passes};
    #[pymodule_export]
    use super::tools::{answer, execute};
    #[pymodule_export]
    use super::worker::{DecodedGradient, Worker};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("Replaced", module.py().get_type::<worker::Replaced>())?;
        module.add("Changed", module.py().get_type::<worker::Changed>())?;
        module.add("Refused", module.py().get_type::<worker::Refused>())?;
        module.add("NotNow", module.py().get_type::<worker::NotNow>())?;
        // Other libraries read the same variable, by rules that may be others.
        if let Err(wrong) = codedgrad_cli::log_by_environment() {
            let warning = module.py().get_type::<PyRuntimeWarning>();
            PyErr::warn(module.py(), &warning, &CString::new(wrong)?, 1)?;
        }
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
