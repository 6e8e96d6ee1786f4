//! The optimizer of replicas that stay on a device.

use super::AdamWConfig;
use crate::gpu::cuda::{Cuda, CudaError, DeviceVector};
use crate::gpu::{GradientError, GradientMut};
use std::sync::Arc;

/// [`AdamW`](super::AdamW) over parameters and moments on a device, for workers whose gradients stay there too.
///
/// The formula and its roundings are the same. Only the gradient's norm is added up in another order, in f64, so that
/// parameters have the CPU's bits unless that changes the last bit of a gradient that is clipped. All replicas of a kind of device
/// agree. The digest is [`DeviceVector::digest`].
///
/// ```no_run
/// use codedgrad::gpu::cuda::{Cuda, DeviceVector};
/// use codedgrad::train::{AdamWConfig, DeviceAdamW};
/// use std::sync::Arc;
/// # let config: AdamWConfig = todo!();
/// let cuda = Arc::new(Cuda::new(0)?);
/// let mut optimizer = DeviceAdamW::new(&cuda, config, [&[1.0, 2.0], &[0.0; 2], &[0.0; 2]])?;
/// let digest = optimizer.update(&DeviceVector::of(&cuda, &[0.5, -0.5])?, 0)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeviceAdamW {
    config: AdamWConfig,
    parameters: DeviceVector,
    first: DeviceVector,
    second: DeviceVector,
}

impl DeviceAdamW {
    /// Parameters, first and second moments, copied to the device.
    ///
    /// # Errors
    /// [`CudaError`] when the driver refuses.
    ///
    /// # Panics
    /// When they differ in length.
    pub fn new(cuda: &Arc<Cuda>, config: AdamWConfig, state: [&[f32]; 3]) -> Result<Self, CudaError> {
        let [parameters, first, second] = state;
        assert!(parameters.len() == first.len() && first.len() == second.len(), "one number of each kind per parameter");
        let copy = |numbers| DeviceVector::of(cuda, numbers);
        Ok(Self { config, parameters: copy(parameters)?, first: copy(first)?, second: copy(second)? })
    }

    /// Takes over parameters, first and second moments of another replica, in the memory that is there.
    ///
    /// # Errors
    /// [`GradientError`] when there are more than here, or the device fails, which leaves the state unknown.
    pub fn load(&mut self, [parameters, first, second]: [&[f32]; 3]) -> Result<(), GradientError> {
        self.parameters.write(0, parameters)?;
        self.first.write(0, first)?;
        self.second.write(0, second)
    }

    /// The parameters, where they lie.
    #[must_use]
    pub fn parameters(&self) -> &DeviceVector {
        &self.parameters
    }

    /// Parameters, first and second moments, for another replica or to be saved. Waits for the device.
    ///
    /// # Errors
    /// [`CudaError`] when the driver refuses.
    pub fn state(&self) -> Result<[Vec<f32>; 3], CudaError> {
        Ok([self.parameters.to_host()?, self.first.to_host()?, self.second.to_host()?])
    }

    /// Applies one gradient, as [`AdamW`](super::AdamW)`::update` does, and returns a digest of the parameters after it. Waits
    /// for the device.
    ///
    /// # Errors
    /// [`CudaError`] when the lengths differ, or the driver refuses; what it refused once the step had begun leaves the
    /// state unknown.
    pub fn update(&mut self, gradient: &DeviceVector, step: u64) -> Result<u64, CudaError> {
        let Self { config, parameters, first, second } = self;
        DeviceVector::step([parameters, first, second], gradient, |norm| config.rates(step, norm))?;
        self.parameters.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::SchemeSpec;
    use crate::delays::{Delays, Preset};
    use crate::gpu::Vector;
    use crate::gpu::cuda::devices;
    use crate::gpu::cuda::emulated::{BYTES_OF_LAST, SCARCE};
    use crate::ids::Step;
    use crate::schedulers::{Config, Engine};
    use crate::train::optimizer::CONFIG;
    use crate::train::{AdamW, Aggregator, Coordinator, Event, Outcome, Pace, Shape, VirtualClock};
    use crate::transport::{Link, Staged, Transport, local};
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

    /// Clips nothing, so that the order in which the norm is added up has no say.
    const LOOSE: AdamWConfig = AdamWConfig { clip_norm: 1e9, ..CONFIG };

    fn start() -> [Vec<f32>; 3] {
        [(0..LENGTH).map(|i| (i as f32).sin()).collect(), vec![0.0; LENGTH], vec![0.0; LENGTH]]
    }

    /// A worker that drifts once, so that it takes over another's state.
    fn work<V: Vector>(worker: usize, link: Box<dyn Link<V>>, mut model: impl Model<V>, micro_steps: u64) -> [Vec<f32>; 3] {
        let mut aggregator = Aggregator::new(link, LENGTH, 1).accumulating(micro_steps);
        while let Some(event) = aggregator.next_event().expect("the coordinator is there") {
            match event {
                Event::Compute(mut task) => {
                    while let Some(part) = task.next_part() {
                        task.vector().clear();
                        task.vector().add(part.coefficient as f32 * (part.unit + 1) as f32 / 8.0, model.parameters());
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

    fn train<T: Transport, V: Vector, M: Model<V>>(
        (spec, micro_steps): (&str, u64),
        transport: T,
        links: Vec<Box<dyn Link<V>>>,
        model: impl Fn(usize) -> M + Sync,
    ) -> Vec<Option<[Vec<f32>; 3]>> {
        let jobs = STEPS * micro_steps;
        let scheme = spec.parse::<SchemeSpec>().unwrap().scheme(WORKERS, WORKERS as u32, 0..jobs).unwrap();
        let config = Config { micro_steps, ..Config::default() };
        let engine = Engine::new(scheme, config, Step(0)..Step(STEPS), 0);
        let shape = Shape { workers: WORKERS, length: LENGTH, units: WORKERS as u32, first: Step(0) };
        let delays = Delays::Preset { preset: Preset::Bursts, workers: WORKERS, seed: 5 };
        let pace = Pace::modelled(WORKERS, &delays, 2 * jobs as usize, VirtualClock { step_seconds: 1.0 }, 0.0);
        thread::scope(|scope| {
            let model = &model;
            let threads: Vec<_> =
                (0..).zip(links).map(|(worker, link)| scope.spawn(move || work(worker, link, model(worker), micro_steps))).collect();
            assert_eq!(Coordinator::new(transport, engine, pace, config, shape).run(&mut ()).unwrap(), Outcome::Finished);
            threads.into_iter().map(|thread| thread.join().ok()).collect()
        })
    }

    fn boxed<V: Vector>(links: Vec<impl Link<V> + 'static>) -> Vec<Box<dyn Link<V>>> {
        links.into_iter().map(|link| Box::new(link) as Box<dyn Link<V>>).collect()
    }

    /// Whole runs with stragglers, over the host's memory, over that of devices, and computed on devices but summed by the host.
    #[test]
    fn runs_on_devices_end_as_on_the_host() {
        if devices() == 0 {
            println!("not checked: runs on a GPU, since there is none");
            return;
        }
        let places: Vec<_> = (0..WORKERS).map(|worker| Arc::new(Cuda::new(worker / 2 % devices()).expect("a device"))).collect();
        let [parameters, first, second] = start();
        let on_device = |worker: usize| DeviceAdamW::new(&places[worker], LOOSE, [&parameters, &first, &second]).expect("memory");
        let on_host = |_| (parameters.clone(), AdamW::with_moments(LOOSE, first.clone(), second.clone()));
        for job in [("uncoded", 1), ("groups:s=1", 1), ("groups:s=1", 3), ("m-sgc:B=1,W=2,lambda=1", 4), ("queue:m=1", 1)] {
            let (transport, links) = local::connect(WORKERS);
            let host = train(job, transport, boxed(links), on_host);
            let (transport, links) = local::connect_at::<DeviceVector>(Arc::clone(&places[0]), places.clone());
            let staying = train(job, transport, boxed(links), on_device);
            let (transport, links) = local::connect(WORKERS);
            let staged = links.into_iter().zip(&places).map(|(link, place)| Staged::new(Box::new(link), Arc::clone(place)));
            let staged = train(job, transport, boxed(staged.collect()), on_device);
            assert!(
                host.iter().flatten().filter(|state| state[0] != parameters).count() == WORKERS
                    && host.windows(2).all(|pair| pair[0] == pair[1]),
                "{job:?}"
            );
            assert!(staying == host && staged == host, "{job:?}");
        }
    }

    #[test]
    fn an_optimizer_on_a_device_is_the_cpus() {
        if devices() == 0 {
            println!("not checked: the optimizer on a GPU, since there is none");
            return;
        }
        let cuda = Arc::new(Cuda::new(0).expect("the device there is"));
        let numbers = |seed: u32| (0..100_003u32).map(|i| (i.wrapping_mul(seed) % 1009) as f32 / 504.5 - 1.0).collect::<Vec<f32>>();
        let (mut parameters, first, gradient) = (numbers(7919), numbers(104_729), numbers(15_485_863));
        let second: Vec<f32> = numbers(32_452_843).into_iter().map(f32::abs).collect();
        let config = AdamWConfig { clip_norm: 10.0, ..CONFIG };
        let mut found = DeviceAdamW::new(&cuda, config, [&parameters, &first, &second]).expect("memory");
        let mut twin = AdamW::with_moments(config, first, second);
        let vector = DeviceVector::of(&cuda, &gradient).expect("memory");
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let mut digests = Vec::new();
        for step in 0..3 {
            digests.push(found.update(&vector, step).expect("a step"));
            twin.update(&mut parameters, &gradient, step);
            let (first, second) = twin.moments();
            let state = found.state().expect("copies");
            assert!([&parameters[..], first, second].into_iter().zip(&state).all(|(twin, found)| bits(found) == bits(twin)), "step {step}");
        }
        digests.dedup();
        assert_eq!(digests.len(), 3, "every step changes the parameters");
    }

    /// The last worker's card holds its replica and not much more: it is lost, and the others end as without it.
    #[test]
    fn a_card_without_memory_costs_its_worker_and_not_the_run() {
        if env::var(BYTES_OF_LAST).is_err() {
            println!("not checked: a card without memory, since there is no emulated one");
            return;
        }
        const { assert!(12 * LENGTH < SCARCE && SCARCE < 16 * LENGTH) };
        let places: Vec<_> = (0..WORKERS).map(|card| Arc::new(Cuda::new(card).expect("a device"))).collect();
        let [parameters, first, second] = start();
        let on_device = |worker: usize| DeviceAdamW::new(&places[worker], LOOSE, [&parameters, &first, &second]).expect("memory");
        let on_host = |_| (parameters.clone(), AdamW::with_moments(LOOSE, first.clone(), second.clone()));
        let (transport, links) = local::connect(WORKERS);
        let host = train(("groups:s=1", 1), transport, boxed(links), on_host);
        let (transport, links) = local::connect_at::<DeviceVector>(Arc::clone(&places[0]), places.clone());
        let staying = train(("groups:s=1", 1), transport, boxed(links), on_device);
        let (transport, links) = local::connect(WORKERS);
        let staged = links.into_iter().zip(&places).map(|(link, place)| Staged::new(Box::new(link), Arc::clone(place)));
        let staged = train(("groups:s=1", 1), transport, boxed(staged.collect()), on_device);
        for found in [staying, staged] {
            assert!(found[..WORKERS - 1] == host[..WORKERS - 1] && found[WORKERS - 1].is_none());
        }
    }

    #[cfg(feature = "nccl")]
    mod several {
        use super::*;
        use crate::gpu::cuda::DeviceSource;
        use crate::train::{Flow, Observer, StepRecord};
        use crate::transport::Decoded;
        use crate::transport::nccl::{self, Group, Limits};

        /// What a run decodes.
        struct Gradients(Vec<Vec<f32>>);

        impl Observer<DeviceVector> for Gradients {
            fn step(
                &mut self,
                _: &StepRecord,
                decoded: Option<&Decoded<DeviceVector>>,
            ) -> Result<Flow, Box<dyn std::error::Error + Send + Sync>> {
                self.0.push(decoded.ok_or("every step is here")?.gradient.to_host()?);
                Ok(Flow::Continue)
            }
        }

        /// Two workers of two GPUs each: a worker's GPUs compute halves of its gradient, which are added up on the first.
        #[test]
        fn gpus_of_a_worker_add_up_its_gradient() {
            let gpus: Vec<_> = (0..devices()).map(|gpu| Arc::new(Cuda::new(gpu).expect("no error"))).collect();
            let (workers, _) = gpus.as_chunks::<2>();
            if workers.len() < 2 || nccl::version().is_err() {
                return println!("not checked: workers of several GPUs, for which there are {} and perhaps no NCCL", gpus.len());
            }
            let (steps, count) = (3, workers.len());
            let scheme = "groups:l=1".parse::<SchemeSpec>().expect("no error").scheme(count, count as u32, 0..steps).expect("no error");
            let engine = Engine::new(scheme, Config::default(), Step(0)..Step(steps), 0);
            let shape = Shape { workers: count, length: 5, units: count as u32, first: Step(0) };
            let places = workers.iter().map(|[first, _]| Arc::clone(first)).collect();
            let (transport, links) = local::connect_at::<DeviceVector>(Arc::clone(&gpus[0]), places);
            let work = |link, pair: &[Arc<Cuda>; 2]| {
                let mut group = Group::within(pair.iter().map(|gpu| gpu.stream().clone()), Limits::default()).expect("no error");
                let mut aggregator: Aggregator<DeviceVector> = Aggregator::new(Box::new(link), 5, 1);
                while let Some(event) = aggregator.next_event().expect("no error") {
                    let Event::Compute(mut task) = event else { continue };
                    let batch = task.batch() as f32;
                    while let Some(part) = task.next_part() {
                        let half = |at: usize| vec![(part.unit as f32 + 1.0) * (batch + 0.5 * at as f32); 5];
                        let mut halves = [0, 1].map(|at| DeviceVector::of(&pair[at], &half(at)).expect("no error"));
                        let [first, second] = &mut halves;
                        group.reduce(0, &mut [first.target().expect("no error"), second.target().expect("no error")]).expect("no error");
                        task.vector()
                            .copy_from(&DeviceSource::F32(first.view().expect("no error")), part.coefficient as f32)
                            .expect("no error");
                    }
                    task.submit(vec![]).expect("no error");
                }
            };
            let mut gradients = Gradients(Vec::new());
            std::thread::scope(|scope| {
                links.into_iter().zip(workers).for_each(|(link, pair)| drop(scope.spawn(move || work(link, pair))));
                let pace = Pace::wall(count, &Delays::None, steps as usize, 0.0);
                Coordinator::new(transport, engine, pace, Config::default(), shape).run(&mut gradients).expect("no error");
            });
            let units = (count * (count + 1) / 2) as f32;
            assert_eq!(gradients.0, [0.5, 2.5, 4.5].map(|both| vec![units * both; 5]));
        }
    }
}
