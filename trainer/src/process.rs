//! A worker in a process of its own.

use super::{Batches, LocalRun, RunStart, TrainError, run_worker};
#[cfg(all(feature = "candle-cuda", feature = "nccl"))]
use codedgrad::transport::nccl::{NcclFabric, Timeouts};
use codedgrad::transport::tcp::{TcpLink, Welcome};
#[cfg(feature = "candle-cuda")]
use {
    super::Memory,
    codedgrad::gpu::cuda::{Cuda, DeviceVector},
    codedgrad::transport::fabric::{Fabric, Shelf},
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
) -> Result<(), TrainError> {
    let worker = welcome.worker;
    #[cfg(feature = "candle-cuda")]
    if run.stays()? {
        let place = DeviceVector::place(run.compute.first_of(worker.index()))?;
        let link = link.woven(Arc::clone(&place), welcome, |shelf| fabric(&place, shelf));
        return run_worker(run, worker, Box::new(link), start, batches);
    }
    link.unwoven("its vectors lie in the host's memory");
    run_worker(run, worker, Box::new(link), start, batches)
}

#[cfg(all(feature = "candle-cuda", feature = "nccl"))]
fn fabric(place: &Cuda, shelf: Shelf<DeviceVector>) -> Result<Box<dyn Fabric>, String> {
    let fabric =
        NcclFabric::new(place, shelf, Timeouts::default()).map_err(|error| error.to_string())?;
    Ok(Box::new(fabric))
}

#[cfg(all(feature = "candle-cuda", not(feature = "nccl")))]
fn fabric(_: &Cuda, _: Shelf<DeviceVector>) -> Result<Box<dyn Fabric>, String> {
    Err("this program was built without NCCL: build it with --features candle-cuda,nccl".into())
}
