//! A trainer of our own over TCP, without candle: a coordinator and three workers fit a line, each
//! in a thread here and in a process of its own in earnest. Two of three hold each third of the
//! batch, so one may be late or die.
//!
//! `cargo run -p codedgrad --example tcp_trainer`

use codedgrad::codes::SchemeSpec;
use codedgrad::delays::Delays;
use codedgrad::ids::Step;
use codedgrad::schedulers::{Config, Engine};
use codedgrad::train::{Aggregator, Coordinator, Event, Pace, Shape};
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{Join, Listen, TcpLink, TcpTransport};
use std::{error::Error, thread, time::Duration};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;
const STEPS: u64 = 200;

fn worker(join: Join) -> Outcome<[f32; 2]> {
    let (link, welcome) = TcpLink::join(join)?;
    let (mut aggregator, mut line) =
        (Aggregator::new(Box::new(link), welcome.length, 8), [0.0f32; 2]);
    while let Some(event) = aggregator.next_event()? {
        match event {
            Event::Compute(mut task) => {
                while let Some(part) = task.next_part() {
                    task.message().fill(0.0);
                    for x in part.samples.map(|sample| sample as f32 / 24.0) {
                        let error = part.coefficient as f32
                            * (line[0] * x + line[1] - (3.0 * x - 1.0))
                            / 24.0;
                        task.message()
                            .iter_mut()
                            .zip([error * x, error])
                            .for_each(|(sum, g)| *sum += g);
                    }
                }
                task.submit(vec![])?;
            }
            Event::Apply(step) => {
                line.iter_mut().zip(step.gradient()).for_each(|(p, g)| *p -= 1.2 * g)
            }
            Event::Skip(_) => {}
            Event::Provide(request) => request.reply(vec![line.to_vec()]),
            Event::Resync(state) => line.copy_from_slice(&state.vectors[0]),
        }
    }
    Ok(line)
}

fn main() -> Outcome<()> {
    let security = Security::Plain { token: Token::fresh()? };
    let shape = Shape { workers: 3, length: 2, units: 3, first: Step(0) };
    let mut transport = TcpTransport::listen(Listen::new(
        ([127, 0, 0, 1], 0).into(),
        security.clone(),
        3,
        shape.length,
        shape.units,
    ))?;
    let join = || Join::new(transport.address().to_string(), security.clone());
    let threads = [join(), join(), join()].map(|join| thread::spawn(move || worker(join)));
    let (scheme, config) =
        ("cyclic:s=1".parse::<SchemeSpec>()?.scheme(3, 3, 0..STEPS)?, Config::default());
    let engine = Engine::new(scheme, config, Step(0)..Step(STEPS), 0)?;
    transport.gather(Duration::from_secs(10));
    transport.begin(Step(0));
    Coordinator::new(
        transport,
        engine,
        Pace::wall(3, &Delays::None, STEPS as usize, 0.0),
        config,
        shape,
    )
    .run(&mut ())?;
    for thread in threads {
        let line = thread.join().map_err(|_| "a worker panicked")??;
        println!("y = {:.3} x + {:.3}", line[0], line[1]);
        assert!((line[0] - 3.0).abs() < 1e-2 && (line[1] + 1.0).abs() < 1e-2);
    }
    Ok(())
}
