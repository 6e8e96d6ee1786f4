//! The same runs over TCP: star and sharded, plain and with TLS, wide and narrow numbers on the
//! wire.

use super::drills::{Fault, When, proxy};
use super::{Over, PARAMETERS, bits, modelled, setup, train};
use codedgrad::ids::Worker;
use codedgrad::run::{NumberFormat, RunConfig, Shape};
use codedgrad::sums::CHUNK;
use codedgrad::train::Outcome;
#[cfg(feature = "keys")]
use codedgrad::transport::tcp::security::{Keys, keygen};
use codedgrad::transport::tcp::security::{Security, Token};
use codedgrad::transport::tcp::{Exchange, Join, Listen, TcpError, TcpLink, TcpTransport};
use codedgrad::transport::{Link, RunFacts};
use std::time::Duration;

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) exchange: Exchange,
    pub(super) format: NumberFormat,
    pub(super) tls: bool,
    /// Trouble on the way of one worker.
    pub(super) way: Option<Way>,
    /// Seconds after which silence is noticed, and a sum that stands still where no worker can be
    /// spared.
    pub(super) patience: [u64; 2],
    /// Whether every sum comes to the coordinator too.
    pub(super) keeps: bool,
    /// Whether workers that have left come back, and after how long.
    pub(super) returns: Option<Duration>,
}

/// Whose connection breaks, how and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) worker: Worker,
    pub(super) fault: Fault,
    pub(super) when: When,
}

/// Enough numbers for several owners, and a last chunk that is not whole.
pub(super) const LONG: usize = 5 * CHUNK + 1234;

pub(super) fn settings(exchange: Exchange) -> Settings {
    Settings {
        exchange,
        format: NumberFormat::F32,
        tls: false,
        way: None,
        patience: [10, 5],
        keeps: true,
        returns: None,
    }
}

/// The secrets of the coordinator and of each worker.
fn secrets(tls: bool, workers: usize) -> (Security, Vec<Security>) {
    if tls {
        return certificates(workers);
    }
    let plain = Security::Plain { token: Token::fresh().unwrap() };
    (plain.clone(), vec![plain; workers])
}

#[cfg(feature = "keys")]
fn certificates(workers: usize) -> (Security, Vec<Security>) {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    keygen(&keys, workers as u32, false).unwrap();
    let of = |name: &str| Security::Tls {
        keys: Keys::read(&keys, name).unwrap(),
        token: Some(Token::read(&keys.join("token")).unwrap()),
    };
    (of("coordinator"), (0..workers).map(|worker| of(&format!("worker-{worker}"))).collect())
}

#[cfg(not(feature = "keys"))]
fn certificates(_: usize) -> (Security, Vec<Security>) {
    unreachable!("this build makes no certificates, and asks for none")
}

type MakeLink = Box<dyn FnMut() -> Option<Box<dyn Link>> + Send>;

pub(super) fn connect(settings: &Settings, config: RunConfig) -> (TcpTransport, Vec<MakeLink>) {
    let (own, theirs) = secrets(settings.tls, config.shape.workers);
    let listen = Listen {
        address: ([127, 0, 0, 1], 0).into(),
        security: own,
        run: 0xc0de,
        config: RunConfig { format: settings.format, ..config },
        exchange: settings.exchange,
        overlap: true,
        keeps: settings.keeps,
        first: Some(config.first),
        job: String::new(),
        facts: RunFacts::default(),
        sure: None,
        silence: Duration::from_secs(settings.patience[0]),
        stall: Duration::from_secs(settings.patience[1]),
        spare: Duration::from_secs(2),
    };
    let transport = TcpTransport::listen(listen).unwrap();
    let address = transport.address();
    let link = |(worker, security): (Worker, Security)| {
        let way = settings.way.filter(|way| way.worker == worker);
        let address = way.map_or(address, |way| proxy(address, way.fault, way.when));
        let join = Join {
            worker: Some(worker.0),
            identity: format!("{worker}"),
            patience: Duration::from_secs(if settings.returns.is_some() { 1 } else { 10 }),
            ..Join::new(address.to_string(), security)
        };
        let (mut again, returns) = (false, settings.returns);
        Box::new(move || {
            if std::mem::replace(&mut again, true) {
                std::thread::sleep(returns?);
            }
            // Once the run is over, no coordinator answers.
            let link = TcpLink::join(join.clone());
            assert!(link.is_ok() || returns.is_some(), "{link:?}");
            link.ok().map(|(link, _)| Box::new(link) as Box<dyn Link>)
        }) as MakeLink
    };
    (transport, Worker::all(config.shape.workers).zip(theirs).map(link).collect())
}

#[test]
fn over_tcp_training_has_the_bits_of_training_over_threads() {
    let mut all =
        vec![settings(Exchange::Star), settings(Exchange::Sharded), settings(Exchange::Hold)];
    if cfg!(feature = "keys") {
        all.push(Settings { tls: true, ..settings(Exchange::Star) });
        all.push(Settings { tls: true, ..settings(Exchange::Sharded) });
    }
    for (scheme, length) in [("groups:s=1", LONG), ("queue:m=1", PARAMETERS)] {
        let (_, uncoded, plain) =
            train(super::Setup { length, ..setup(scheme, 4, 6, modelled(4, 6, 1)) });
        for settings in &all {
            let over = Over::Tcp(settings.clone());
            let (outcome, trained, log) =
                train(super::Setup { length, over, ..setup(scheme, 4, 6, modelled(4, 6, 2)) });
            assert_eq!(outcome.unwrap(), Outcome::Finished);
            assert!(log.faults.is_empty(), "{:?}", log.faults);
            assert_eq!(bits(&log.gradients), bits(&plain.gradients), "{scheme}");
            assert!(
                trained.iter().all(|parameters| parameters == &uncoded[0]),
                "all replicas hold the same bytes"
            );
        }
    }
}

/// What goes between GPUs is not rounded, so nothing may be that goes another way.
#[test]
fn narrow_numbers_go_by_connections_only() {
    let security = Security::Plain { token: Token::fresh().unwrap() };
    let run = RunConfig::new(Shape::new(2, 2), 10, 1);
    let refused = |exchange, format| {
        let config = RunConfig { format, ..run };
        let listen = Listen::new(([127, 0, 0, 1], 0).into(), security.clone(), config);
        TcpTransport::listen(Listen { exchange, ..listen }).unwrap_err()
    };
    let half = refused(Exchange::Sharded, NumberFormat::F16).to_string();
    assert_eq!(half, "wire is F16: over TCP it must be F32 or Bf16");
    let refused = refused(Exchange::Nccl, NumberFormat::Bf16);
    assert!(
        matches!(refused, TcpError::Narrow) && refused.to_string().contains("f32"),
        "{refused}"
    );
}
