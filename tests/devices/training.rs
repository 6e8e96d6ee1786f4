//! Whole runs on devices, real or emulated, which end as on the host.

use super::optimizer::CONFIG;
use super::{
    AdamW, AdamWConfig, Aggregator, Coordinator, DeviceAdamW, Event, Outcome, RunClock,
    VirtualClock,
};
use crate::codes::SchemeSpec;
use crate::delays::{Delays, Preset};
use crate::gpu::Vector;
use crate::gpu::cuda::emulated::{BYTES_OF_LAST, SCARCE};
use crate::gpu::cuda::{Cuda, DeviceVector, devices};
use crate::run::{Jobs, RunConfig, Shape};
use crate::schedulers::{Engine, Settings};
use crate::transport::{Link, StagedLink, Transport, local};
use std::sync::Arc;
use std::{env, thread};

const LENGTH: usize = 20_011;
const WORKERS: usize = 4;
const STEPS: u64 = 12;

/// A model that any memory can hold: the gradient of unit `u` is `(u + 1) p / 8`.
trait Model<V> {
    fn parameters(&self) -> &V;
    fn apply(&mut self, gradient: &V, step: u64) -> u64;
    fn state(&self) -> [Vec<f32>; 3];
    fn load(&mut self, state: &[Vec<f32>]);
}

impl Model<Vec<f32>> for (Vec<f32>, AdamW) {
    fn parameters(&self) -> &Vec<f32> {
        &self.0
    }
    fn apply(&mut self, gradient: &Vec<f32>, step: u64) -> u64 {
        self.1.update(&mut self.0, gradient, step)
    }
    fn state(&self) -> [Vec<f32>; 3] {
        [self.0.clone(), self.1.moments().0.to_vec(), self.1.moments().1.to_vec()]
    }
    fn load(&mut self, state: &[Vec<f32>]) {
        *self = (state[0].clone(), AdamW::with_moments(LOOSE, state[1].clone(), state[2].clone()));
    }
}

impl Model<DeviceVector> for DeviceAdamW {
    fn parameters(&self) -> &DeviceVector {
        self.parameters()
    }
    fn apply(&mut self, gradient: &DeviceVector, step: u64) -> u64 {
        self.update(gradient, step).expect("a step")
    }
    fn state(&self) -> [Vec<f32>; 3] {
        self.state().expect("copies")
    }
    fn load(&mut self, state: &[Vec<f32>]) {
        self.load([&state[0], &state[1], &state[2]]).expect("a state of this model");
    }
}

/// What is trained: by which scheme, jobs of a step, and parameters.
type Job = (&'static str, u64, usize);

/// Clips nothing, so that the order in which the norm is added up has no say.
const LOOSE: AdamWConfig = AdamWConfig { clip_norm: 1e9, ..CONFIG };

fn start(length: usize) -> [Vec<f32>; 3] {
    [(0..length).map(|i| (i as f32).sin()).collect(), vec![0.0; length], vec![0.0; length]]
}

/// A worker that drifts once, so that it takes over another's state; it computes a step when it
/// `may`.
fn work<V: Vector>(
    worker: usize,
    link: Box<dyn Link<V>>,
    mut model: impl Model<V>,
    micro_steps: u64,
    may: impl Fn(u64),
) -> [Vec<f32>; 3] {
    let mut aggregator =
        Aggregator::new(link, model.parameters().length(), 1).accumulating(micro_steps);
    while let Some(event) = aggregator.next_event().expect("the coordinator is there") {
        match event {
            Event::Compute(mut task) => {
                may(task.step());
                while let Some(part) = task.next_part() {
                    task.vector().clear();
                    task.vector().add(
                        part.coefficient as f32 * (part.unit + 1) as f32 / 8.0,
                        model.parameters(),
                    );
                }
                task.submit(vec![]).expect("all parts are computed");
            }
            Event::Apply(step) => {
                let drifts = (worker, step.index) == (1, 4);
                let digest = model.apply(step.vector(), step.index);
                step.applied_with(digest ^ u64::from(drifts));
            }
            Event::Skip(_) => panic!("everything is finite"),
            Event::Provide(request) => request.reply(model.state().to_vec()),
            Event::Resync(state) => model.load(&state.vectors),
        }
    }
    model.state()
}

/// The run over vectors of a length.
fn config(length: usize, micro_steps: u64) -> RunConfig {
    let usual = RunConfig::new(Shape::new(WORKERS, WORKERS as u32), length, STEPS);
    RunConfig { jobs: Jobs { micro_steps, ..usual.jobs }, ..usual }
}

fn train<T: Transport, V: Vector, M: Model<V>>(
    (spec, micro_steps, length): Job,
    transport: T,
    links: Vec<Box<dyn Link<V>>>,
    model: impl Fn(usize) -> M + Sync,
    may: impl Fn(u64) + Sync,
) -> Vec<Option<[Vec<f32>; 3]>> {
    let jobs = STEPS * micro_steps;
    let scheme = spec
        .parse::<SchemeSpec>()
        .expect("no error")
        .scheme(WORKERS, WORKERS as u32, 0..jobs)
        .expect("no error");
    let engine =
        Engine::new(scheme, config(length, micro_steps), Settings::default()).expect("no error");
    let delays = Delays::Preset { preset: Preset::Bursts, workers: WORKERS, seed: 5 };
    let run_clock = RunClock::modelled(
        WORKERS,
        &delays,
        2 * jobs as usize,
        VirtualClock { step_seconds: 1.0 },
        0.0,
    );
    thread::scope(|scope| {
        let (model, may) = (&model, &may);
        let begin = |(worker, link)| {
            let thread = thread::Builder::new().name(format!("worker {worker}"));
            thread
                .spawn_scoped(scope, move || work(worker, link, model(worker), micro_steps, may))
                .expect("no error")
        };
        let threads: Vec<_> = (0..).zip(links).map(begin).collect();
        assert_eq!(
            Coordinator::new(transport, engine, run_clock).run(&mut ()).expect("no error"),
            Outcome::Finished
        );
        threads.into_iter().map(|thread| thread.join().ok()).collect()
    })
}

fn boxed<V: Vector>(links: Vec<impl Link<V> + 'static>) -> Vec<Box<dyn Link<V>>> {
    links.into_iter().map(|link| Box::new(link) as Box<dyn Link<V>>).collect()
}

/// Whole runs with stragglers, over the host's memory, over that of devices, and computed on
/// devices but summed by the host.
#[test]
fn runs_on_devices_end_as_on_the_host() {
    if devices() == 0 {
        println!("not checked: runs on a GPU, since there is none");
        return;
    }
    let places: Vec<_> = (0..WORKERS)
        .map(|worker| Arc::new(Cuda::new(worker / 2 % devices()).expect("a device")))
        .collect();
    let [parameters, first, second] = start(LENGTH);
    let on_device = |worker: usize| {
        DeviceAdamW::new(&places[worker], LOOSE, [&parameters, &first, &second]).expect("memory")
    };
    let on_host =
        |_| (parameters.clone(), AdamW::with_moments(LOOSE, first.clone(), second.clone()));
    for (spec, micro_steps) in [
        ("uncoded", 1),
        ("groups:s=1", 1),
        ("groups:s=1", 3),
        ("m-sgc:B=1,W=2,lambda=1", 4),
        ("queue:m=1", 1),
    ] {
        let job = (spec, micro_steps, LENGTH);
        let (transport, links) = local::connect(WORKERS);
        let host = train(job, transport, boxed(links), on_host, |_| ());
        let (transport, links) =
            local::connect_at::<DeviceVector>(Arc::clone(&places[0]), places.clone());
        let staying = train(job, transport, boxed(links), on_device, |_| ());
        let (transport, links) = local::connect(WORKERS);
        let staged = links
            .into_iter()
            .zip(&places)
            .map(|(link, place)| StagedLink::new(Box::new(link), Arc::clone(place)));
        let staged = train(job, transport, boxed(staged.collect()), on_device, |_| ());
        assert!(
            host.iter().flatten().filter(|state| state[0] != parameters).count() == WORKERS
                && host.windows(2).all(|pair| pair[0] == pair[1]),
            "{job:?}"
        );
        assert!(staying == host && staged == host, "{job:?}");
    }
}

/// The last worker's card holds its replica and not much more: it is lost, and the others end as
/// without it.
#[test]
fn a_card_without_memory_costs_its_worker_and_not_the_run() {
    if env::var(BYTES_OF_LAST).is_err() {
        println!("not checked: a card without memory, since there is no emulated one");
        return;
    }
    const { assert!(12 * LENGTH < SCARCE && SCARCE < 16 * LENGTH) };
    let places: Vec<_> =
        (0..WORKERS).map(|card| Arc::new(Cuda::new(card).expect("a device"))).collect();
    let [parameters, first, second] = start(LENGTH);
    let on_device = |worker: usize| {
        DeviceAdamW::new(&places[worker], LOOSE, [&parameters, &first, &second]).expect("memory")
    };
    let on_host =
        |_| (parameters.clone(), AdamW::with_moments(LOOSE, first.clone(), second.clone()));
    let (transport, links) = local::connect(WORKERS);
    let host = train(("groups:s=1", 1, LENGTH), transport, boxed(links), on_host, |_| ());
    let (transport, links) =
        local::connect_at::<DeviceVector>(Arc::clone(&places[0]), places.clone());
    let staying = train(("groups:s=1", 1, LENGTH), transport, boxed(links), on_device, |_| ());
    let (transport, links) = local::connect(WORKERS);
    let staged = links
        .into_iter()
        .zip(&places)
        .map(|(link, place)| StagedLink::new(Box::new(link), Arc::clone(place)));
    let staged =
        train(("groups:s=1", 1, LENGTH), transport, boxed(staged.collect()), on_device, |_| ());
    for found in [staying, staged] {
        assert!(found[..WORKERS - 1] == host[..WORKERS - 1] && found[WORKERS - 1].is_none());
    }
}

#[cfg(feature = "nccl")]
mod several {
    use super::*;
    use crate::gpu::cuda::DeviceSource;
    use crate::sums::DecodedSum;
    use crate::train::{Flow, Observer, StepRecord};
    use crate::transport::nccl::{self, Group, Timeouts};

    /// What a run decodes.
    struct Gradients(Vec<Vec<f32>>);

    impl Observer<DeviceVector> for Gradients {
        fn step(
            &mut self,
            _: &StepRecord,
            decoded: Option<&DecodedSum<DeviceVector>>,
        ) -> Result<Flow, Box<dyn std::error::Error + Send + Sync>> {
            self.0.push(decoded.ok_or("every step is here")?.gradient.to_host()?);
            Ok(Flow::Continue)
        }
    }

    /// Two workers of two GPUs each: a worker's GPUs compute halves of its gradient, which are
    /// added up on the first.
    #[test]
    fn gpus_of_a_worker_add_up_its_gradient() {
        let gpus: Vec<_> =
            (0..devices()).map(|gpu| Arc::new(Cuda::new(gpu).expect("no error"))).collect();
        let (workers, _) = gpus.as_chunks::<2>();
        if workers.len() < 2 || nccl::version().is_err() {
            return println!(
                "not checked: workers of several GPUs, for which there are {} and perhaps no NCCL",
                gpus.len()
            );
        }
        let (steps, count) = (3, workers.len());
        let scheme = "groups:l=1"
            .parse::<SchemeSpec>()
            .expect("no error")
            .scheme(count, count as u32, 0..steps)
            .expect("no error");
        let config = RunConfig::new(Shape::new(count, count as u32), 5, steps);
        let engine = Engine::new(scheme, config, Settings::default()).expect("no error");
        let places = workers.iter().map(|[first, _]| Arc::clone(first)).collect();
        let (transport, links) = local::connect_at::<DeviceVector>(Arc::clone(&gpus[0]), places);
        let work = |link, pair: &[Arc<Cuda>; 2]| {
            let mut group =
                Group::within(pair.iter().map(|gpu| gpu.stream().clone()), Timeouts::default())
                    .expect("no error");
            let mut aggregator: Aggregator<DeviceVector> = Aggregator::new(Box::new(link), 5, 1);
            while let Some(event) = aggregator.next_event().expect("no error") {
                let Event::Compute(mut task) = event else { continue };
                let batch = task.batch() as f32;
                while let Some(part) = task.next_part() {
                    let half =
                        |at: usize| vec![(part.unit as f32 + 1.0) * (batch + 0.5 * at as f32); 5];
                    let mut halves =
                        [0, 1].map(|at| DeviceVector::of(&pair[at], &half(at)).expect("no error"));
                    let [first, second] = &mut halves;
                    group
                        .reduce(
                            0,
                            &mut [
                                first.target().expect("no error"),
                                second.target().expect("no error"),
                            ],
                        )
                        .expect("no error");
                    task.vector()
                        .copy_from(
                            &DeviceSource::F32(first.view().expect("no error")),
                            part.coefficient as f32,
                        )
                        .expect("no error");
                }
                task.submit(vec![]).expect("no error");
            }
        };
        let mut gradients = Gradients(Vec::new());
        std::thread::scope(|scope| {
            links
                .into_iter()
                .zip(workers)
                .for_each(|(link, pair)| drop(scope.spawn(move || work(link, pair))));
            let run_clock = RunClock::wall(count, &Delays::None, steps as usize, 0.0);
            Coordinator::new(transport, engine, run_clock).run(&mut gradients).expect("no error");
        });
        let units = (count * (count + 1) / 2) as f32;
        assert_eq!(gradients.0, [0.5, 2.5, 4.5].map(|both| vec![units * both; 5]));
    }
}

/// Runs of workers with a connection each, whose devices sum by NCCL.
#[cfg(all(feature = "nccl", feature = "tcp"))]
mod with_collective {
    use super::*;
    use crate::gpu::digest_of_bits;
    use crate::ids::{Step, Worker};
    use crate::sums::CHUNK;
    use crate::sums::DecodedSum;
    use crate::sums::collective::{Collective, CollectiveCommand, CollectiveEvent, ReportSink};
    use crate::train::{Flow, Observer, Progress, RunError, StepRecord};
    use crate::transport::nccl::{self, NcclCollective, Timeouts};
    use crate::transport::tcp::security::{Security, Token};
    use crate::transport::tcp::{Exchange, Join, Listen, TcpLink, TcpStatus, TcpTransport};
    use std::net::SocketAddr;
    use std::process::{Child, Command, Stdio};
    use std::sync::Mutex;
    use std::time::Duration;

    /// What goes wrong with a worker, and at which step.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fault {
        None,
        /// It has no collective.
        Without,
        /// It does not take part in a sum, as if it had stopped.
        Mute,
        /// Its collective gives the group up.
        Apart,
        /// It dies.
        Dies,
    }

    const AT: u64 = 5;
    const WHO: usize = 2;

    /// A collective with a fault.
    struct Faulty {
        inner: NcclCollective,
        report: Option<Arc<dyn Fn(CollectiveEvent) + Send + Sync>>,
        fault: Fault,
    }

    impl Collective for Faulty {
        fn begin(&mut self, report: ReportSink) {
            let report = Mutex::new(report);
            let shared: Arc<dyn Fn(CollectiveEvent) + Send + Sync> =
                Arc::new(move |reported| report.lock().expect("no error")(reported));
            self.report = Some(Arc::clone(&shared));
            self.inner.begin(Box::new(move |reported| shared(reported)));
        }

        fn tell(&mut self, told: CollectiveCommand) {
            let now = matches!(&told, CollectiveCommand::Sum { collective, .. } if collective.sum.step >= Step(AT));
            match (&told, std::mem::replace(&mut self.fault, Fault::None)) {
                (CollectiveCommand::Sum { .. }, Fault::Mute) if now => {}
                (CollectiveCommand::Sum { group, .. }, Fault::Apart) if now => {
                    self.report.as_ref().expect("no error")(CollectiveEvent::Failed {
                        group: *group,
                        reason: "as asked".into(),
                    });
                }
                (_, fault) => {
                    self.fault = fault;
                    self.inner.tell(told);
                }
            }
        }
    }

    /// A run over TCP in which NCCL sums, from step 1 on; what became of its workers and of its
    /// sums.
    fn run(
        job: Job,
        places: &[Arc<Cuda>],
        keeps: bool,
        fault: Fault,
    ) -> (Vec<Option<[Vec<f32>; 3]>>, TcpStatus) {
        let (spec, micro_steps, length) = job;
        let security = Security::Plain { token: Token::fresh().expect("no error") };
        let config = config(length, micro_steps);
        let listen = Listen::new(([127, 0, 0, 1], 0).into(), security.clone(), config);
        // Machines that emulate devices may be busy.
        let spare = Duration::from_secs(if fault == Fault::Mute { 1 } else { 20 });
        let mut transport =
            TcpTransport::listen(Listen { exchange: Exchange::Nccl, keeps, spare, ..listen })
                .expect("no error");
        let status = transport.status();
        let link = |worker: usize| {
            let place = Arc::clone(&places[worker]);
            let own = Join {
                worker: Some(worker as u32),
                ..Join::new(transport.address().to_string(), security.clone())
            };
            let (link, welcome) = TcpLink::join(own).expect("no error");
            let fault = if worker == WHO { fault } else { Fault::None };
            link.with_collective(Arc::clone(&place), &welcome, |results| match fault {
                Fault::Without => Err("as asked".to_owned()),
                _ => Ok(Box::new(Faulty {
                    inner: NcclCollective::new(&place, results, Timeouts::default())
                        .expect("no error"),
                    report: None,
                    fault,
                })),
            })
        };
        let links = (0..WORKERS).map(link).collect();
        assert_eq!(transport.gather(Duration::from_secs(20)).absent, []);
        transport.begin(Step(0));
        let [parameters, first, second] = start(length);
        let model = |worker: usize| {
            DeviceAdamW::new(&places[worker], LOOSE, [&parameters, &first, &second])
                .expect("no error")
        };
        let (seen, died) = (Arc::clone(&status), Mutex::new(false));
        let may = |step: u64| {
            if fault == Fault::Without || step == 0 {
                return;
            }
            let is_its = thread::current().name() == Some(&format!("worker {WHO}"));
            if fault == Fault::Dies && step == AT && is_its {
                *died.lock().expect("no error") = true;
                panic!("worker {WHO} dies, as asked");
            }
            let wanted = || if *died.lock().expect("no error") { WORKERS - 1 } else { WORKERS };
            for _ in 0..20_000 {
                // While a worker is about to die, no worker waits for the group.
                if seen.lock().expect("no error").sums.group == wanted()
                    || (fault != Fault::None && (AT..AT + 3).contains(&step))
                {
                    return;
                }
                thread::sleep(Duration::from_millis(1));
            }
            panic!(
                "{spec}, {fault:?}: no group at step {step}: {:?}",
                seen.lock().expect("no error")
            );
        };
        let trained = train(job, transport, boxed(links), model, may);
        let status = status.lock().expect("no error").clone();
        (trained, status)
    }

    fn places() -> Option<Vec<Arc<Cuda>>> {
        let gpus = devices();
        if gpus < WORKERS || nccl::version().is_err() {
            println!(
                "not checked: workers whose GPUs sum by NCCL, for which there are {gpus} and \
                 perhaps no NCCL"
            );
            return None;
        }
        Some((0..WORKERS).map(|gpu| Arc::new(Cuda::new(gpu).expect("a device"))).collect())
    }

    fn on_host(job: Job) -> Vec<Option<[Vec<f32>; 3]>> {
        let [parameters, first, second] = start(job.2);
        let (transport, links) = local::connect(WORKERS);
        let model =
            |_| (parameters.clone(), AdamW::with_moments(LOOSE, first.clone(), second.clone()));
        train(job, transport, boxed(links), model, |_| ())
    }

    const LONG: usize = 3 * CHUNK + 77;

    #[test]
    fn workers_whose_gpus_sum_by_nccl_end_as_on_the_host() {
        let Some(places) = places() else { return };
        for (job, keeps) in [
            (("uncoded", 1, LONG), false),
            (("groups:s=1", 1, LONG), true),
            (("groups:s=1", 3, LENGTH), false),
            (("m-sgc:B=1,W=2,lambda=1", 4, LENGTH), true),
        ] {
            let (trained, status) = run(job, &places, keeps, Fault::None);
            assert!(trained == on_host(job), "{job:?}");
            assert!(
                status.sums.by_collective >= STEPS - 2 && status.sums.exchanges == STEPS,
                "{job:?}: {status:?}"
            );
        }
    }

    #[test]
    fn gpus_that_cannot_sum_by_nccl_sum_by_connections() {
        let Some(places) = places() else { return };
        let job = ("groups:s=1", 1, LONG);
        let expected = on_host(job);
        for fault in [Fault::Without, Fault::Mute, Fault::Apart, Fault::Dies] {
            let (trained, status) = run(job, &places, fault == Fault::Mute, fault);
            let alive = |worker: &usize| fault != Fault::Dies || *worker != WHO;
            assert!(
                (0..WORKERS).filter(alive).all(|worker| trained[worker] == expected[worker]),
                "{fault:?}"
            );
            assert_eq!(trained[WHO].is_none(), fault == Fault::Dies);
            match fault {
                Fault::Without => assert_eq!(status.sums.by_collective, 0),
                // Those that are left may have found each other before its step is summed; that
                // they do is seen to after every step from the third after it on.
                Fault::Dies => {
                    assert!((4..=STEPS).contains(&status.sums.by_collective), "{status:?}");
                }
                _ => assert!(
                    (4..STEPS).contains(&status.sums.by_collective),
                    "{fault:?}: {status:?}"
                ),
            }
        }
    }

    /// Tells a process of the next test which worker it is.
    const PART: &str = "CODEDGRAD_TEST_WORKER";

    /// The link of a worker whose GPU sums by NCCL.
    fn joined(
        place: &Arc<Cuda>,
        me: usize,
        address: String,
        security: Security,
    ) -> StagedLink<DeviceVector> {
        let own = Join { worker: Some(me as u32), ..Join::new(address, security) };
        let (link, welcome) = TcpLink::join(own).expect("no error");
        let collective =
            |results| NcclCollective::new(place, results, Timeouts::default()).expect("no error");
        link.with_collective(Arc::clone(place), &welcome, |results| {
            Ok(Box::new(collective(results)))
        })
    }

    #[test]
    #[ignore = "a process of the next test"]
    fn one_of_several_processes() {
        let Ok(part) = env::var(PART) else { return };
        let [address, token, me] = part.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{part}")
        };
        let me: usize = me.parse().expect("no error");
        let place = Arc::new(Cuda::new(me).expect("no error"));
        let security = Security::Plain { token: Token::parse(token).expect("no error") };
        let link = joined(&place, me, address.into(), security);
        let [parameters, first, second] = start(LONG);
        let model =
            DeviceAdamW::new(&place, LOOSE, [&parameters, &first, &second]).expect("no error");
        let state = work(me, Box::new(link), model, 1, |_| ());
        println!("ends with {:?}", state.map(|numbers| digest_of_bits(&numbers)));
    }

    type Failure = Box<dyn std::error::Error + Send + Sync>;

    /// Does something at every step, and goes on once there is a group of as many as that says.
    struct Watch<'a> {
        status: Arc<Mutex<TcpStatus>>,
        at: &'a mut dyn FnMut(u64) -> Result<usize, Failure>,
        /// Sums of groups until each step.
        by_collective: Vec<u64>,
    }

    impl Observer for Watch<'_> {
        fn step(&mut self, record: &StepRecord, _: Option<&DecodedSum>) -> Result<Flow, Failure> {
            let there = (self.at)(record.step)?;
            for _ in 0..20_000 {
                let status = self.status.lock().expect("no error").clone();
                if status.sums.group == there {
                    self.by_collective.push(status.sums.by_collective);
                    return Ok(Flow::Continue);
                }
                thread::sleep(Duration::from_millis(1));
            }
            Err(format!("no group of {there} at step {}", record.step).into())
        }
    }

    /// Every sum is by a group, but maybe the first, which may be made before there is one.
    fn is_by_group(by_collective: &[u64]) -> bool {
        by_collective[0] <= 1 && by_collective.windows(2).all(|pair| pair[1] == pair[0] + 1)
    }

    /// Coordinates the steps from one on, by sums of groups; how many there were until each step.
    fn coordinate(
        mut transport: TcpTransport,
        from: impl FnOnce(&[(Worker, Option<Step>)]) -> Step,
        at: &mut dyn FnMut(u64) -> Result<usize, Failure>,
    ) -> (Result<Outcome, RunError>, Vec<u64>) {
        let there = transport.gather(Duration::from_secs(60));
        assert_eq!(there.absent, []);
        let from = from(&there.present);
        transport.begin(from);
        let scheme = "groups:s=1".parse::<SchemeSpec>().expect("no error");
        let scheme = scheme.scheme(WORKERS, WORKERS as u32, from.0..STEPS).expect("no error");
        let config = RunConfig { first: from, ..config(LONG, 1) };
        let engine = Engine::new(scheme, config, Settings::default()).expect("no error");
        let run_clock = RunClock::wall(WORKERS, &Delays::None, STEPS as usize, 0.0);
        let mut watch = Watch { status: transport.status(), at, by_collective: Vec::new() };
        let mut coordinator = Coordinator::new(transport, engine, run_clock);
        let ran = loop {
            match coordinator.pump(&mut watch) {
                Ok(Progress::Done(outcome)) => break Ok(outcome),
                Ok(Progress::Wait(_)) => thread::sleep(Duration::from_micros(200)),
                Err(error) => break Err(error),
            }
        };
        // No worker hears of the end of a coordinator that dies.
        if ran.is_ok() {
            coordinator.stop();
        }
        (ran, watch.by_collective)
    }

    fn listen(address: SocketAddr, security: Security) -> TcpTransport {
        let spare = Duration::from_secs(20);
        let listen = Listen::new(address, security, config(LONG, 1));
        // The port of another coordinator is free a moment after its end.
        for _ in 0..5000 {
            match TcpTransport::listen(Listen {
                run: 0xc0de,
                exchange: Exchange::Nccl,
                spare,
                ..listen.clone()
            }) {
                Ok(transport) => return transport,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
        panic!("{address} is not free");
    }

    const ANY: ([u8; 4], u16) = ([127, 0, 0, 1], 0);

    #[test]
    fn gpus_of_processes_sum_by_nccl_though_one_is_killed() {
        if places().is_none() {
            return;
        }
        // A token for a run of this host.
        let token = format!("{:032x}{:032x}", std::process::id(), 7);
        let security = Security::Plain { token: Token::parse(&token).expect("no error") };
        let transport = listen(ANY.into(), security);
        let (address, status) = (transport.address(), transport.status());
        let process = |me: usize| {
            let mut tests = Command::new(env::current_exe().expect("this program"));
            tests.args([
                "--exact",
                "train::on_devices::with_collective::one_of_several_processes",
                "--ignored",
                "--nocapture",
            ]);
            tests
                .env(PART, format!("{address} {token} {me}"))
                .stdout(Stdio::piped())
                .spawn()
                .expect("no error")
        };
        let mut children: Vec<Child> = (0..WORKERS).map(process).collect();
        let mut kills = |step: u64| {
            if step == AT {
                children[WHO].kill()?;
            }
            Ok(if step >= AT { WORKERS - 1 } else { WORKERS })
        };
        let (ran, by_collective) = coordinate(transport, |_| Step(0), &mut kills);
        assert_eq!(ran.expect("no error"), Outcome::Finished);
        let expected = on_host(("groups:s=1", 1, LONG))[0]
            .clone()
            .expect("no error")
            .map(|numbers| digest_of_bits(&numbers));
        for (me, child) in children.into_iter().enumerate() {
            let out = child.wait_with_output().expect("no error");
            let said =
                String::from_utf8_lossy(&out.stdout).contains(&format!("ends with {expected:?}"));
            assert_eq!((said, out.status.success()), (me != WHO, me != WHO), "worker {me}");
        }
        // The first sum is made before there is a group; every other is by it, but for the one in
        // which a worker is killed.
        assert!(
            by_collective[AT as usize] >= AT
                && status.lock().expect("no error").sums.by_collective >= STEPS - 2,
            "{by_collective:?}"
        );
    }

    #[test]
    fn gpus_sum_by_nccl_under_a_coordinator_that_is_restarted() {
        let Some(places) = places() else { return };
        let security = Security::Plain { token: Token::fresh().expect("no error") };
        let transport = listen(ANY.into(), security.clone());
        let address = transport.address();
        let link =
            |worker: usize| joined(&places[worker], worker, address.to_string(), security.clone());
        let links: Vec<_> = (0..WORKERS).map(link).collect();
        let [parameters, first, second] = start(LONG);
        let model = |worker: usize| {
            DeviceAdamW::new(&places[worker], LOOSE, [&parameters, &first, &second])
                .expect("no error")
        };
        let trained = thread::scope(|scope| {
            let model = &model;
            let begin = |(worker, link)| {
                scope.spawn(move || work(worker, Box::new(link), model(worker), 1, |_| ()))
            };
            let threads: Vec<_> = links.into_iter().enumerate().map(begin).collect();
            let mut ends = |step: u64| {
                if step == AT { Err("the coordinator ends".into()) } else { Ok(WORKERS) }
            };
            let (ran, by_collective) = coordinate(transport, |_| Step(0), &mut ends);
            assert!(
                matches!(ran, Err(RunError::Observer(_)))
                    && by_collective.len() as u64 == AT
                    && is_by_group(&by_collective),
                "{ran:?}, {by_collective:?}"
            );
            let last = |there: &[(Worker, Option<Step>)]| {
                there.iter().filter_map(|(_, next)| *next).max().expect("a state")
            };
            let (ran, by_collective) =
                coordinate(listen(address, security.clone()), last, &mut |_| Ok(WORKERS));
            assert_eq!(ran.expect("no error"), Outcome::Finished);
            assert!(
                by_collective.len() as u64 >= STEPS - AT - 1 && is_by_group(&by_collective),
                "{by_collective:?}"
            );
            threads.into_iter().map(|thread| thread.join().ok()).collect::<Vec<_>>()
        });
        assert!(trained == on_host(("groups:s=1", 1, LONG)));
    }
}
