//! The native part of the Python package `codedgrad`.

mod tools;

use pyo3::prelude::*;

/// The module `codedgrad._native`: what the package is made of; nothing in it is public.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use crate::tools::{answer, execute};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
