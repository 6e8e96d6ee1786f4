//! Vectors between GPUs by NVIDIA's NCCL: inside a worker that is several GPUs, and between
//! workers.
//!
//! A [`Group`] holds the ranks of one communicator that this process has, each a GPU: all of them
//! inside one worker ([`Group::within`]), or those of one worker among others ([`Group::join`]). A
//! worker of several GPUs [reduces](Group::reduce) its gradient to one of them, which is then the
//! worker's message; workers [exchange](Group::exchange) messages as they are, and
//! [gather](Group::gather) the parts of a sum that each of them has made. Sums of `reduce` are
//! NCCL's: their order, and so their last bits, depend on its algorithm, and are not those of
//! [`crate::gpu::Combine`].
//!
//! Every rank of a communicator takes part in every operation, so a dead one stops all others.
//! Hence nothing here waits without limit: what takes longer than its [`Timeouts`] allow is
//! aborted, and those that are left join a new group.
//!
//! `libnccl.so.2` is loaded when it is first needed ([`version`]), so that programs run without it.
//! This module loads it itself and by that name, the only one that wheels and runtime packages
//! have; cudarc's looks for others, and panics.
//!
//! ```no_run
//! use codedgrad::gpu::cuda::{Cuda, DeviceTarget};
//! use codedgrad::transport::nccl::{Group, Timeouts};
//! let gpus = [Cuda::new(0)?, Cuda::new(1)?];
//! let mut worker = Group::within(gpus.iter().map(|gpu| gpu.stream().clone()), Timeouts::default())?;
//! let mut a = gpus[0].stream().clone_htod(&[1.0f32, 2.0])?;
//! let mut b = gpus[1].stream().clone_htod(&[10.0f32, 20.0])?;
//! worker
//!     .reduce(0, &mut [DeviceTarget::F32(a.as_view_mut()), DeviceTarget::F32(b.as_view_mut())])?;
//! assert_eq!(gpus[0].stream().clone_dtoh(&a)?, [11.0, 22.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![allow(unsafe_code)]

mod collective;
mod config;
mod error;
mod formats;
mod rules;
mod transfers;
mod watch;

#[cfg(test)]
#[path = "../../tests/devices/nccl.rs"]
mod tests;

pub use collective::NcclCollective;
pub use error::NcclError;
pub use rules::{MANY_RANKS_SWITCH, UniqueId, Version};
pub use transfers::{IncomingVector, OutgoingVector};
pub use watch::{Phase, Timeouts};

use crate::gpu::cuda::{CudaError, DeviceTarget};
use crate::transport::Cancel;
use config::{Config, IN_PROGRESS, INVALID_ARGUMENT, Id, SUCCESS, SUM};
use cudarc::driver::{CudaEvent, CudaStream, DriverError, SyncOnDrop};
use formats::{bytes_of, first_of, format_of, format_of_source};
use rules::{check_devices, check_ranks};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use watch::{Status, Verdict, judge};

/// The file that has NCCL.
const FILE: &str = "libnccl.so.2";
/// How often a call that is under way is looked at.
const PAUSE: Duration = Duration::from_micros(20);

impl From<DriverError> for NcclError {
    fn from(error: DriverError) -> Self {
        Self::Cuda(error.into())
    }
}

/// A communicator. NCCL keeps the address at which it writes it until the ranks are connected.
type Comm = AtomicPtr<c_void>;

macro_rules! library {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// NCCL's functions by their C signatures.
        #[derive(Debug)]
        struct Library {
            version: Version,
            $($name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Library {
            fn open(file: &str) -> Result<Self, NcclError> {
                // SAFETY: loading runs the library's initialisers, which NVIDIA guarantees to be
                // harmless.
                let file = unsafe { libloading::Library::new(file) }.map_err(|error| NcclError::NoLibrary { reason: error.to_string() })?;
                $(
                    // SAFETY: the signature is that of `nccl.h`; the library is never unloaded, see
                    // below.
                    let $name = *unsafe { file.get::<unsafe extern "C" fn($($argument),*) -> $result>(concat!($symbol, "\0")) }
                        .map_err(|_| NcclError::NoSymbol { symbol: $symbol })?;
                )*
                // Threads of NCCL's may run in it until the process ends.
                std::mem::forget(file);
                Self { version: Version::OLDEST, $($name,)* }.asked()
            }
        }
    };
}

library! {
    get_version = "ncclGetVersion": fn(&mut c_int) -> c_int;
    get_unique_id = "ncclGetUniqueId": fn(&mut Id) -> c_int;
    error_string = "ncclGetErrorString": fn(c_int) -> *const c_char;
    last_error = "ncclGetLastError": fn(*mut c_void) -> *const c_char;
    init_rank = "ncclCommInitRankConfig": fn(&Comm, c_int, Id, c_int, &mut Config) -> c_int;
    async_error = "ncclCommGetAsyncError": fn(*mut c_void, &mut c_int) -> c_int;
    abort = "ncclCommAbort": fn(*mut c_void) -> c_int;
    group_start = "ncclGroupStart": fn() -> c_int;
    group_end = "ncclGroupEnd": fn() -> c_int;
    reduce = "ncclReduce": fn(u64, u64, usize, c_int, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
    send = "ncclSend": fn(u64, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
    receive = "ncclRecv": fn(u64, usize, c_int, c_int, *mut c_void, *mut c_void) -> c_int;
}

impl Library {
    /// The process's library. Whether it is there is found out once.
    fn get() -> Result<&'static Self, NcclError> {
        static LIBRARY: OnceLock<Result<Library, NcclError>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::open(FILE)).as_ref().map_err(Clone::clone)
    }

    /// With its version, if that will do.
    fn asked(mut self) -> Result<Self, NcclError> {
        let mut code = 0;
        // SAFETY: a number that lives through the call.
        unsafe { (self.get_version)(&mut code) };
        self.version = Version::of_code(u32::try_from(code).unwrap_or(0));
        if self.version < Version::OLDEST {
            Err(NcclError::TooOld { version: self.version })
        } else {
            Ok(self)
        }
    }

    /// What a number means, and what NCCL said last.
    fn words(&self, code: c_int) -> String {
        // SAFETY: both give texts that end with a zero and are not freed; the second ignores its
        // argument.
        let (meaning, last) = unsafe {
            (
                CStr::from_ptr((self.error_string)(code)),
                CStr::from_ptr((self.last_error)(null_mut())),
            )
        };
        match last.to_string_lossy().trim() {
            "" => meaning.to_string_lossy().into_owned(),
            last => format!("{} ({last})", meaning.to_string_lossy()),
        }
    }
}

/// The version of NCCL there is. Needs neither a GPU nor a driver.
///
/// # Errors
/// [`NcclError`] when there is none, or an old one.
pub fn version() -> Result<Version, NcclError> {
    Ok(Library::get()?.version)
}

/// An id for a new communicator, for one process to make and all others to be given. It names an
/// address of this host, by which the others find it (`NCCL_SOCKET_IFNAME` says on which network).
/// Needs neither a GPU nor a driver.
///
/// # Errors
/// [`NcclError`] without NCCL or a network.
pub fn unique_id() -> Result<UniqueId, NcclError> {
    let library = Library::get()?;
    let mut id = Id([0; 128]);
    // SAFETY: 128 bytes that live through the call.
    match unsafe { (library.get_unique_id)(&mut id) } {
        SUCCESS => Ok(UniqueId(id.0)),
        code => Err(NcclError::Refused { phase: Phase::Connecting, reason: library.words(code) }),
    }
}

/// Communicators of this process that do everything together.
#[derive(Debug)]
struct Clique {
    library: &'static Library,
    comms: Box<[Comm]>,
    limits: Timeouts,
    open: bool,
    /// Whether another thread wants it to end.
    cancel: Cancel,
}

impl Clique {
    /// Connects ranks with the others of their communicator; `enter` makes a member's device the
    /// thread's.
    fn connect(
        library: &'static Library,
        id: UniqueId,
        size: usize,
        ranks: &[usize],
        (limits, cancel): (Timeouts, Cancel),
        enter: impl Fn(usize) -> Result<(), CudaError>,
    ) -> Result<Self, NcclError> {
        let comms = ranks.iter().map(|_| Comm::default()).collect();
        let mut clique = Self { library, comms, limits, open: true, cancel };
        let mut entered = Ok(());
        let mut config = Config::nonblocking();
        let called = clique.call(Phase::Connecting, limits.connect, |library, member, comm| {
            entered = enter(member);
            if entered.is_err() {
                return INVALID_ARGUMENT;
            }
            // SAFETY: `comm` stays where it is until this clique is dropped, which aborts first;
            // the id and the configuration are copied by the call.
            unsafe {
                (library.init_rank)(
                    comm,
                    size as c_int,
                    Id(id.0),
                    ranks[member] as c_int,
                    &mut config,
                )
            }
        });
        entered?;
        called.map(|()| clique)
    }

    /// Has every member call NCCL, as one group, and waits until NCCL has done its part of it. A
    /// call that is refused, or not done in time, is the end of the clique.
    fn call(
        &mut self,
        phase: Phase,
        limit: Duration,
        mut calls: impl FnMut(&Library, usize, &Comm) -> c_int,
    ) -> Result<(), NcclError> {
        if !self.open {
            return Err(NcclError::Aborted);
        }
        // SAFETY: no arguments; the group is ended below on the same thread, whatever happens in
        // between.
        let mut code = unsafe { (self.library.group_start)() };
        let fine = |code| matches!(code, SUCCESS | IN_PROGRESS);
        for (member, comm) in self.comms.iter().enumerate() {
            if fine(code) {
                code = calls(self.library, member, comm);
            }
        }
        // SAFETY: as above.
        let ended = unsafe { (self.library.group_end)() };
        match [code, ended].into_iter().find(|code| !fine(*code)) {
            Some(code) => Err(self.refused(phase, code)),
            None => self.wait(phase, limit, |_| true),
        }
    }

    /// Waits until NCCL is at rest and every member `done`.
    #[expect(clippy::disallowed_methods, reason = "peers die in real time")]
    fn wait(
        &mut self,
        phase: Phase,
        limit: Duration,
        done: impl Fn(usize) -> bool,
    ) -> Result<(), NcclError> {
        let deadline = Instant::now() + limit;
        loop {
            let statuses: Vec<Status> =
                (0..self.comms.len()).map(|member| self.status(member, &done)).collect();
            match judge(&statuses, Instant::now(), deadline) {
                Verdict::Wait if self.cancel.is_cancelled() => {
                    self.abort()?;
                    return Err(NcclError::Aborted);
                }
                Verdict::Wait => std::thread::sleep(PAUSE),
                Verdict::Done => return Ok(()),
                Verdict::Failed(code) => return Err(self.refused(phase, code)),
                Verdict::Late { busy } => {
                    self.abort()?;
                    return Err(NcclError::Late { phase, busy, limit });
                }
            }
        }
    }

    fn status(&self, member: usize, done: impl Fn(usize) -> bool) -> Status {
        let comm = self.comms[member].load(Ordering::Acquire);
        if comm.is_null() {
            return Status::Busy;
        }
        let mut state = SUCCESS;
        // SAFETY: a communicator that is not aborted, and a number that lives through the call.
        let asked = unsafe { (self.library.async_error)(comm, &mut state) };
        match (asked, state) {
            (SUCCESS, SUCCESS) if done(member) => Status::Ready,
            (SUCCESS, SUCCESS | IN_PROGRESS) => Status::Busy,
            (SUCCESS, code) | (code, _) => Status::Failed(code),
        }
    }

    /// Gives up after NCCL said no.
    fn refused(&mut self, phase: Phase, code: c_int) -> NcclError {
        let reason = self.library.words(code);
        self.abort().err().unwrap_or(NcclError::Refused { phase, reason })
    }

    /// Gives up what is under way. A call may wait for the other members, so each has a thread.
    #[expect(clippy::disallowed_methods, reason = "peers die in real time")]
    fn abort(&mut self) -> Result<(), NcclError> {
        let given = self.comms.iter().all(|comm| !comm.load(Ordering::Acquire).is_null());
        let may_come = std::mem::replace(&mut self.open, false) && !given;
        let deadline = Instant::now() + self.limits.abort;
        let (sender, ended) = channel();
        let abort = self.library.abort;
        let mut open = 0;
        for comm in &self.comms {
            let comm = Comm::new(comm.swap(null_mut(), Ordering::AcqRel));
            if comm.load(Ordering::Relaxed).is_null() {
                continue;
            }
            open += 1;
            let sender = sender.clone();
            std::thread::spawn(move || {
                // SAFETY: a communicator that was taken out of the clique, so this is its last use.
                unsafe { abort(comm.into_inner()) };
                sender.send(())
            });
        }
        for _ in 0..open {
            if ended.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_err() {
                Box::leak(std::mem::take(&mut self.comms));
                return Err(NcclError::Stuck { limit: self.limits.abort });
            }
        }
        if may_come {
            // NCCL may still write a communicator there.
            Box::leak(std::mem::take(&mut self.comms));
        }
        Ok(())
    }
}

/// Operations wait until they are done here; peers may still be at their ends of them, and then
/// fail.
impl Drop for Clique {
    fn drop(&mut self) {
        if let Err(error) = self.abort() {
            tracing::warn!("{error}");
        }
    }
}

/// A vector that a member sends to or receives from a rank: whether it sends it, the rank, the
/// address, length and format.
type Transfer = (usize, bool, usize, u64, usize, c_int);

/// The ranks of one communicator that this process has. See the [module](self).
#[derive(Debug)]
pub struct Group {
    clique: Clique,
    size: usize,
    ranks: Vec<usize>,
    streams: Vec<Arc<CudaStream>>,
}

impl Group {
    /// Connects GPUs of this process with each other, as ranks 0, 1, ... Operations run on these
    /// streams.
    ///
    /// # Errors
    /// [`NcclError`] without NCCL, when a GPU is there twice, or when the limit passes.
    pub fn within(
        streams: impl IntoIterator<Item = Arc<CudaStream>>,
        limits: Timeouts,
    ) -> Result<Self, NcclError> {
        let members: Vec<(usize, Arc<CudaStream>)> = streams.into_iter().enumerate().collect();
        Self::join(unique_id()?, members.len(), members, limits)
    }

    /// Connects GPUs of this process, under the ranks given, with those of other processes: all
    /// `size` ranks call this with the same id, and wait for each other.
    ///
    /// # Errors
    /// [`NcclError`] without NCCL, when ranks or devices cannot be, or when the limit passes, as it
    /// does when a rank never comes.
    pub fn join(
        id: UniqueId,
        size: usize,
        members: Vec<(usize, Arc<CudaStream>)>,
        limits: Timeouts,
    ) -> Result<Self, NcclError> {
        Self::join_until(id, size, members, limits, Cancel::default())
    }

    /// The same, until a thread cancels: then what is under way ends, this call too, and the group
    /// is aborted.
    ///
    /// # Errors
    /// As [`Group::join`]; [`NcclError::Aborted`] once it is cancelled.
    pub fn join_until(
        id: UniqueId,
        size: usize,
        members: Vec<(usize, Arc<CudaStream>)>,
        limits: Timeouts,
        cancel: Cancel,
    ) -> Result<Self, NcclError> {
        let library = Library::get()?;
        let (ranks, streams): (Vec<usize>, Vec<Arc<CudaStream>>) = members.into_iter().unzip();
        check_ranks(size, &ranks)?;
        let devices: Vec<usize> = streams.iter().map(|stream| stream.context().ordinal()).collect();
        check_devices(
            library.version,
            std::env::var(MANY_RANKS_SWITCH).ok().as_deref(),
            &ranks,
            &devices,
        )?;
        let clique = Clique::connect(library, id, size, &ranks, (limits, cancel), |member| {
            Ok(streams[member].context().bind_to_thread()?)
        })?;
        Ok(Self { clique, size, ranks, streams })
    }

    /// Gives up, so that the others' operations fail instead of waiting for this process.
    ///
    /// # Errors
    /// [`NcclError::Stuck`] when that takes too long.
    pub fn abort(&mut self) -> Result<(), NcclError> {
        self.clique.abort()
    }

    /// Ranks of the communicator, those of other processes included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// This process's ranks, in the order in which vectors are given.
    #[must_use]
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// Adds up all ranks' vectors, which are of one length and format, into that of rank `root`;
    /// the others stay as they are. Returns when this process's GPUs are done.
    ///
    /// # Errors
    /// [`NcclError`] when the vectors do not fit, or the operation fails: then the group is
    /// aborted, and the vectors' contents are undefined.
    pub fn reduce(
        &mut self,
        root: usize,
        vectors: &mut [DeviceTarget<'_>],
    ) -> Result<(), NcclError> {
        if root >= self.size {
            return Err(NcclError::Rank { rank: root, size: self.size });
        }
        self.check(vectors)?;
        let (length, format) = first_of(vectors);
        let (addresses, locks) = addresses_of(vectors, &self.streams);
        let streams = &self.streams;
        let launched = self.clique.call(
            Phase::Launching,
            self.clique.limits.operate,
            |library, member, comm| {
                let x = addresses[member];
                let comm = comm.load(Ordering::Acquire);
                let stream = streams[member].cu_stream().cast();
                // SAFETY: `length` numbers on the rank's device, borrowed mutably and locked; its
                // communicator and stream.
                unsafe { (library.reduce)(x, x, length, format, SUM, root as c_int, comm, stream) }
            },
        );
        drop(locks);
        launched?;
        self.finish()
    }

    /// Sends and receives vectors, all at once; every one that is sent is received by its rank,
    /// with the same length and format. Returns when this process's GPUs are done.
    ///
    /// # Errors
    /// As [`Group::reduce`].
    pub fn exchange(
        &mut self,
        sends: &[OutgoingVector<'_>],
        receives: &mut [IncomingVector<'_>],
    ) -> Result<(), NcclError> {
        let mut transfers = Vec::with_capacity(sends.len() + receives.len());
        let mut locks = Vec::with_capacity(sends.len() + receives.len());
        for OutgoingVector { from, to, vector } in sends {
            let member = self.member(*from, *to, vector.context().ordinal())?;
            let (address, lock) = vector.address(&self.streams[member]);
            transfers.push((member, true, *to, address, vector.len(), format_of_source(vector)));
            locks.push(lock);
        }
        for IncomingVector { at, from, vector } in receives {
            let member = self.member(*at, *from, vector.context().ordinal())?;
            let (length, format) = (vector.len(), format_of(vector));
            let (address, lock) = vector.address(&self.streams[member]);
            transfers.push((member, false, *from, address, length, format));
            locks.push(lock);
        }
        let launched = transfer(&mut self.clique, &self.streams, &transfers);
        drop(locks);
        launched?;
        self.finish()
    }

    /// Sends every part of a vector from the rank that has it to all others of these ranks, into
    /// its place in theirs: an all-gather of parts of any length, one of each rank, among some
    /// ranks. One of them is this process's, whose vector it is.
    ///
    /// # Errors
    /// As [`Group::reduce`]; [`NcclError::Part`] when a part is not in the vector.
    pub fn gather(
        &mut self,
        parts: &[(usize, Range<usize>)],
        vector: &mut DeviceTarget<'_>,
    ) -> Result<(), NcclError> {
        let own = parts.iter().map(|part| part.0).find(|rank| self.ranks.contains(rank));
        let rank = own.ok_or(NcclError::NoRanks)?;
        let length = vector.len();
        let format = format_of(vector);
        let bytes = bytes_of(vector);
        let member = self.member(rank, rank, vector.context().ordinal())?;
        let (address, lock) = vector.address(&self.streams[member]);
        let mut transfers = Vec::with_capacity(2 * parts.len());
        for (from, part) in parts {
            if part.start > part.end || part.end > length || *from >= self.size {
                return Err(NcclError::Part {
                    rank: *from,
                    start: part.start,
                    end: part.end,
                    length,
                });
            }
            let peers =
                parts.iter().map(|part| part.0).filter(|peer| *from == rank && *peer != rank);
            let peers = peers.chain(Some(*from).filter(|from| *from != rank));
            let at = address + (part.start * bytes) as u64;
            transfers.extend(
                peers
                    .filter(|_| !part.is_empty())
                    .map(|peer| (member, *from == rank, peer, at, part.len(), format)),
            );
        }
        let launched = transfer(&mut self.clique, &self.streams, &transfers);
        drop(lock);
        launched?;
        self.finish()
    }

    /// Waits for the devices.
    fn finish(&mut self) -> Result<(), NcclError> {
        let events: Vec<CudaEvent> = self
            .streams
            .iter()
            .map(|stream| stream.record_event(None))
            .collect::<Result<_, _>>()?;
        self.clique
            .wait(Phase::Running, self.clique.limits.operate, |member| events[member].is_complete())
    }

    /// Refuses vectors that are not one for each rank, on its device, all of one length and format.
    fn check(&self, vectors: &[DeviceTarget<'_>]) -> Result<(), NcclError> {
        if vectors.len() != self.ranks.len() {
            return Err(NcclError::Count { expected: self.ranks.len(), found: vectors.len() });
        }
        for ((vector, rank), stream) in vectors.iter().zip(&self.ranks).zip(&self.streams) {
            if vector.context() != stream.context() {
                return Err(NcclError::Elsewhere { rank: *rank });
            }
            if (vector.len(), format_of(vector)) != first_of(vectors) {
                return Err(NcclError::Unlike { rank: *rank });
            }
        }
        Ok(())
    }

    /// Which member a rank is that has a vector on a device for a peer.
    fn member(&self, rank: usize, peer: usize, device: usize) -> Result<usize, NcclError> {
        let size = self.size;
        let member =
            self.ranks.iter().position(|own| *own == rank).ok_or(NcclError::Rank { rank, size })?;
        if peer >= size {
            return Err(NcclError::Rank { rank: peer, size });
        }
        match self.streams[member].context().ordinal() == device {
            true => Ok(member),
            false => Err(NcclError::Elsewhere { rank }),
        }
    }
}

/// Launches sends and receives, as one group.
fn transfer(
    clique: &mut Clique,
    streams: &[Arc<CudaStream>],
    transfers: &[Transfer],
) -> Result<(), NcclError> {
    clique.call(Phase::Launching, clique.limits.operate, |library, member, comm| {
        let (comm, stream) = (comm.load(Ordering::Acquire), streams[member].cu_stream().cast());
        let mut code = SUCCESS;
        for (_, sends, peer, x, length, format) in
            transfers.iter().filter(|transfer| transfer.0 == member)
        {
            let transfer = if *sends { library.send } else { library.receive };
            // SAFETY: `length` numbers on the rank's device, which the callers have locked, and
            // borrowed mutably where they are overwritten; its communicator and stream.
            let called = unsafe { transfer(*x, *length, *format, *peer as c_int, comm, stream) };
            if !matches!(called, SUCCESS | IN_PROGRESS) {
                code = called;
            }
        }
        code
    })
}

/// Where vectors lie, after what is being written there; what keeps them from being used until they
/// are summed.
fn addresses_of<'v>(
    vectors: &'v mut [DeviceTarget<'_>],
    streams: &'v [Arc<CudaStream>],
) -> (Vec<u64>, Vec<SyncOnDrop<'v>>) {
    vectors.iter_mut().zip(streams).map(|(vector, stream)| vector.address(stream)).unzip()
}
