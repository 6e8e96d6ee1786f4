//! Four worker threads fit a line, two hold each half of the batch. One leaves on the way, and the
//! gradient stays whole.
use codedgrad::ids::Worker;
use codedgrad::train::{Aggregator, AggregatorError, Coordinator, Event, Outcome};

fn train(mut aggregator: Aggregator) -> Result<[f32; 2], AggregatorError> {
    let (mut line, leaves) = ([0.0f32; 2], aggregator.worker() == Some(Worker(3)));
    while let Some(event) = aggregator.next_event()? {
        match event {
            Event::Compute(task) if leaves && task.step() >= 50 => return Ok(line),
            Event::Compute(mut task) => {
                while let Some(part) = task.next_part() {
                    let xs = part.samples.map(|sample| sample as f32 / 32.0);
                    let error = |x| (line[0] * x + line[1] - (3.0 * x - 1.0)) / 32.0;
                    let sum = xs.fold([0.0, 0.0], |[a, b], x| [a + error(x) * x, b + error(x)]);
                    task.message().copy_from_slice(&sum.map(|sum| part.coefficient as f32 * sum));
                }
                task.submit(vec![])?;
            }
            Event::Apply(step) => (0..2).for_each(|i| line[i] -= 1.2 * step.gradient()[i]),
            Event::Skip(_) => {}
            Event::Provide(request) => request.reply(vec![line.to_vec()]),
            Event::Resync(state) => line.copy_from_slice(&state.vectors[0]),
        }
    }
    Ok(line)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let run = Coordinator::builder("groups:s=1").workers(4).steps(200).length(2).unit_samples(8);
    let (coordinator, workers) = run.local()?;
    let threads: Vec<_> = workers.into_iter().map(|w| std::thread::spawn(|| train(w))).collect();
    assert_eq!(coordinator.run(&mut ())?, Outcome::Finished);
    for (worker, thread) in threads.into_iter().enumerate() {
        let line = thread.join().map_err(|_| "a worker panicked")??;
        let fits = (line[0] - 3.0).abs() < 1e-3 && (line[1] + 1.0).abs() < 1e-3;
        assert!(fits || worker == 3, "all but the worker that left fit y = 3 x - 1: {line:?}");
    }
    Ok(())
}
