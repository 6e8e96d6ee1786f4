//! Strangers keep no worker out, many workers of one host may call at once, and what others send
//! fills no log.

use super::bare::{self, Bare, wait_for};
use codedgrad::ids::Worker;
use codedgrad::run::{RunConfig, Shape};
use codedgrad::transport::tcp::security::{Security, Stream, Token};
use codedgrad::transport::tcp::{
    Exchange, Join, Listen, Listener, Network, Promise, TcpLink, TcpStatus, TcpTransport,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A coordinator that waits for its workers.
struct Port {
    transport: TcpTransport,
    address: String,
    token: String,
    status: Arc<Mutex<TcpStatus>>,
}

fn secret() -> (Security, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let token = Token::fresh().unwrap();
    token.write(&path).unwrap();
    (Security::Plain { token }, std::fs::read_to_string(path).unwrap())
}

/// A run of which nothing is made: gradients of 8 numbers.
fn run(workers: usize) -> RunConfig {
    RunConfig::new(Shape::new(workers, 1), 8, 1)
}

impl Port {
    fn open(workers: usize) -> Self {
        let (security, token) = secret();
        let listen = Listen::new(([127, 0, 0, 1], 0).into(), security, run(workers));
        let transport =
            TcpTransport::listen(Listen { exchange: Exchange::Star, ..listen }).unwrap();
        let (address, status) = (transport.address().to_string(), transport.status());
        Self { transport, address, token, status }
    }

    fn stranger(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// What a caller is told that knows the token and says this.
    fn answers(&self, hello: &Value) -> io::Result<Value> {
        let mut call = Bare::call(&self.address, &self.token)?;
        call.tell(hello);
        let (_, body) = call.try_next()?;
        Ok(bare::told(&body))
    }
}

fn hello(worker: Option<u32>, identity: &str) -> Value {
    json!({"type": "hello", "worker": worker, "identity": identity, "process": worker.unwrap_or(99),
        "address": null, "offer": null, "supports_collectives": true})
}

/// All strangers that keep connections open and say nothing are of one host with the workers that
/// know the token. The workers still get in.
#[test]
fn who_says_nothing_keeps_nobody_out() {
    let port = Port::open(3);
    let silent: Vec<TcpStream> = (0..200).map(|_| port.stranger()).collect();
    wait_for("those who are too many", || port.status.lock().unwrap().refused > 0);
    for worker in 0..3 {
        let answer = port.answers(&hello(Some(worker), &format!("honest-{worker}")));
        let answer = answer.unwrap_or_else(|error| panic!("worker {worker} is kept out: {error}"));
        assert_eq!((&answer["type"], &answer["worker"]), (&json!("welcome"), &json!(worker)));
    }
    drop(silent);
}

/// 200 workers of one host are half-way through their handshakes at the same time; none of them is
/// hung up on.
#[test]
fn many_workers_of_one_host_call_at_once() {
    const WORKERS: usize = 200;
    let mut port = Port::open(WORKERS);
    let mut calls: Vec<TcpStream> = (0..WORKERS).map(|_| port.stranger()).collect();
    let greeting = [b"CGRAD\0\x01\0", &[7; 32][..]].concat();
    let answers: Vec<io::Result<[u8; 66]>> = calls
        .iter_mut()
        .map(|call| {
            let mut answer = [0; 66];
            call.write_all(&greeting)?;
            call.read_exact(&mut answer)?;
            Ok(answer)
        })
        .collect();
    let refused = answers.iter().filter(|answer| answer.is_err()).count();
    assert_eq!(refused, 0, "hung up on before they had anything to prove");
    let mut joined = Vec::new();
    for (worker, (call, answer)) in (0..).zip(calls.into_iter().zip(answers)) {
        let mut call = Bare::proves(call, &port.token, &[7; 32], &answer.unwrap()).unwrap();
        call.tell(&hello(Some(worker), &format!("honest-{worker}")));
        assert_eq!(call.hear()["type"], "welcome");
        joined.push(call);
    }
    assert_eq!(port.transport.gather(Duration::from_secs(30)).absent, []);
    assert_eq!(port.status.lock().unwrap().refused, 0);
}

/// What is too long to be a name or an address is refused, and the reason does not repeat it.
#[test]
fn names_and_addresses_are_bounded() {
    let port = Port::open(3);
    let long = "x".repeat(60_000);
    let with = |field: &str, value: &str| {
        let mut hello = hello(Some(0), "honest");
        hello[field] = json!(value);
        hello
    };
    for field in ["identity", "address"] {
        for (value, length) in [(&long[..], "60000"), (&long[..256], "256")] {
            let answer = port.answers(&with(field, value)).unwrap();
            let reason = answer["reason"]
                .as_str()
                .unwrap_or_else(|| panic!("{field} of {length} bytes is taken"));
            assert!(
                reason.contains(field) && reason.contains(length) && reason.contains("255"),
                "{reason}"
            );
            assert!(reason.len() < 200, "{reason}");
        }
        assert_eq!(port.answers(&with(field, &long[..255])).unwrap()["type"], "welcome");
    }
}

/// No worker joins four milliards of times; one that says so does not spoil the number for others.
#[test]
fn an_offer_of_the_last_epoch_is_refused() {
    let port = Port::open(3);
    let offering = |epoch: u32| {
        let mut hello = hello(Some(1), "honest");
        hello["offer"] = json!({"run": 1, "epoch": epoch, "next": 0});
        hello
    };
    for epoch in [u32::MAX, u32::MAX - 1, 1 << 31] {
        let answer = port.answers(&offering(epoch)).unwrap();
        assert_eq!(answer["type"], "refused", "{answer}");
        assert!(answer["reason"].as_str().unwrap().contains(&epoch.to_string()), "{answer}");
    }
    let last = (1 << 31) - 1;
    assert_eq!(port.answers(&offering(last)).unwrap()["epoch"], last + 1);
    assert_eq!(
        port.answers(&hello(Some(1), "honest")).unwrap()["epoch"],
        last + 2,
        "who joins later is later"
    );
}

/// What was logged at `WARN` and above on this thread.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Heard {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut words = Words(String::new());
        event.record(&mut words);
        self.0.lock().unwrap().push(words.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Where calls of a port go.
type Calls = mpsc::UnboundedSender<(Stream, SocketAddr)>;

/// A network within the process.
#[derive(Clone, Debug, Default)]
struct Net {
    ports: Arc<Mutex<BTreeMap<SocketAddr, Calls>>>,
    /// Connections that were ever made.
    made: Arc<AtomicU64>,
    /// Where calls seem to come from, if from this host.
    host: Option<IpAddr>,
}

impl Net {
    fn host(&self) -> IpAddr {
        self.host.unwrap_or(Ipv4Addr::LOCALHOST.into())
    }
}

#[derive(Debug)]
struct Within(SocketAddr, tokio::sync::Mutex<mpsc::UnboundedReceiver<(Stream, SocketAddr)>>);

impl Network for Net {
    fn bind(&self, address: SocketAddr) -> Promise<'_, Box<dyn Listener>> {
        let mut ports = self.ports.lock().unwrap();
        let address = SocketAddr::new(address.ip(), 1000 + ports.len() as u16);
        let (calls, queue) = mpsc::unbounded_channel();
        ports.insert(address, calls);
        Box::pin(async move {
            Ok(Box::new(Within(address, tokio::sync::Mutex::new(queue))) as Box<dyn Listener>)
        })
    }

    fn connect<'a>(&'a self, address: &'a str) -> Promise<'a, (Stream, SocketAddr)> {
        Box::pin(async move {
            let to: SocketAddr = address.parse().map_err(io::Error::other)?;
            let (near, far) = tokio::io::duplex(1 << 16);
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            let port =
                self.ports.lock().unwrap().get(&to).cloned().ok_or(ErrorKind::ConnectionRefused)?;
            let from = SocketAddr::new(self.host(), number as u16);
            port.send((Box::new(far), from)).map_err(|_| ErrorKind::ConnectionRefused)?;
            Ok((Box::new(near) as Stream, to))
        })
    }

    fn route<'a>(&'a self, _: &'a str) -> Promise<'a, IpAddr> {
        Box::pin(async move { Ok(self.host()) })
    }
}

impl Listener for Within {
    fn accept(&self) -> Promise<'_, (Stream, SocketAddr)> {
        Box::pin(async move {
            self.1.lock().await.recv().await.ok_or_else(|| ErrorKind::NotConnected.into())
        })
    }

    fn address(&self) -> io::Result<SocketAddr> {
        Ok(self.0)
    }
}

/// Runs on this thread alone, on a clock that jumps, and listens to what is said.
fn hearing<F: Future>(work: impl FnOnce(Heard) -> F) -> F::Output {
    let heard = Heard::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    tracing::subscriber::with_default(heard.clone(), || runtime.block_on(work(heard)))
}

/// A hundred workers learn of each other at the same moment, and call each other: one connection
/// for every two of them, none of them twice, and nothing to complain of.
#[test]
fn workers_call_each_other_at_once() {
    const WORKERS: usize = 100;
    let (security, _) = secret();
    let net = Net::default();
    let network: Arc<dyn Network> = Arc::new(net.clone());
    let lines = hearing(|heard| async move {
        let address = (Ipv4Addr::LOCALHOST, 0).into();
        let listen = Listen {
            exchange: Exchange::Sharded,
            ..Listen::new(address, security.clone(), run(WORKERS))
        };
        let mut transport = TcpTransport::listen_over(Arc::clone(&network), listen).await.unwrap();
        let mut links = Vec::new();
        for worker in Worker::all(WORKERS) {
            let join = Join::new(transport.address().to_string(), security.clone());
            let join = Join { worker: Some(worker.0), ..join };
            links.push(TcpLink::join_over(Arc::clone(&network), join).await.unwrap().0);
        }
        transport.begin(codedgrad::ids::Step(0));
        // Longer than any call is put off, and than the pause before a second try.
        tokio::time::sleep(Duration::from_secs(4)).await;
        drop((transport, links));
        heard.lines()
    });
    assert_eq!(lines, Vec::<String>::new());
    assert_eq!(net.made.load(Ordering::Relaxed), (WORKERS + WORKERS * (WORKERS - 1) / 2) as u64);
}

/// A flood of refusals is a few lines and a number.
#[test]
fn refusals_are_summed_up() {
    let (security, _) = secret();
    let network: Arc<dyn Network> = Arc::new(Net::default());
    let lines = hearing(|heard| async move {
        let listen = Listen::new((Ipv4Addr::LOCALHOST, 0).into(), security, run(3));
        let transport = TcpTransport::listen_over(Arc::clone(&network), listen).await.unwrap();
        let (address, status) = (transport.address().to_string(), transport.status());
        for _ in 0..1000 {
            let (mut stream, _) = network.connect(&address).await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"GET / HTTP/1.1\r\n\r\n")
                .await
                .unwrap();
            let mut rest = Vec::new();
            let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await;
        }
        assert_eq!(status.lock().unwrap().refused, 1000, "each of them counts");
        tokio::time::sleep(Duration::from_secs(30)).await;
        heard.lines()
    });
    assert!(lines.len() <= 5, "{} lines", lines.len());
    assert!(
        lines[0].contains("127.0.0.1") && lines[0].contains("does not talk codedgrad"),
        "{lines:?}"
    );
    assert!(lines.last().unwrap().contains("997 more calls"), "{lines:?}");
}

/// Without keys no worker goes to another host; the error names that host, not this one.
#[test]
fn a_plain_call_to_another_host_names_that_host() {
    let (security, _) = secret();
    let network: Arc<dyn Network> =
        Arc::new(Net { host: Some(Ipv4Addr::new(192, 0, 2, 2).into()), ..Net::default() });
    let error = hearing(|_| async {
        let join = Join::new("10.255.255.1:7000".into(), security);
        TcpLink::join_over(network, join).await.map(drop).unwrap_err().to_string()
    });
    assert!(error.contains("10.255.255.1:7000 is not a loopback address"), "{error}");
    assert!(error.contains("need `Security::Tls`"), "{error}");
}
