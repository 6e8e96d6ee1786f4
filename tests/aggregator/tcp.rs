//! The same runs over TCP: star and sharded, plain and with TLS, wide and narrow numbers on the wire.

use super::{Over, PARAMETERS, bits, modelled, setup, train};
use codedgrad::ids::Worker;
use codedgrad::schedulers::Config;
use codedgrad::train::{Outcome, Shape};
use codedgrad::transport::Link;
use codedgrad::transport::tcp::security::{Keys, Security, Token, keygen};
use codedgrad::transport::tcp::{Exchange, Join, Listen, TcpLink, TcpTransport};
use codedgrad::transport::wire::{CHUNK, Format};
use std::time::Duration;

#[derive(Clone)]
pub(super) struct Settings {
    exchange: Exchange,
    format: Format,
    tls: bool,
}

/// Enough numbers for several owners, and a last chunk that is not whole.
const LONG: usize = 5 * CHUNK + 1234;

fn settings(exchange: Exchange) -> Settings {
    Settings { exchange, format: Format::F32, tls: false }
}

/// The secrets of the coordinator and of each worker.
fn secrets(tls: bool, workers: usize) -> (Security, Vec<Security>) {
    if !tls {
        let plain = Security::Plain { token: Token::fresh().unwrap() };
        return (plain.clone(), vec![plain; workers]);
    }
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    keygen(&keys, workers as u32, false).unwrap();
    let of = |name: &str| Security::Tls { keys: Keys::read(&keys, name).unwrap(), token: Some(Token::read(&keys.join("token")).unwrap()) };
    (of("coordinator"), (0..workers).map(|worker| of(&format!("worker-{worker}"))).collect())
}

type MakeLink = Box<dyn FnOnce() -> Box<dyn Link> + Send>;

pub(super) fn connect(settings: &Settings, shape: Shape, config: Config) -> (TcpTransport, Vec<MakeLink>) {
    let (own, theirs) = secrets(settings.tls, shape.workers);
    let listen = Listen {
        address: ([127, 0, 0, 1], 0).into(),
        security: own,
        workers: shape.workers,
        run: 0xc0de,
        length: shape.length,
        units: shape.units,
        micro_steps: config.micro_steps,
        log_steps: config.log_steps,
        format: settings.format,
        exchange: settings.exchange,
        keeps: true,
        first: Some(shape.first),
        job: String::new(),
        silence: Duration::from_secs(10),
        stall: Duration::from_secs(5),
    };
    let transport = TcpTransport::listen(listen).unwrap();
    let address = transport.address().to_string();
    let link = |(worker, security): (Worker, Security)| {
        let join = Join {
            address: address.clone(),
            security,
            worker: Some(worker.0),
            identity: format!("{worker}"),
            listen: None,
            patience: Duration::from_secs(10),
        };
        Box::new(move || Box::new(TcpLink::join(join).unwrap().0) as Box<dyn Link>) as MakeLink
    };
    (transport, Worker::all(shape.workers).zip(theirs).map(link).collect())
}

#[test]
fn over_tcp_training_has_the_bits_of_training_over_threads() {
    let all = [
        settings(Exchange::Star),
        settings(Exchange::Sharded),
        Settings { tls: true, ..settings(Exchange::Star) },
        Settings { tls: true, ..settings(Exchange::Sharded) },
    ];
    for (scheme, length) in [("groups:s=1", LONG), ("queue:m=1", PARAMETERS)] {
        let (_, uncoded, plain) = train(super::Setup { length, ..setup(scheme, 4, 6, modelled(4, 6, 1)) });
        for settings in &all {
            let over = Over::Tcp(settings.clone());
            let (outcome, trained, log) = train(super::Setup { length, over, ..setup(scheme, 4, 6, modelled(4, 6, 2)) });
            assert_eq!(outcome.unwrap(), Outcome::Finished);
            assert!(log.faults.is_empty(), "{:?}", log.faults);
            assert_eq!(bits(&log.gradients), bits(&plain.gradients), "{scheme}");
            assert!(trained.iter().all(|parameters| parameters == &uncoded[0]), "all replicas hold the same bytes");
        }
    }
}
