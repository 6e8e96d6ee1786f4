//! The combine on a GPU against a device-to-device copy on the same card, timed by events; medians
//! of 21. Then steps of four workers on that card, whose gradients stay on it, with the aggregator
//! and without, and of four in processes of their own.
//!
//! `cargo bench -p codedgrad --no-default-features --features nccl,tcp --bench gpu`; torch's turn
//! is `benches/peers/torch_axpy.py`. Without a GPU it says so and measures nothing; `-- --test`
//! goes through the steps in the host's memory, small.

mod four_workers;
mod processes;
#[path = "../processes/mod.rs"]
mod program;

use codedgrad::gpu::Vector;
use codedgrad::gpu::cuda::cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use codedgrad::gpu::cuda::cudarc::driver::{CudaSlice, DeviceRepr};
use codedgrad::gpu::cuda::{Cuda, CudaError, DeviceSource, DeviceTerm, DeviceVector, devices};
use codedgrad::sums::collective::{Collective, DeviceResults};
use codedgrad::transport::tcp::Exchange;
use four_workers::{Load, WORKERS};
use half::bf16;
use program::Outcome;
use std::sync::Arc;

const REPEATS: usize = 21;
/// Lets several ranks of NCCL share a card.
const SHARED: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

fn main() -> Outcome<()> {
    let has = |flag: &str| std::env::args().any(|arg| arg == flag);
    let small = !has("--bench") || has("--test");
    let (length, passes) = if small { (1 << 16, 2) } else { (100_000_000, 50) };
    if devices() == 0 {
        let load = Load {
            places: &[(); WORKERS],
            ones: &|(), length| vec![1.0; length],
            length: 1 << 12,
            passes: 2,
        };
        if processes::part().is_some() {
            return processes::worker(&load, |(), _| Err("there is no GPU here".into()));
        }
        println!("not measured: there is no GPU here");
        if small {
            let (_, expected) = four_workers::measure(&load)?;
            let apart =
                ["sharded", "nccl"].map(|exchange| processes::measure(exchange, load.length));
            for measured in apart {
                assert_eq!(measured?.told, expected, "processes end as threads do");
            }
            println!("steps of four workers end alike in the host's memory");
        }
        return Ok(());
    }
    if let Some((me, exchange)) = processes::part() {
        let card = if exchange == Exchange::Nccl { me % devices() } else { 0 };
        let own = Arc::new(Cuda::new(card)?);
        let places = vec![own; WORKERS];
        return processes::worker(
            &Load { places: &places, ones: &ones, length, passes },
            collective,
        );
    }
    let cuda = Cuda::new(0)?;
    println!("{}", cuda.stream().context().name()?);
    println!("format  K          d   GB/s combine   GB/s copy   ratio");
    let (wide, narrow) = if small { (1 << 16, 1 << 17) } else { (1 << 28, 1 << 29) };
    for count in [2, 4, 8] {
        measure(&cuda, "f32", count, &vec![1.0f32; wide], |x| DeviceSource::F32(x.as_view()))?;
        measure(&cuda, "bf16", count, &vec![bf16::ONE; narrow], |x| {
            DeviceSource::Bf16(x.as_view())
        })?;
    }
    drop(cuda);
    let places = (0..WORKERS).map(|_| Cuda::new(0).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
    let ([plain, with, late], expected) =
        four_workers::measure(&Load { places: &places, ones: &ones, length, passes })?;
    println!(
        "4 workers, {length} parameters, groups:s=1: ms per step, and ratio to the step without \
         aggregator"
    );
    println!(
        "without {:.2}, with {:.2} ({:.3}), one late by 10 steps {:.2} ({:.3})",
        1e3 * plain,
        1e3 * with,
        with / plain,
        1e3 * late,
        late / plain
    );
    drop(places);
    apart("sharded", length, (plain, expected))?;
    if devices() >= WORKERS || std::env::var(SHARED).is_ok_and(|switch| switch == "1") {
        apart("nccl", length, (plain, expected))?;
    } else {
        println!(
            "not measured: NCCL between 4 processes, for which there are {} cards and no \
             {SHARED}=1",
            devices()
        );
    }
    Ok(())
}

/// Four workers in processes of their own, beside those of this process.
fn apart(exchange: &str, length: usize, (plain, expected): (f64, u64)) -> Outcome<()> {
    let found = processes::measure(exchange, length)?;
    assert_eq!(found.told, expected, "processes end as threads do");
    println!(
        "4 processes, {exchange}: {:.2} ({:.3}); a result to the host and a sum back take {:.2}, \
         {:.1} % of it; {} of {} sums by NCCL",
        1e3 * found.seconds,
        found.seconds / plain,
        1e3 * found.copies,
        100.0 * found.copies / found.seconds,
        found.by_collective.0,
        found.by_collective.1
    );
    Ok(())
}

#[cfg(feature = "nccl")]
fn collective(
    cuda: &Arc<Cuda>,
    results: DeviceResults<DeviceVector>,
) -> Result<Box<dyn Collective>, String> {
    use codedgrad::transport::nccl::{NcclCollective, Timeouts};
    Ok(Box::new(
        NcclCollective::new(cuda, results, Timeouts::default())
            .map_err(|error| error.to_string())?,
    ))
}

#[cfg(not(feature = "nccl"))]
fn collective(
    _: &Arc<Cuda>,
    _: DeviceResults<DeviceVector>,
) -> Result<Box<dyn Collective>, String> {
    Err("built without NCCL".into())
}

fn ones(cuda: &Arc<Cuda>, length: usize) -> DeviceVector {
    let ones = cuda.stream().clone_htod(&vec![1.0f32; length]).expect("memory");
    let mut vector = DeviceVector::new(cuda, length);
    vector.copy_from(&DeviceSource::F32(ones.as_view()), 1.0).expect("one device");
    vector
}

/// Median GB/s of a sum of `count` vectors, and of a copy of as many bytes as fit two of them,
/// counted in and out.
fn measure<T: DeviceRepr>(
    cuda: &Cuda,
    format: &str,
    count: usize,
    message: &[T],
    source: impl Fn(&CudaSlice<T>) -> DeviceSource<'_>,
) -> Result<(), CudaError> {
    let (stream, length) = (cuda.stream(), message.len());
    let x: Vec<CudaSlice<T>> =
        (0..count).map(|_| stream.clone_htod(message)).collect::<Result<_, _>>()?;
    let mut out = stream.alloc_zeros::<f32>(length)?;
    let combine = median(cuda, |cuda| {
        let terms: Vec<DeviceTerm<'_>> =
            x.iter().map(|x| DeviceTerm { weight: 1.5, source: source(x) }).collect();
        cuda.combine_into(&terms, &mut out.as_view_mut())
    })?;
    let bytes = (length * (count * size_of::<T>() + 4)) as f64;
    let mut copy = stream.alloc_zeros::<f32>(length)?;
    let copied = median(cuda, |cuda| Ok(cuda.stream().memcpy_dtod(&out, &mut copy)?))?;
    let (combine, copied) = (bytes / combine / 1e6, (length * 8) as f64 / copied / 1e6);
    println!(
        "{format:6} {count:2} {length:10} {combine:14.1} {copied:11.1} {:7.3}",
        combine / copied
    );
    Ok(())
}

/// Median milliseconds between two events around `work`, after two turns to warm up.
fn median(
    cuda: &Cuda,
    mut work: impl FnMut(&Cuda) -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let mut times = Vec::with_capacity(REPEATS);
    for repeat in 0..REPEATS + 2 {
        let begin = cuda.stream().record_event(Some(CU_EVENT_DEFAULT))?;
        work(cuda)?;
        let end = cuda.stream().record_event(Some(CU_EVENT_DEFAULT))?;
        let elapsed = begin.elapsed_ms(&end)?;
        if repeat >= 2 {
            times.push(f64::from(elapsed));
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[REPEATS / 2])
}
