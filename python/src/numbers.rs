//! Numbers of Python's arrays, in and out of messages.

use codedgrad::gpu::piecewise;
use codedgrad::passes::PassPlace;
use codedgrad::run::NumberFormat;
use half::{bf16, f16};
use numpy::{PyArrayDyn, PyArrayMethods, PyReadonlyArrayDyn, PyReadwriteArrayDyn};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use xxhash_rust::xxh3::Xxh3Default;

/// How the numbers of one array lie in memory, by Python's name. Python has no dtype for bfloat16:
/// 16-bit formats come as arrays of `int16` with the same bits.
pub(crate) fn format_of(text: &str) -> Option<NumberFormat> {
    match text {
        "float32" => Some(NumberFormat::F32),
        "bfloat16" => Some(NumberFormat::Bf16),
        "float16" => Some(NumberFormat::F16),
        _ => None,
    }
}

/// The arrays that a gradient is made of: how many numbers each has, and in which format.
#[derive(Clone, Debug)]
pub(crate) struct Layout(Vec<(usize, NumberFormat)>);

impl Layout {
    pub(crate) fn new(arrays: &[(usize, String)]) -> PyResult<Self> {
        let read = |(count, text): &(usize, String)| {
            let format = format_of(text).ok_or_else(|| {
                PyValueError::new_err(format!(
                    "{text:?} is no number format of gradients: they are float32, bfloat16 or \
                     float16"
                ))
            })?;
            Ok((*count, format))
        };
        arrays.iter().map(read).collect::<PyResult<_>>().map(Self)
    }

    /// Numbers in all.
    pub(crate) fn length(&self) -> usize {
        self.0.iter().map(|(count, _)| count).sum()
    }

    /// The layout of some of the arrays, and the number at which they begin.
    pub(crate) fn part(&self, first: usize, count: usize) -> PyResult<(usize, Self)> {
        let arrays = self.0.get(first..first.saturating_add(count)).ok_or_else(|| {
            let expected = self.0.len();
            PyValueError::new_err(format!(
                "arrays {first} to {}, where a gradient has {expected}",
                first.saturating_add(count)
            ))
        })?;
        let start = self.0[..first].iter().map(|(count, _)| count).sum();
        Ok((start, Self(arrays.to_vec())))
    }

    /// The first and the last of the arrays in which some of the numbers lie.
    pub(crate) fn arrays_of(&self, numbers: Range<usize>) -> (usize, usize) {
        let mut end = 0;
        let ends: Vec<usize> = self
            .0
            .iter()
            .map(|(count, _)| {
                end += count;
                end
            })
            .collect();
        let place_of = |number: usize| ends.partition_point(|end| *end <= number);
        (place_of(numbers.start), place_of(numbers.end.saturating_sub(1)))
    }

    fn check(&self, arrays: usize) -> PyResult<()> {
        if arrays == self.0.len() {
            return Ok(());
        }
        let expected = self.0.len();
        Err(PyValueError::new_err(format!("{arrays} arrays, where a gradient has {expected}")))
    }

    /// Arrays of this layout to be read; none stands for zeros.
    pub(crate) fn sources<'py>(
        &self,
        arrays: &[Option<Bound<'py, PyAny>>],
    ) -> PyResult<Vec<Source<'py>>> {
        self.check(arrays.len())?;
        let read =
            |(place, (array, (count, format))): (usize, (&Option<_>, &(usize, NumberFormat)))| {
                let Some(array) = array else { return Ok(Source::Zeros(*count)) };
                let found = match format {
                    NumberFormat::F32 => Source::F32(readable(array, place)?),
                    NumberFormat::Bf16 => Source::Bf16(readable(array, place)?),
                    NumberFormat::F16 => Source::F16(readable(array, place)?),
                };
                counted(found.count()?, *count, place)?;
                Ok(found)
            };
        arrays.iter().zip(&self.0).enumerate().map(read).collect()
    }

    /// Arrays of this layout to be written; what belongs to none is left out.
    pub(crate) fn targets<'py>(
        &self,
        arrays: &[Option<Bound<'py, PyAny>>],
    ) -> PyResult<Vec<Target<'py>>> {
        self.check(arrays.len())?;
        let read =
            |(place, (array, (count, format))): (usize, (&Option<_>, &(usize, NumberFormat)))| {
                let Some(array) = array else { return Ok(Target::Nowhere(*count)) };
                let mut found = match format {
                    NumberFormat::F32 => Target::F32(writable(array, place)?),
                    NumberFormat::Bf16 => Target::Bf16(writable(array, place)?),
                    NumberFormat::F16 => Target::F16(writable(array, place)?),
                };
                counted(found.count()?, *count, place)?;
                Ok(found)
            };
        arrays.iter().zip(&self.0).enumerate().map(read).collect()
    }
}

fn array<'a, 'py, T: numpy::Element>(
    array: &'a Bound<'py, PyAny>,
    place: usize,
) -> PyResult<&'a Bound<'py, PyArrayDyn<T>>> {
    array.cast().map_err(|_| {
        let kind = array.getattr("dtype").or_else(|_| array.getattr("__class__"));
        let kind = kind.map_or_else(|_| "something else".to_owned(), |kind| kind.to_string());
        let expected = T::get_dtype(array.py());
        PyTypeError::new_err(format!("array {place} is {kind}, expected {expected}"))
    })
}

fn readable<'py, T: numpy::Element>(
    found: &Bound<'py, PyAny>,
    place: usize,
) -> PyResult<PyReadonlyArrayDyn<'py, T>> {
    let shared = |error| PyValueError::new_err(format!("array {place} cannot be read: {error}"));
    array(found, place)?.try_readonly().map_err(shared)
}

fn writable<'py, T: numpy::Element>(
    found: &Bound<'py, PyAny>,
    place: usize,
) -> PyResult<PyReadwriteArrayDyn<'py, T>> {
    let shared = |error| PyValueError::new_err(format!("array {place} cannot be written: {error}"));
    array(found, place)?.try_readwrite().map_err(shared)
}

fn counted(found: usize, expected: usize, place: usize) -> PyResult<()> {
    if found == expected {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("array {place} has {found} numbers, not {expected}")))
}

fn scattered<E>(_: E) -> PyErr {
    PyValueError::new_err("an array does not lie in one piece: make it C-contiguous")
}

/// Numbers to be read.
pub(crate) enum Source<'py> {
    Zeros(usize),
    F32(PyReadonlyArrayDyn<'py, f32>),
    Bf16(PyReadonlyArrayDyn<'py, i16>),
    F16(PyReadonlyArrayDyn<'py, i16>),
}

/// The same without Python.
pub(crate) enum PlainSource<'a> {
    Zeros(usize),
    F32(&'a [f32]),
    Bf16(&'a [i16]),
    F16(&'a [i16]),
}

impl Source<'_> {
    fn count(&self) -> PyResult<usize> {
        Ok(match self.bare()? {
            PlainSource::Zeros(count) => count,
            PlainSource::F32(x) => x.len(),
            PlainSource::Bf16(x) | PlainSource::F16(x) => x.len(),
        })
    }

    pub(crate) fn bare(&self) -> PyResult<PlainSource<'_>> {
        Ok(match self {
            Self::Zeros(count) => PlainSource::Zeros(*count),
            Self::F32(array) => PlainSource::F32(array.as_slice().map_err(scattered)?),
            Self::Bf16(array) => PlainSource::Bf16(array.as_slice().map_err(scattered)?),
            Self::F16(array) => PlainSource::F16(array.as_slice().map_err(scattered)?),
        })
    }
}

/// Numbers to be written.
pub(crate) enum Target<'py> {
    Nowhere(usize),
    F32(PyReadwriteArrayDyn<'py, f32>),
    Bf16(PyReadwriteArrayDyn<'py, i16>),
    F16(PyReadwriteArrayDyn<'py, i16>),
}

/// The same without Python.
pub(crate) enum PlainTarget<'a> {
    Nowhere(usize),
    F32(&'a mut [f32]),
    Bf16(&'a mut [i16]),
    F16(&'a mut [i16]),
}

impl Target<'_> {
    fn count(&mut self) -> PyResult<usize> {
        Ok(match self.bare()? {
            PlainTarget::Nowhere(count) => count,
            PlainTarget::F32(x) => x.len(),
            PlainTarget::Bf16(x) | PlainTarget::F16(x) => x.len(),
        })
    }

    pub(crate) fn bare(&mut self) -> PyResult<PlainTarget<'_>> {
        Ok(match self {
            Self::Nowhere(count) => PlainTarget::Nowhere(*count),
            Self::F32(array) => PlainTarget::F32(array.as_slice_mut().map_err(scattered)?),
            Self::Bf16(array) => PlainTarget::Bf16(array.as_slice_mut().map_err(scattered)?),
            Self::F16(array) => PlainTarget::F16(array.as_slice_mut().map_err(scattered)?),
        })
    }
}

/// `message[i] = round(scale x[i])`, one array after the other; the message is as long as all of
/// them.
pub(crate) fn gather(arrays: &[PlainSource<'_>], scale: f32, message: &mut [f32]) {
    let read = |array: &PlainSource<'_>| match array {
        PlainSource::Zeros(_) => 0,
        PlainSource::F32(x) => size_of_val(*x),
        PlainSource::Bf16(x) | PlainSource::F16(x) => size_of_val(*x),
    };
    codedgrad::passes::count(
        PassPlace::Gather,
        arrays.iter().map(read).sum::<usize>() + size_of_val(message),
    );
    let mut rest = message;
    for array in arrays {
        match array {
            PlainSource::Zeros(count) => front(&mut rest, *count).fill(0.0),
            PlainSource::F32(x) if scale == 1.0 => {
                piecewise(x, front(&mut rest, x.len()), |x, to| to.copy_from_slice(x));
            }
            PlainSource::F32(x) => scaled(x, |x| scale * x, front(&mut rest, x.len())),
            PlainSource::Bf16(x) => scaled(x, |x| scale * wide(x), front(&mut rest, x.len())),
            PlainSource::F16(x) => scaled(x, |x| scale * half(x), front(&mut rest, x.len())),
        }
    }
}

/// `x[i] = round(scale gradient[i])` to the format of each array, to nearest with ties to even.
pub(crate) fn scatter(gradient: &[f32], scale: f32, arrays: &mut [PlainTarget<'_>]) {
    let mut rest = gradient;
    let mut passed = 0;
    for array in arrays {
        let count = match array {
            PlainTarget::Nowhere(count) => *count,
            PlainTarget::F32(x) => x.len(),
            PlainTarget::Bf16(x) | PlainTarget::F16(x) => x.len(),
        };
        let (own, others) = rest.split_at(count);
        rest = others;
        passed += match array {
            PlainTarget::Nowhere(_) => 0,
            PlainTarget::F32(x) => size_of_val(own) + size_of_val(*x),
            PlainTarget::Bf16(x) | PlainTarget::F16(x) => size_of_val(own) + size_of_val(*x),
        };
        match array {
            PlainTarget::Nowhere(_) => {}
            PlainTarget::F32(x) if scale == 1.0 => {
                piecewise(own, x, |own, x| x.copy_from_slice(own));
            }
            PlainTarget::F32(x) => scaled(own, |own| scale * own, x),
            PlainTarget::Bf16(x) => {
                scaled(own, |own| bits(bf16::from_f32(scale * own).to_bits()), x);
            }
            PlainTarget::F16(x) => scaled(own, |own| bits(f16::from_f32(scale * own).to_bits()), x),
        }
    }
    codedgrad::passes::count(PassPlace::Scatter, passed);
}

fn front<'a>(rest: &mut &'a mut [f32], count: usize) -> &'a mut [f32] {
    let (front, others) = std::mem::take(rest).split_at_mut(count);
    *rest = others;
    front
}

fn scaled<A: Copy + Sync, B: Send>(from: &[A], number: impl Fn(A) -> B + Sync, to: &mut [B]) {
    piecewise(from, to, |from, to| {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = number(*from));
    });
}

fn wide(x: i16) -> f32 {
    bf16::from_bits(x.cast_unsigned()).to_f32()
}

fn half(x: i16) -> f32 {
    f16::from_bits(x.cast_unsigned()).to_f32()
}

fn bits(x: u16) -> i16 {
    x.cast_signed()
}

/// The XXH3-64 of the bytes of some arrays of uint8, one after the other.
#[pyfunction]
pub(crate) fn digest<'py>(py: Python<'py>, arrays: Vec<Bound<'py, PyAny>>) -> PyResult<u64> {
    let read = |(place, array): (usize, &Bound<'py, PyAny>)| readable::<u8>(array, place);
    let arrays = arrays.iter().enumerate().map(read).collect::<PyResult<Vec<_>>>()?;
    let bytes = arrays.iter().map(|array| array.as_slice().map_err(scattered));
    let bytes = bytes.collect::<PyResult<Vec<_>>>()?;
    Ok(py.detach(|| {
        codedgrad::passes::count(
            PassPlace::Parameters,
            bytes.iter().map(|bytes| bytes.len()).sum(),
        );
        let mut hash = Xxh3Default::new();
        bytes.iter().for_each(|bytes| hash.update(bytes));
        hash.digest()
    }))
}

/// [`codedgrad::gpu::digest_of_bits`] of an array of float32.
#[pyfunction]
pub(crate) fn digest_of_bits(py: Python<'_>, array: Bound<'_, PyAny>) -> PyResult<u64> {
    let array = readable::<f32>(&array, 0)?;
    let numbers = array.as_slice().map_err(scattered)?;
    codedgrad::passes::count(PassPlace::Parameters, size_of_val(numbers));
    Ok(py.detach(|| codedgrad::gpu::digest_of_bits(numbers)))
}

/// The bytes of gradients that each kind of place has read and written since the process began:
/// see [`codedgrad::passes`].
#[pyfunction]
pub(crate) fn passes() -> BTreeMap<&'static str, u64> {
    codedgrad::passes::counted().into_iter().collect()
}
