//! NCCL where it is, with and without GPUs, and what becomes of communicators where it says no, for
//! which a table of functions stands in for it.

use super::*;
use crate::gpu::cuda::{Cuda, DeviceSource, devices};
use half::bf16;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;

/// The library, or a line that says what was not checked.
fn library(what: &str) -> Option<&'static Library> {
    match Library::get() {
        Ok(library) => Some(library),
        Err(error) => {
            println!("not checked: {what}: {error}");
            None
        }
    }
}

#[test]
fn a_library_that_is_not_there_or_is_another_is_no_panic() {
    let absent = Library::open("libnccl-that-nobody-has.so.2").unwrap_err();
    assert!(
        matches!(absent, NcclError::NoLibrary { .. })
            && absent.to_string().contains("pip install nvidia-nccl-cu12"),
        "{absent}"
    );
    let other =
        ["libc.so.6", "libSystem.B.dylib"].into_iter().find_map(|file| match Library::open(file) {
            Err(NcclError::NoLibrary { .. }) => None,
            opened => Some(opened.unwrap_err()),
        });
    assert_eq!(other, Some(NcclError::NoSymbol { symbol: "ncclGetVersion" }));
}

#[test]
fn the_library_says_its_version_and_makes_ids_without_a_gpu() {
    let Some(library) = library("NCCL's version and ids") else { return };
    println!("NCCL {}", library.version);
    assert!(version().expect("no error") >= Version::OLDEST);
    let (first, second) = (unique_id().expect("no error"), unique_id().expect("no error"));
    assert_ne!(first, second);
    assert_eq!(first.to_string().parse::<UniqueId>().expect("no error"), first);
    assert!(library.words(IN_PROGRESS).contains("in progress"), "{}", library.words(IN_PROGRESS));
    let file = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let file = file
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|file| file.contains(FILE));
    if let Some(file) = file {
        let bytes = std::fs::read(Path::new(file)).expect("no error");
        let has_switch =
            bytes.windows(MANY_RANKS_SWITCH.len()).any(|word| word == MANY_RANKS_SWITCH.as_bytes());
        assert_eq!(
            has_switch,
            library.version >= Version::MANY_RANKS,
            "the rule of two ranks on one GPU"
        );
    }
}

#[test]
fn without_a_driver_nccl_refuses_in_words() {
    let Some(library) = library("what NCCL says where there is no GPU") else { return };
    if devices() > 0 {
        println!("not checked: what NCCL says where there is no GPU, since there is one");
        return;
    }
    let refused = Clique::connect(
        library,
        unique_id().expect("no error"),
        1,
        &[0],
        (Timeouts::default(), Cancel::default()),
        |_| Ok(()),
    )
    .unwrap_err();
    let NcclError::Refused { phase: Phase::Connecting, reason } = refused else {
        panic!("{refused}")
    };
    assert!(reason.contains("cuda"), "{reason}");
}

/// What the functions that stand in for NCCL's do to a communicator.
#[derive(Clone, Copy, Default)]
struct Fate {
    /// How often it says that it is in progress.
    busy: usize,
    /// What it says then.
    then: c_int,
    /// Aborts wait this long.
    abort: Duration,
}

/// Communicators by their addresses, which lead nowhere: what becomes of them, and how many aborts
/// there were.
static COMMS: Mutex<BTreeMap<usize, (Fate, usize)>> = Mutex::new(BTreeMap::new());

fn comms() -> MutexGuard<'static, BTreeMap<usize, (Fate, usize)>> {
    COMMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of rank `rank` of the communicator whose id begins with `id`.
fn address(id: u8, rank: usize) -> usize {
    (usize::from(id) << 8) + rank + 1
}

extern "C" fn init_rank(comm: &Comm, _: c_int, id: Id, rank: c_int, config: &mut Config) -> c_int {
    assert_eq!((config.size, config.blocking), (48, 0));
    comm.store(
        std::ptr::without_provenance_mut(address(id.0[0], rank as usize)),
        Ordering::Release,
    );
    IN_PROGRESS
}

extern "C" fn async_error(comm: *mut c_void, state: &mut c_int) -> c_int {
    let mut comms = comms();
    let (fate, _) = comms.get_mut(&comm.addr()).expect("a communicator of the test");
    *state = if fate.busy > 0 { IN_PROGRESS } else { fate.then };
    fate.busy = fate.busy.saturating_sub(1);
    SUCCESS
}

extern "C" fn abort(comm: *mut c_void) -> c_int {
    let patience = {
        let mut comms = comms();
        let (fate, aborts) = comms.get_mut(&comm.addr()).expect("a communicator of the test");
        *aborts += 1;
        fate.abort
    };
    sleep(patience);
    SUCCESS
}

extern "C" fn words(_: c_int) -> *const c_char {
    c"no".as_ptr()
}

extern "C" fn last(_: *mut c_void) -> *const c_char {
    c"".as_ptr()
}

extern "C" fn fine() -> c_int {
    SUCCESS
}

extern "C" fn get_version(version: &mut c_int) -> c_int {
    *version = 23203;
    SUCCESS
}

extern "C" fn get_unique_id(_: &mut Id) -> c_int {
    SUCCESS
}

extern "C" fn reduce(
    _: u64,
    _: u64,
    _: usize,
    _: c_int,
    _: c_int,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    unreachable!("cliques launch what they are told to")
}

extern "C" fn transfer(
    _: u64,
    _: usize,
    _: c_int,
    _: c_int,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    unreachable!("cliques launch what they are told to")
}

/// What stands in for NCCL.
fn table() -> Library {
    Library {
        version: Version::OLDEST,
        get_version,
        get_unique_id,
        error_string: words,
        last_error: last,
        init_rank,
        async_error,
        abort,
        group_start: fine,
        group_end: fine,
        reduce,
        send: transfer,
        receive: transfer,
    }
}

/// Connects ranks 0 and 1 of communicator `id`, whose fates these are.
fn connect(
    id: u8,
    fates: [Fate; 2],
    connect: Duration,
    abort_limit: Duration,
) -> Result<Clique, NcclError> {
    comms().extend([0, 1].map(|rank| (address(id, rank), (fates[rank], 0))));
    let limits = Timeouts { connect, operate: connect, abort: abort_limit };
    Clique::connect(
        Box::leak(Box::new(table().asked()?)),
        UniqueId([id; 128]),
        2,
        &[0, 1],
        (limits, Cancel::default()),
        |_| Ok(()),
    )
}

fn aborts(id: u8) -> [usize; 2] {
    let comms = comms();
    [0, 1].map(|rank| comms[&address(id, rank)].1)
}

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(1);

#[test]
fn a_clique_waits_for_all_and_is_aborted_once_when_it_ends() {
    let busy = |busy| Fate { busy, ..Fate::default() };
    let mut clique = connect(1, [busy(3), busy(20)], LONG, LONG).expect("no error");
    assert_eq!(comms()[&address(1, 1)].0.busy, 0);
    assert_eq!(aborts(1), [0, 0]);
    assert!(clique.call(Phase::Launching, LONG, |_, _, _| IN_PROGRESS).is_ok());
    drop(clique);
    assert_eq!(aborts(1), [1, 1]);
}

#[test]
fn a_failure_of_one_aborts_all_and_leaves_a_closed_clique() {
    let failed =
        connect(2, [Fate::default(), Fate { busy: 2, then: 6, ..Fate::default() }], LONG, LONG)
            .unwrap_err();
    assert_eq!(failed, NcclError::Refused { phase: Phase::Connecting, reason: "no".into() });
    assert_eq!(aborts(2), [1, 1]);
    let mut clique = connect(3, [Fate::default(); 2], LONG, LONG).expect("no error");
    let mut asked = 0;
    let refused = clique.call(Phase::Launching, LONG, |_, _, _| {
        asked += 1;
        5
    });
    assert_eq!(
        (refused, asked),
        (Err(NcclError::Refused { phase: Phase::Launching, reason: "no".into() }), 1)
    );
    assert_eq!(clique.call(Phase::Launching, LONG, |_, _, _| SUCCESS), Err(NcclError::Aborted));
    drop(clique);
    assert_eq!(aborts(3), [1, 1]);
}

#[test]
fn a_device_that_cannot_be_entered_ends_connecting_at_once() {
    let library = table().asked().expect("a version");
    comms().insert(address(7, 0), (Fate::default(), 0));
    let enter = |member| if member == 0 { Ok(()) } else { Err(CudaError::NoDriver) };
    let limits = Timeouts { connect: LONG, operate: LONG, abort: LONG };
    let refused = Clique::connect(
        Box::leak(Box::new(library)),
        UniqueId([7; 128]),
        2,
        &[0, 1],
        (limits, Cancel::default()),
        enter,
    )
    .expect_err("no device");
    assert_eq!(refused, NcclError::Cuda(CudaError::NoDriver));
    assert_eq!(comms()[&address(7, 0)].1, 1, "who was connecting is aborted");
}

#[test]
fn a_peer_that_never_comes_or_dies_costs_the_limit() {
    let never = Fate { busy: usize::MAX, ..Fate::default() };
    let late = connect(4, [never, Fate::default()], SHORT, LONG).unwrap_err();
    assert_eq!(late, NcclError::Late { phase: Phase::Connecting, busy: 1, limit: SHORT });
    assert_eq!(aborts(4), [1, 1]);
    let mut clique = connect(5, [Fate::default(); 2], LONG, LONG).expect("no error");
    assert_eq!(
        clique.wait(Phase::Running, SHORT, |member| member == 0),
        Err(NcclError::Late { phase: Phase::Running, busy: 1, limit: SHORT })
    );
    drop(clique);
    assert_eq!(aborts(5), [1, 1]);
}

#[test]
fn whoever_cancels_ends_what_is_under_way() {
    let mut clique = connect(8, [Fate::default(); 2], LONG, LONG).expect("no error");
    clique.cancel.cancel();
    assert_eq!(clique.wait(Phase::Running, LONG, |_| true), Ok(()), "what is done is done");
    assert_eq!(clique.wait(Phase::Running, LONG, |member| member == 0), Err(NcclError::Aborted));
    assert_eq!(
        (clique.call(Phase::Launching, LONG, |_, _, _| SUCCESS), aborts(8)),
        (Err(NcclError::Aborted), [1, 1])
    );
}

#[test]
fn an_abort_that_hangs_is_told_instead_of_waited_for() {
    let hangs = Fate { busy: usize::MAX, abort: LONG, ..Fate::default() };
    let stuck = connect(6, [hangs, Fate::default()], SHORT, SHORT).unwrap_err();
    assert_eq!(stuck, NcclError::Stuck { limit: SHORT });
}

/// The GPUs, or a line that says what was not checked.
fn gpus(what: &str) -> Option<Vec<Cuda>> {
    library(what)?;
    let gpus: Vec<Cuda> = (0..devices()).map(|gpu| Cuda::new(gpu).expect("no error")).collect();
    if gpus.is_empty() {
        println!("not checked: {what}, since there is no GPU");
    }
    (!gpus.is_empty()).then_some(gpus)
}

#[test]
fn gpus_reduce_and_exchange() {
    let Some(gpus) = gpus("sums between GPUs") else { return };
    println!("NCCL {} with {} GPUs", version().expect("no error"), gpus.len());
    let mut group = Group::within(gpus.iter().map(|gpu| gpu.stream().clone()), Timeouts::default())
        .expect("no error");
    let count = gpus.len();
    let numbers = |gpu: usize| [gpu as f32 + 1.0, 10.0 * (gpu as f32 + 1.0)];
    let total = (count * (count + 1) / 2) as f32;
    let upload = |gpu: usize| gpus[gpu].stream().clone_htod(&numbers(gpu)).expect("no error");
    let root = count - 1;
    let mut x: Vec<_> = (0..count).map(upload).collect();
    let mut targets: Vec<_> = x.iter_mut().map(|x| DeviceTarget::F32(x.as_view_mut())).collect();
    assert!(matches!(group.reduce(count, &mut targets), Err(NcclError::Rank { .. })));
    group.reduce(root, &mut targets).expect("no error");
    assert_eq!(gpus[root].stream().clone_dtoh(&x[root]).expect("no error"), [total, 10.0 * total]);
    assert!(
        count == 1 || gpus[0].stream().clone_dtoh(&x[0]).expect("no error") == numbers(0),
        "others' vectors are left alone"
    );

    let mut narrow: Vec<_> = gpus
        .iter()
        .map(|gpu| gpu.stream().clone_htod(&[bf16::ONE; 3]).expect("no error"))
        .collect();
    let mut targets: Vec<_> =
        narrow.iter_mut().map(|x| DeviceTarget::Bf16(x.as_view_mut())).collect();
    group.reduce(root, &mut targets).expect("no error");
    assert_eq!(
        gpus[root].stream().clone_dtoh(&narrow[root]).expect("no error"),
        [bf16::from_f32(count as f32); 3]
    );

    let x: Vec<_> = (0..count).map(upload).collect();
    let mut y: Vec<_> =
        gpus.iter().map(|gpu| gpu.stream().alloc_zeros::<f32>(2).expect("no error")).collect();
    let after = |gpu: usize| (gpu + 1) % count;
    let sends: Vec<_> = x
        .iter()
        .enumerate()
        .map(|(gpu, x)| OutgoingVector {
            from: gpu,
            to: after(gpu),
            vector: DeviceSource::F32(x.as_view()),
        })
        .collect();
    let mut receives: Vec<_> = y
        .iter_mut()
        .enumerate()
        .map(|(gpu, y)| IncomingVector {
            at: gpu,
            from: (gpu + count - 1) % count,
            vector: DeviceTarget::F32(y.as_view_mut()),
        })
        .collect();
    group.exchange(&sends, &mut receives).expect("no error");
    for gpu in 0..count {
        assert_eq!(
            gpus[after(gpu)].stream().clone_dtoh(&y[after(gpu)]).expect("no error"),
            numbers(gpu)
        );
    }
}

/// Each rank a thread, as a process would be; parts of different lengths, one of them empty, and a
/// rank that has no part in it.
#[test]
fn gpus_gather_parts_among_some_of_them() {
    let Some(gpus) = gpus("gathering parts between GPUs") else { return };
    let (id, count) = (unique_id().expect("no error"), gpus.len());
    let parts: Vec<_> =
        (0..count).filter(|rank| count < 4 || *rank != 1).zip([0..3, 3..3, 3..10]).collect();
    let gathered: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let ranks = gpus.iter().enumerate().map(|(rank, gpu)| {
            let parts = &parts;
            scope.spawn(move || {
                let mut group =
                    Group::join(id, count, vec![(rank, gpu.stream().clone())], Timeouts::default())
                        .expect("no error");
                let mut x = gpu.stream().clone_htod(&[rank as f32; 10]).expect("no error");
                let mut target = DeviceTarget::F32(x.as_view_mut());
                let beyond = [(rank, 0..11)];
                assert!(matches!(
                    group.gather(&beyond, &mut target),
                    Err(NcclError::Part { end: 11, length: 10, .. })
                ));
                match parts.iter().any(|part| part.0 == rank) {
                    true => group.gather(parts, &mut target).expect("no error"),
                    false => assert_eq!(group.gather(parts, &mut target), Err(NcclError::NoRanks)),
                }
                gpu.stream().clone_dtoh(&x).expect("no error")
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect()
    });
    let of =
        |at: usize| parts.iter().find(|(_, part)| part.contains(&at)).map(|(rank, _)| *rank as f32);
    for (rank, found) in gathered.iter().enumerate() {
        let own = rank as f32;
        let expected = (0..10)
            .map(|at| of(at).filter(|_| parts.iter().any(|part| part.0 == rank)).unwrap_or(own))
            .collect::<Vec<f32>>();
        assert_eq!(*found, expected, "rank {rank}");
    }
}

#[test]
fn gpus_with_a_dead_peer_cost_the_limit_and_connect_again() {
    let Some(gpus) = gpus("a dead peer among GPUs") else { return };
    let limits = Timeouts { connect: Duration::from_secs(3), ..Timeouts::default() };
    let member = || vec![(0, gpus[0].stream().clone())];
    let alone = Group::join(unique_id().expect("no error"), 2, member(), limits).unwrap_err();
    assert_eq!(alone, NcclError::Late { phase: Phase::Connecting, busy: 1, limit: limits.connect });
    let mut group = Group::join(unique_id().expect("no error"), 1, member(), Timeouts::default())
        .expect("no error");
    group.abort().expect("no error");
    let mut x = gpus[0].stream().clone_htod(&[1.0f32, 2.0]).expect("no error");
    let mut reduce = |group: &mut Group| group.reduce(0, &mut [DeviceTarget::F32(x.as_view_mut())]);
    assert_eq!(reduce(&mut group), Err(NcclError::Aborted));
    let mut group = Group::join(unique_id().expect("no error"), 1, member(), Timeouts::default())
        .expect("no error");
    reduce(&mut group).expect("no error");
    assert_eq!(gpus[0].stream().clone_dtoh(&x).expect("no error"), [1.0, 2.0]);

    // Another process dies between two sums; here it is a thread.
    let Some(other) = gpus.get(1) else { return };
    let limits = Timeouts { operate: Duration::from_secs(3), ..Timeouts::default() };
    let id = unique_id().expect("no error");
    std::thread::scope(|scope| {
        let joins = |rank: usize, gpu: &Cuda| {
            Group::join(id, 2, vec![(rank, gpu.stream().clone())], limits).expect("no error")
        };
        let dies = scope.spawn(move || {
            let mut group = joins(1, other);
            let mut x = other.stream().clone_htod(&[10.0f32, 20.0]).expect("no error");
            group.reduce(0, &mut [DeviceTarget::F32(x.as_view_mut())]).expect("no error");
        });
        let mut group = joins(0, &gpus[0]);
        group.reduce(0, &mut [DeviceTarget::F32(x.as_view_mut())]).expect("no error");
        assert_eq!(gpus[0].stream().clone_dtoh(&x).expect("no error"), [11.0, 22.0]);
        dies.join().expect("the other thread");
        let late = group.reduce(0, &mut [DeviceTarget::F32(x.as_view_mut())]);
        assert_eq!(
            late,
            Err(NcclError::Late { phase: Phase::Running, busy: 1, limit: limits.operate })
        );
    });
    let mut alone = Group::join(unique_id().expect("no error"), 1, member(), Timeouts::default())
        .expect("no error");
    let mut x = gpus[0].stream().clone_htod(&[5.0f32]).expect("no error");
    alone.reduce(0, &mut [DeviceTarget::F32(x.as_view_mut())]).expect("no error");
    assert_eq!(gpus[0].stream().clone_dtoh(&x).expect("no error"), [5.0]);
}
