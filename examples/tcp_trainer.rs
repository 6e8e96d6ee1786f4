//! Three workers fit a line over TCP, threads here and processes in earnest; one may be late.
use codedgrad::train::{Aggregator, AggregatorError, Coordinator, Event};
use codedgrad::transport::tcp::security::{Security, Token};

fn train(mut aggregator: Aggregator) -> Result<[f32; 2], AggregatorError> {
    let mut line = [0.0f32; 2];
    while let Some(event) = aggregator.next_event()? {
        match event {
            Event::Compute(mut task) => {
                while let Some(part) = task.next_part() {
                    let xs = part.samples.map(|sample| sample as f32 / 24.0);
                    let error = |x| (line[0] * x + line[1] - (3.0 * x - 1.0)) / 24.0;
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
    let security = Security::Plain { token: Token::fresh()? };
    let run = Coordinator::builder("cyclic:s=1").workers(3).steps(200).length(2).unit_samples(8);
    let served = run.serve("127.0.0.1:0", security.clone())?;
    let join = || Aggregator::join(served.address().to_string()).security(security.clone());
    let workers = [join().connect()?, join().connect()?, join().connect()?];
    let threads = workers.map(|worker| std::thread::spawn(move || train(worker)));
    served.run(&mut ())?;
    for thread in threads {
        let line = thread.join().map_err(|_| "a worker panicked")??;
        assert!((line[0] - 3.0).abs() < 1e-2 && (line[1] + 1.0).abs() < 1e-2, "{line:?}");
    }
    Ok(())
}
