//! States of replicas, which Python hands over and takes over piece by piece.

use crate::arguments::value_error;
use codedgrad::transport::{ByteVector, State};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use std::sync::Arc;

/// Byte strings of these lengths as a state's vectors: their bytes come in pieces, one behind the
/// other.
pub(crate) fn vectors_of(
    py: Python<'_>,
    lengths: Vec<usize>,
    pieces: &Bound<'_, PyAny>,
) -> PyResult<Vec<Vec<f32>>> {
    let mut vectors: Vec<_> = lengths.into_iter().map(ByteVector::new).collect();
    let mut beyond = 0;
    for piece in pieces.try_iter()? {
        let piece: PyBackedBytes = piece?.extract()?;
        py.detach(|| {
            let mut rest: &[u8] = &piece;
            for vector in vectors.iter_mut().filter(|vector| !vector.is_full()) {
                rest = vector.fill(rest);
            }
            beyond += rest.len();
        });
    }
    if beyond > 0 || !vectors.iter().all(ByteVector::is_full) {
        let wrong = "a state's pieces are more or fewer bytes than its lengths say";
        return Err(PyValueError::new_err(wrong));
    }
    Ok(vectors.into_iter().map(ByteVector::into_numbers).collect())
}

/// A state that is to be taken over, until it is.
#[derive(Default)]
pub(crate) struct IncomingState(Option<State>);

impl IncomingState {
    /// What is given here is given back as it is taken over; who has handed it over within this
    /// process keeps it.
    pub(crate) fn set(&mut self, state: Arc<State>) {
        self.0 = Some(Arc::try_unwrap(state).unwrap_or_else(|kept| (*kept).clone()));
    }

    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    pub(crate) fn lengths(&self) -> PyResult<Vec<usize>> {
        let state = self.0.as_ref().ok_or_else(no_state)?;
        let length = |vector| Ok(state.byte_string(vector).map_err(value_error)?.len());
        (0..state.vectors.len()).map(length).collect()
    }

    /// Some bytes of a byte string, whose memory is given back with its last one.
    pub(crate) fn piece<'py>(
        &mut self,
        py: Python<'py>,
        (vector, start, size): (usize, usize, usize),
    ) -> PyResult<Bound<'py, PyBytes>> {
        let state = self.0.as_mut().ok_or_else(no_state)?;
        let bytes = state.byte_string(vector).map_err(value_error)?;
        let is_last = start + size >= bytes.len();
        let piece = bytes.get(start..start + size).ok_or_else(no_state)?;
        let piece = PyBytes::new(py, piece);
        if is_last {
            state.vectors[vector] = Vec::new();
        }
        Ok(piece)
    }
}

fn no_state() -> PyErr {
    PyRuntimeError::new_err("no such state is to be taken over")
}
