//! A worker in a process of its own.

use super::{Batches, LocalRun, RunStart, TrainError, WorkerHooks, run_worker};
#[cfg(all(feature = "candle-cuda", feature = "nccl"))]
use codedgrad::transport::nccl::{NcclCollective, Timeouts};
use codedgrad::transport::tcp::{TcpLink, Welcome};
#[cfg(feature = "candle-cuda")]
use {
    super::Memory,
    codedgrad::gpu::cuda::{Cuda, DeviceVector},
    codedgrad::sums::collective::{Collective, DeviceResults},
    std::sync::Arc,
};

/// [`run_worker`] of a process of its own, whose micro-batches are added up where they are
/// computed, unless they are judged, and summed there if the run is to be so.
///
/// # Errors
/// As [`run_worker`].
pub fn run_worker_in_place(
    run: &LocalRun,
    welcome: &Welcome,
    mut link: TcpLink,
    start: RunStart<'_>,
    batches: &Batches,
    beside: &mut dyn WorkerHooks,
) -> Result<(), TrainError> {
    let worker = welcome.worker;
    #[cfg(feature = "candle-cuda")]
    if run.stays()? {
        let place = DeviceVector::place(run.compute.first_of(worker.index()))?;
        let link = link
            .with_collective(Arc::clone(&place), welcome, |results| collective(&place, results));
        return run_worker(run, worker, Box::new(link), start, batches, beside);
    }
    link.without_collective("its vectors lie in the host's memory");
    run_worker(run, worker, Box::new(link), start, batches, beside)
}

#[cfg(all(feature = "candle-cuda", feature = "nccl"))]
fn collective(
    place: &Cuda,
    results: DeviceResults<DeviceVector>,
) -> Result<Box<dyn Collective>, String> {
    let collective = NcclCollective::new(place, results, Timeouts::default())
        .map_err(|error| error.to_string())?;
    Ok(Box::new(collective))
}

#[cfg(all(feature = "candle-cuda", not(feature = "nccl")))]
fn collective(_: &Cuda, _: DeviceResults<DeviceVector>) -> Result<Box<dyn Collective>, String> {
    Err("this program was built without NCCL: build it with --features candle-cuda,nccl".into())
}
