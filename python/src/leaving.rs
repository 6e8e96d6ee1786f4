//! How a loop over a run is left: by its end, by `break`, or by an exception.

use crate::arguments::lock;
use pyo3::prelude::*;
use pyo3::types::PyIterator;
use std::sync::Mutex;

/// An iterator that tells how it is left. A `for` loop holds it on the stack of its frame: where
/// that is unwound the exception is still set when this is dropped, while a generator in its place
/// would be closed without ever seeing it.
#[pyclass(frozen, module = "codedgrad._native")]
pub(crate) struct Loop {
    iterator: Py<PyIterator>,
    /// Called, if it is dropped before its end, with the exception that is on its way, or none.
    left: Mutex<Option<Py<PyAny>>>,
}

#[pymethods]
impl Loop {
    #[new]
    fn new(iterator: Py<PyIterator>, left: Py<PyAny>) -> Self {
        Self { iterator, left: Mutex::new(Some(left)) }
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let next = self.iterator.bind(py).clone().next().transpose()?;
        if next.is_none() {
            lock(&self.left).take();
        }
        Ok(next.map(Bound::unbind))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let Some(left) = lock(&self.left).take() else { return };
        Python::attach(|py| {
            let raised = PyErr::take(py);
            let error = raised.as_ref().map(|error| {
                let value = error.value(py);
                // Before Python 3.12 it lies beside the exception until that is caught.
                if let Some(trace) = error.traceback(py) {
                    let _ = value.setattr("__traceback__", trace);
                }
                value.clone()
            });
            if let Err(error) = left.call1(py, (error,)) {
                error.write_unraisable(py, None);
            }
            raised.into_iter().for_each(|error| error.restore(py));
        });
    }
}
