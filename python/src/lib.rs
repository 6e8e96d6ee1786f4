//! The native part of the Python package `codedgrad`.

use pyo3::prelude::*;

/// The module `codedgrad._native`: what the package is made of; nothing in it is public.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
