//! The kernels' numbers, without a GPU (their text compiled as C++ for the host) and on one where
//! there is one.

use super::emulated::built;
use super::passes::{Pass, Split, passes, scratch};
use super::sketch::{SignTables, add_stripes};
use super::{
    Cuda, DeviceGradient, DeviceGradientMut, DeviceSource, DeviceTarget, DeviceTerm, DeviceVector,
    Signs,
};
use crate::gpu::conformance::{conforms, messages};
use crate::gpu::gradient::convert;
use crate::gpu::{
    Combine, CombineError, Gradient, GradientMut, Plain, Rates, Source, Term, Vector, WireBuffer,
    digest_of_bits, largest, signed_fold, step,
};
use crate::run::NumberFormat;
use bytemuck::{cast_slice, cast_slice_mut};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The kernels in a process of the host; none, and a line that says so, where there is no C++
/// compiler.
struct Host(Mutex<Child>);

/// What a kernel reads or writes: its bytes, and how far from a 16-byte boundary they begin.
type Array<'a> = (&'a [u8], usize);

#[derive(Clone, Copy)]
struct Launch<'a> {
    kernel: &'a str,
    blocks: u32,
    threads: u32,
    split: Split,
    buckets: usize,
    stripes: usize,
}

impl<'a> Launch<'a> {
    fn new(kernel: &'a str, split: Split) -> Self {
        Self { kernel, blocks: 2, threads: 3, split, buckets: 0, stripes: 0 }
    }
}

impl Host {
    fn start() -> Option<Self> {
        static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
        let program = PROGRAM.get_or_init(|| built("host.cpp", "program", &["-O1"])).as_ref()?;
        let child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the kernels start");
        Some(Self(Mutex::new(child)))
    }

    /// Launches a kernel; `out` has what is there before, and then what it wrote.
    fn run(
        &self,
        launch: Launch<'_>,
        numbers: &[f32],
        out: (&mut [u8], usize),
        inputs: &[Array<'_>],
    ) {
        let (out, shift) = out;
        let Launch { kernel, blocks, threads, split, buckets, stripes } = launch;
        let Split { length, head, groups } = split;
        let mut request = format!(
            "{kernel} {blocks} {threads} {} {length} {head} {groups} {buckets} {stripes}\n",
            inputs.len()
        )
        .into_bytes();
        let mut sixteen = [0.0f32; 16];
        sixteen[..numbers.len()].copy_from_slice(numbers);
        request.extend(cast_slice::<f32, u8>(&sixteen));
        for (bytes, shift) in [(&*out, shift)].iter().chain(inputs) {
            request.extend(
                [bytes.len() as u64, *shift as u64].iter().flat_map(|number| number.to_le_bytes()),
            );
            request.extend(*bytes);
        }
        let child = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (stdin, stdout) =
            (child.stdin.as_mut().expect("a pipe"), child.stdout.as_mut().expect("a pipe"));
        stdin.write_all(&request).and_then(|()| stdin.flush()).expect("a request");
        stdout.read_exact(out).expect("an answer");
    }

    /// `out = sum` or `out += sum` of terms of one format, arrays beginning where `shifts` says:
    /// `out`, then the terms.
    fn sum(&self, terms: &[Term<'_>], add: bool, out: &mut [f32], shifts: &[usize]) {
        let format = format(terms[0].source);
        let mut arrays = vec![(shifts[0] as u64, NumberFormat::F32)];
        arrays.extend(shifts[1..].iter().map(|shift| (*shift as u64, format)));
        let kernel =
            format!("{}_{}_{}", if add { "add" } else { "set" }, format.name(), terms.len());
        let inputs: Vec<Array<'_>> = terms
            .iter()
            .zip(&shifts[1..])
            .map(|(term, shift)| (bytes(term.source), *shift))
            .collect();
        let weights: Vec<f32> = terms.iter().map(|term| term.weight).collect();
        let split = Split::of(out.len(), &arrays);
        self.run(Launch::new(&kernel, split), &weights, (cast_slice_mut(out), shifts[0]), &inputs);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let child = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(child.stdin.take());
        let status = child.wait().expect("the kernels end");
        assert!(
            std::thread::panicking() || status.success(),
            "the kernels wrote beyond their arrays"
        );
    }
}

fn format(source: Source<'_>) -> NumberFormat {
    match source {
        Source::F32(_) => NumberFormat::F32,
        Source::Bf16(_) => NumberFormat::Bf16,
        Source::F16(_) => NumberFormat::F16,
    }
}

fn bytes(source: Source<'_>) -> &[u8] {
    match source {
        Source::F32(x) => cast_slice(x),
        Source::Bf16(x) => cast_slice(x.reinterpret_cast()),
        Source::F16(x) => cast_slice(x.reinterpret_cast()),
    }
}

/// The passes that a device would launch, arrays where the host has them.
impl Combine for Host {
    fn combine(&self, terms: &[Term<'_>], out: &mut [f32]) -> Result<(), CombineError> {
        let passes = passes(&terms.iter().map(|term| format(term.source)).collect::<Vec<_>>());
        let mut places = vec![out.to_vec(); 1 + scratch(&passes)];
        if passes.is_empty() {
            places[0].fill(0.0);
        }
        let shift = |source: Source<'_>| bytes(source).as_ptr().addr() % 16;
        for pass in passes {
            match pass {
                Pass::Sum { terms: range, add, place, .. } => {
                    let shifts: Vec<usize> = std::iter::once(4)
                        .chain(terms[range.clone()].iter().map(|term| shift(term.source)))
                        .collect();
                    self.sum(&terms[range], add, &mut places[place], &shifts);
                }
                Pass::Fold { scratch } => {
                    let x = places[scratch].clone();
                    self.sum(
                        &[Term { weight: 1.0, source: Source::F32(&x) }],
                        true,
                        &mut places[scratch - 1],
                        &[0, 8],
                    );
                }
            }
        }
        out.copy_from_slice(&places[0]);
        Ok(())
    }
}

#[test]
fn the_kernels_sums_are_the_cpus() {
    let Some(host) = Host::start() else { return };
    for count in (0..=17).chain([31, 33, 50]) {
        for len in [0, 1, 7, 16, 33, 300] {
            conforms(&host, count, len, 7);
        }
    }
}

/// Every kernel of the combine, with all arrays aligned alike, so that words are used, and not.
#[test]
fn the_kernels_sums_do_not_depend_on_alignment() {
    let Some(host) = Host::start() else { return };
    for count in 1..=16 {
        let full = messages(count, 77, count as u64);
        let narrow: Vec<Vec<bf16>> =
            full.iter().map(|x| x.iter().map(|x| bf16::from_f32(*x)).collect()).collect();
        let half: Vec<Vec<f16>> =
            full.iter().map(|x| x.iter().map(|x| f16::from_f32(*x)).collect()).collect();
        for kind in 0..3 {
            let source = |i: usize| {
                [Source::F32(&full[i]), Source::Bf16(&narrow[i]), Source::F16(&half[i])][kind]
            };
            let terms: Vec<Term<'_>> =
                (0..count).map(|i| Term { weight: 0.3 + i as f32, source: source(i) }).collect();
            let mut sum = vec![f32::NAN; 77];
            Plain.combine(&terms, &mut sum).expect("terms of one length");
            let element = if kind == 0 { 4 } else { 2 };
            for (start, astray) in [(0, 0), (1, 0), (3, 0), (0, element)] {
                let shifts: Vec<usize> = (0..=count)
                    .map(|i| {
                        start * if i == 0 { 4 } else { element } + if i == 1 { astray } else { 0 }
                    })
                    .collect();
                let mut found = vec![f32::NAN; 77];
                host.sum(&terms, false, &mut found, &shifts);
                assert!(same(&found, &sum), "{count} terms, kind {kind}, from {start}, {astray}");
                let before = messages(1, 77, 99).remove(0);
                let expected: Vec<f32> = before.iter().zip(&sum).map(|(a, b)| a + b).collect();
                let mut found = before;
                host.sum(&terms, true, &mut found, &shifts);
                assert!(
                    same(&found, &expected),
                    "{count} terms added, kind {kind}, from {start}, {astray}"
                );
            }
        }
    }
}

/// Equal bits, or NaN both.
fn same(found: &[f32], expected: &[f32]) -> bool {
    found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}

/// All f16 and bf16, and f32 of all kinds: any size, halfway between two bf16 or f16, and where f16
/// begins and ends.
fn patterns() -> (Vec<u16>, Vec<f32>) {
    let spread = |bits: u32| {
        [
            bits << 16,
            bits << 16 | 0x8000,
            bits.wrapping_mul(0x9e37_79b9),
            0x3300_0000 + (bits << 12),
            0x3300_0000 + bits * 0x1480,
        ]
    };
    (
        (0..=u16::MAX).collect(),
        (0..=u32::from(u16::MAX)).flat_map(spread).map(f32::from_bits).collect(),
    )
}

#[test]
fn the_kernels_casts_are_the_cpus() {
    let Some(host) = Host::start() else { return };
    let (halves, wide) = patterns();
    let formats = [NumberFormat::F32, NumberFormat::Bf16, NumberFormat::F16];
    for (from, to) in formats.into_iter().flat_map(|from| formats.map(|to| (from, to))) {
        for (scale, shifts) in
            [(1.0, [0, 0]), (0.75, [to.bytes(), from.bytes()]), (-3e-3, [0, from.bytes()])]
        {
            let source = match from {
                NumberFormat::F32 => Source::F32(&wide),
                NumberFormat::Bf16 => Source::Bf16(halves.reinterpret_cast()),
                NumberFormat::F16 => Source::F16(halves.reinterpret_cast()),
            };
            let length = source.len();
            let split = Split::of(length, &[(shifts[0] as u64, to), (shifts[1] as u64, from)]);
            let kernel = format!("cast_{}_{}", from.name(), to.name());
            let run = |out: &mut [u8]| {
                host.run(
                    Launch::new(&kernel, split),
                    &[scale],
                    (out, shifts[0]),
                    &[(bytes(source), shifts[1])],
                );
            };
            let mut found =
                vec![0xcdcd_u16; if to == NumberFormat::F32 { 2 * length } else { length }];
            run(cast_slice_mut(&mut found));
            let (found, mut expected): (Vec<f32>, Vec<f32>) = match to {
                NumberFormat::F32 => {
                    let mut reference = vec![0.0f32; length];
                    convert(source, scale, WireBuffer::F32(&mut reference));
                    (
                        found
                            .chunks(2)
                            .map(|half| {
                                f32::from_bits(u32::from(half[0]) | u32::from(half[1]) << 16)
                            })
                            .collect(),
                        reference,
                    )
                }
                NumberFormat::Bf16 => {
                    let mut reference = vec![bf16::ONE; length];
                    convert(source, scale, WireBuffer::Bf16(&mut reference));
                    (
                        found.iter().map(|bits| bf16::from_bits(*bits).to_f32()).collect(),
                        reference.iter().map(|x| x.to_f32()).collect(),
                    )
                }
                NumberFormat::F16 => {
                    let mut reference = vec![f16::ONE; length];
                    convert(source, scale, WireBuffer::F16(&mut reference));
                    (
                        found.iter().map(|bits| f16::from_bits(*bits).to_f32()).collect(),
                        reference.iter().map(|x| x.to_f32()).collect(),
                    )
                }
            };
            assert!(same(&found, &expected), "{kernel}, scale {scale}");
            expected[length / 2] += 1e30;
            assert!(!same(&found, &expected), "a difference is seen");
        }
    }
}

#[test]
fn the_kernels_scan_finds_the_largest_and_what_is_no_number() {
    let Some(host) = Host::start() else { return };
    for (at, bad) in [(0, -7.5), (1, f32::NAN), (50, f32::NEG_INFINITY), (99, f32::NAN), (17, 0.1)]
    {
        let mut x = messages(1, 100, 3).remove(0);
        x[at] = bad;
        let narrow: Vec<bf16> = x.iter().map(|x| bf16::from_f32(*x)).collect();
        let half: Vec<f16> = x.iter().map(|x| f16::from_f32(*x)).collect();
        for (source, shift) in [
            (Source::F32(&x), 4),
            (Source::Bf16(&narrow), 0),
            (Source::F16(&half), 6),
            (Source::F32(&x[..3]), 0),
        ] {
            let mut values = vec![0.0; source.len()];
            convert(source, 1.0, WireBuffer::F32(&mut values));
            let mut top = [0u32];
            let kernel = format!("scan_{}", format(source).name());
            let split = Split::of(source.len(), &[(shift as u64, format(source))]);
            let launch = Launch { threads: 1, blocks: 5, ..Launch::new(&kernel, split) };
            host.run(launch, &[], (cast_slice_mut(&mut top), 0), &[(bytes(source), shift)]);
            assert!(same(&[f32::from_bits(top[0])], &[largest(&values)]), "{bad} at {at}");
        }
    }
}

fn sketch(host: &Host, x: &[f32], buckets: usize, seed: u64, stripes: usize) -> Vec<f64> {
    let tables = SignTables::of(&Signs::draw(buckets, x.len(), seed));
    let mut sums = vec![f32::NAN; stripes * 2 * buckets];
    let split = Split { length: x.len() as u64, head: 0, groups: 0 };
    let launch = Launch { buckets, stripes, ..Launch::new("signed_fold", split) };
    let inputs: [Array<'_>; 4] = [
        (cast_slice(x), 4),
        (cast_slice(&tables.first), 1),
        (cast_slice(&tables.second), 3),
        (cast_slice(&tables.places), 8),
    ];
    host.run(launch, &[], (cast_slice_mut(&mut sums), 4), &inputs);
    add_stripes(&sums, buckets)
}

#[test]
fn the_kernels_sketches_have_the_cpus_signs() {
    let Some(host) = Host::start() else { return };
    for (length, buckets, seed) in [(0, 8, 1), (5, 8, 2), (1000, 64, 3), (1027, 33, 4)] {
        let x = messages(1, length, seed).remove(0);
        let reference = signed_fold(&[&x], buckets, seed).remove(0);
        assert!(
            sketch(&host, &x, buckets, seed, 1) == reference,
            "one stripe has the reference's bits"
        );
        let error = |stripes| {
            sketch(&host, &x, buckets, seed, stripes)
                .iter()
                .zip(&reference)
                .map(|(a, b)| (a - b).abs())
                .fold(0.0, f64::max)
        };
        assert!(error(7) < 1e-5 && error(64) < 1e-5, "{length} elements in {buckets} buckets");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn words_and_single_elements_are_all_elements_once(
        length in 0usize..200,
        shifts in prop::collection::vec((0u64..16, 0usize..3), 1..5),
    ) {
        let formats = [NumberFormat::F32, NumberFormat::Bf16, NumberFormat::F16];
        let arrays: Vec<(u64, NumberFormat)> = shifts
            .iter()
            .map(|(shift, format)| (shift * formats[*format].bytes() as u64, formats[*format]))
            .collect();
        let Split { head, groups, .. } = Split::of(length, &arrays);
        let group = Split::group(arrays.iter().map(|(_, format)| *format));
        prop_assert!(head + groups * group <= length as u64);
        prop_assert!(
            groups == 0
                || arrays
                    .iter()
                    .all(|(address, format)| (address + head * format.bytes() as u64)
                        .is_multiple_of(16))
        );
        prop_assert!(
            groups == 0 || (head < group && length as u64 - head - groups * group < group)
        );
    }
}

#[test]
fn the_kernels_steps_are_the_cpus() {
    let Some(host) = Host::start() else { return };
    for (length, scale) in [(1, 1.0), (301, 1.0), (302, 0.7)] {
        let [parameters, first, mut second, gradient] =
            <[Vec<f32>; 4]>::try_from(messages(4, length, 12)).expect("four vectors");
        second.iter_mut().for_each(|x| *x = x.abs());
        let split = |length: usize| Split { length: length as u64, head: 0, groups: 0 };
        let (mut sums, mut fewer) = ([f64::NAN; 6], [f64::NAN; 6]);
        host.run(
            Launch::new("squares", split(length)),
            &[],
            (cast_slice_mut(&mut sums), 0),
            &[(cast_slice(&gradient), 4)],
        );
        host.run(
            Launch::new("add_up", split(6)),
            &[],
            (cast_slice_mut(&mut fewer), 8),
            &[(cast_slice(&sums), 0)],
        );
        let (found, squares) = (
            fewer.iter().sum::<f64>(),
            gradient.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>(),
        );
        assert!((found - squares).abs() <= 1e-14 * squares);
        let rates = Rates {
            betas: [0.9, 0.99],
            scale,
            first_scale: 0.3,
            second_scale: 50.0,
            keep: 1.0 - 1e-3,
            epsilon: 1e-8,
        };
        let Rates { betas, first_scale, second_scale, keep, epsilon, .. } = rates;
        let numbers = [betas[0], betas[1], scale, first_scale, second_scale, keep, epsilon];
        let mut state = [parameters, first, second].concat();
        let mut reference = state.clone();
        for _ in 0..3 {
            host.run(
                Launch::new("adamw", split(length)),
                &numbers,
                (cast_slice_mut(&mut state), 4),
                &[(cast_slice(&gradient), 0)],
            );
            let (parameters, moments) = reference.split_at_mut(length);
            let (first, second) = moments.split_at_mut(length);
            step([parameters, first, second], &gradient, rates);
            assert!(same(&state, &reference), "{length} parameters");
        }
        reference[length / 2] += 1e-6;
        assert!(!same(&state, &reference), "a difference is seen");
    }
}

#[test]
fn digests_follow_their_formula_and_tell_bits_and_places_apart() {
    let Some(host) = Host::start() else { return };
    let digest = |x: &[f32]| {
        let mut sums = [0u64; super::DIGEST_SUMS];
        let split = Split { length: x.len() as u64, head: 0, groups: 0 };
        host.run(
            Launch::new("digest", split),
            &[],
            (cast_slice_mut(&mut sums), 0),
            &[(cast_slice(x), 4)],
        );
        sums.into_iter().fold(0, u64::wrapping_add)
    };
    let x = messages(1, 5001, 11).remove(0);
    assert_eq!((digest(&x), digest(&[])), (digest_of_bits(&x), 0));
    let (mut other, mut swapped) = (x.clone(), x.clone());
    other[4999] = f32::from_bits(other[4999].to_bits() ^ 1);
    swapped.swap(7, 4000);
    let zeros = [vec![0.0; 3], vec![0.0; 4], vec![0.0, -0.0, 0.0]].map(|x| digest(&x));
    let all = [digest(&x), digest(&other), digest(&swapped), zeros[0], zeros[1], zeros[2]];
    assert_eq!(all.into_iter().collect::<std::collections::BTreeSet<_>>().len(), all.len());
}

/// The device of this machine; none, and a line that says so, where there is none.
fn device() -> Option<Cuda> {
    if super::devices() == 0 {
        assert!(matches!(
            Cuda::new(0),
            Err(super::CudaError::NoDriver | super::CudaError::Driver { .. })
        ));
        println!("not checked: the kernels on a GPU, since there is none");
        return None;
    }
    Some(Cuda::new(0).expect("the device there is"))
}

/// Vectors of the host, summed on a device.
struct OnDevice<'a>(&'a Cuda);

/// A vector on the device.
enum Uploaded {
    F32(cudarc::driver::CudaSlice<f32>),
    Bf16(cudarc::driver::CudaSlice<bf16>),
    F16(cudarc::driver::CudaSlice<f16>),
}

impl Combine for OnDevice<'_> {
    fn combine(&self, terms: &[Term<'_>], out: &mut [f32]) -> Result<(), CombineError> {
        // Nothing is no memory on a device.
        if out.is_empty() {
            return Ok(());
        }
        let stream = self.0.stream();
        let upload = |term: &Term<'_>| match term.source {
            Source::F32(x) => Uploaded::F32(stream.clone_htod(x).expect("a copy")),
            Source::Bf16(x) => Uploaded::Bf16(stream.clone_htod(x).expect("a copy")),
            Source::F16(x) => Uploaded::F16(stream.clone_htod(x).expect("a copy")),
        };
        let uploaded: Vec<Uploaded> = terms.iter().map(upload).collect();
        let on_device = terms.iter().zip(&uploaded).map(|(term, x)| DeviceTerm {
            weight: term.weight,
            source: match x {
                Uploaded::F32(x) => DeviceSource::F32(x.as_view()),
                Uploaded::Bf16(x) => DeviceSource::Bf16(x.as_view()),
                Uploaded::F16(x) => DeviceSource::F16(x.as_view()),
            },
        });
        let mut sum = stream.clone_htod(&vec![f32::NAN; out.len()]).expect("a copy");
        let on_device: Vec<_> = on_device.collect();
        self.0.combine_into(&on_device, &mut sum.as_view_mut()).expect("a sum");
        stream.memcpy_dtoh(&sum, out).expect("a copy");
        stream.synchronize().expect("no error");
        Ok(())
    }
}

#[test]
fn a_devices_sums_are_the_cpus() {
    let Some(cuda) = device() else { return };
    for count in (0..=17).chain([33, 50]) {
        for len in [0, 1, 15, 4097] {
            conforms(&OnDevice(&cuda), count, len, 7);
        }
    }
    conforms(&OnDevice(&cuda), 5, (1 << 22) + 3, 8);
    for start in [0, 1, 3] {
        let x = messages(5, 1000 + start, 9);
        let on_device: Vec<_> =
            x.iter().map(|x| cuda.stream().clone_htod(x).expect("a copy")).collect();
        let terms: Vec<Term<'_>> =
            x.iter().map(|x| Term { weight: 0.7, source: Source::F32(&x[start..]) }).collect();
        let device_terms: Vec<DeviceTerm<'_>> = on_device
            .iter()
            .map(|x| DeviceTerm { weight: 0.7, source: DeviceSource::F32(x.slice(start..)) })
            .collect();
        let mut expected = vec![0.0; 1000];
        Plain.combine(&terms, &mut expected).expect("terms of one length");
        let mut out = cuda.stream().clone_htod(&vec![f32::NAN; 1000 + start]).expect("a copy");
        cuda.combine_into(&device_terms, &mut out.slice_mut(start..)).expect("a sum");
        assert!(same(&cuda.stream().clone_dtoh(&out).expect("a copy")[start..], &expected));
    }
}

#[test]
fn a_devices_gradients_travel_like_the_cpus() {
    let Some(cuda) = device() else { return };
    let x = messages(1, (1 << 21) + 777, 5).remove(0);
    let on_device = cuda.stream().clone_htod(&x).expect("a copy");
    let gradient = DeviceGradient::new(&cuda, DeviceSource::F32(on_device.as_view()));
    let (mut found, mut expected) = (vec![bf16::ONE; x.len() - 3], vec![bf16::ONE; x.len() - 3]);
    gradient.read(3, -0.25, WireBuffer::Bf16(&mut found)).expect("in range");
    x[..].read(3, -0.25, WireBuffer::Bf16(&mut expected)).expect("in range");
    assert!(found == expected);
    let mut target = cuda.stream().alloc_zeros::<bf16>(x.len()).expect("memory");
    DeviceGradientMut::new(&cuda, DeviceTarget::Bf16(target.as_view_mut()))
        .write(5, &x[..x.len() - 5])
        .expect("in range");
    let found = cuda.stream().clone_dtoh(&target).expect("a copy");
    assert!(found[5..].iter().zip(&x).all(|(found, x)| *found == bf16::from_f32(*x)));
    assert_eq!(cuda.largest(&DeviceSource::F32(on_device.as_view())), Ok(largest(&x)));
    let reference = signed_fold(&[&x], 4096, 7).remove(0);
    let sketch = cuda.signed_fold(&[on_device.as_view()], 4096, 7).expect("a sketch").remove(0);
    assert!(sketch.iter().zip(&reference).all(|(a, b)| (a - b).abs() < 1e-3));
}

#[test]
fn vectors_that_stay_on_a_device_are_the_cpus() {
    let Some(first) = device() else { return };
    let places: Vec<_> = std::iter::once(first)
        .chain((1..super::devices()).map(|gpu| Cuda::new(gpu).expect("a device")))
        .map(Arc::new)
        .collect();
    let x = messages(4, 70_001, 3);
    let place = |of: usize| &places[of % places.len()];
    let upload = |of: usize| {
        let numbers = place(of).stream().clone_htod(&x[of]).expect("a copy");
        let mut vector = DeviceVector::new(place(of), x[of].len());
        vector.copy_from(&DeviceSource::F32(numbers.as_view()), 1.0).expect("one device");
        vector
    };
    let numbers = |vector: &DeviceVector| {
        vector.cuda().stream().clone_dtoh(&vector.view().expect("it is there")).expect("a copy")
    };
    let (mut found, mut expected) = (upload(0), x[0].clone());
    assert!(found.add(0.3, &upload(1)) && expected.add(0.3, &x[1]));
    found.scale(-0.7);
    expected.scale(-0.7);
    assert!(
        same(&numbers(&found), &expected)
            && same(&numbers(&found.clone()), &expected)
            && found.finite()
    );
    let terms: Vec<_> = (0..4).map(|of| (of as f32 - 1.5, Arc::new(upload(of)))).collect();
    let host_terms: Vec<_> = (0..4).map(|of| (of as f32 - 1.5, Arc::new(x[of].clone()))).collect();
    let folded = DeviceVector::fold(&terms, &mut found).expect("one length");
    assert!(folded.finite && Vec::fold(&host_terms, &mut expected).expect("one length").finite);
    assert!(same(&numbers(&found), &expected));
    assert_eq!(
        (folded.digest, found.digest()),
        (digest_of_bits(&expected), Ok(digest_of_bits(&expected)))
    );
    let mut part = DeviceVector::new(place(0), 11);
    let mut seven = place(0).stream().alloc_zeros::<f32>(7).expect("memory");
    found.copy_part_to(5, &mut DeviceTarget::F32(seven.as_view_mut())).expect("in range");
    assert!(same(&place(0).stream().clone_dtoh(&seven).expect("a copy"), &expected[5..12]));
    part.copy_part_from(
        3,
        &DeviceSource::F32(found.view().expect("it is there").slice(2..10)),
        1.0,
    )
    .expect("in range");
    assert!(same(&numbers(&part)[3..], &expected[2..10]));
    assert!(
        part.copy_part_from(
            4,
            &DeviceSource::F32(found.view().expect("it is there").slice(2..10)),
            1.0
        )
        .is_err()
    );
    let mut target = place(1).stream().alloc_zeros::<f32>(expected.len()).expect("memory");
    found.copy_to(place(1), &mut DeviceTarget::F32(target.as_view_mut())).expect("one length");
    assert!(same(&place(1).stream().clone_dtoh(&target).expect("a copy"), &expected));
    assert!(
        !DeviceVector::fold(&[(f32::INFINITY, Arc::clone(&terms[0].1))], &mut found)
            .expect("one length")
            .finite
    );
    found.clear();
    assert!(numbers(&found).iter().all(|x| *x == 0.0));
}

/// Found by the emulated driver: of several streams that read a vector, only the last was waited
/// for.
#[test]
fn a_vector_of_a_device_is_not_changed_while_others_read_it() {
    if device().is_none() {
        return;
    }
    let places: Vec<_> = (0..3).map(|_| Arc::new(Cuda::new(0).expect("a device"))).collect();
    for round in 0..3 {
        let x = messages(1, 200_000, round).remove(0);
        let mut read = DeviceVector::of(&places[0], &x).expect("memory");
        let mut sums: Vec<_> =
            places[1..].iter().map(|place| DeviceVector::new(place, x.len())).collect();
        for (reader, sum) in sums.iter_mut().enumerate() {
            let own = sum.clone();
            // The first reader is the last to come to it.
            (0..if reader == 0 { 30 } else { 1 }).for_each(|_| assert!(sum.add(1.0, &own)));
            assert!(sum.add(1.0, &read));
        }
        read.clear();
        for sum in &sums {
            assert!(same(&sum.to_host().expect("a copy"), &x), "round {round}");
        }
    }
}

/// `.ci/run` calls this with NVRTC where the loader finds it.
#[test]
#[ignore = "needs NVRTC; .ci/run installs it"]
fn the_kernels_compile_for_sm_80_and_sm_90() {
    for arch in ["sm_80", "sm_90"] {
        let image = super::compile(arch).unwrap_or_else(|error| panic!("{error}"));
        assert!(image.starts_with(b"\x7fELF"), "a cubin is an ELF file");
        println!("{arch}: {} bytes", image.len());
    }
    assert!(
        matches!(super::compile("sm_1"), Err(super::CudaError::Compile { arch, .. }) if arch == "sm_1")
    );
}
