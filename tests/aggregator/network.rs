//! A network within the process, on a clock that jumps: every byte takes its time, connections
//! break in all the ways they do, and everything is drawn from one seed.
//!
//! Connections behave as TCP's: what is sent during a partition arrives after it, in order; a
//! process that ends resets its connections. A lost host sends nothing.

use codedgrad::transport::tcp::security::Stream;
use codedgrad::transport::tcp::{Listener, Network, Promise};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until};
use xxhash_rust::xxh3::Xxh3;

/// Bytes that may be on their way.
const WINDOW: usize = 1 << 16;

/// Everything that happened, in one number; and the last things, in words.
#[derive(Default)]
pub(super) struct Journal {
    hash: Xxh3,
    pub(super) events: u64,
    last: VecDeque<String>,
}

impl Journal {
    fn note(&mut self, since: Duration, what: &str) {
        let line = format!("{:.3} {what}", since.as_secs_f64());
        self.hash.update(line.as_bytes());
        self.events += 1;
        self.last.push_back(line);
        if self.last.len() > 60 {
            self.last.pop_front();
        }
    }
}

/// What is between two hosts.
#[derive(Clone, Copy, Debug)]
struct Weather {
    /// Nothing gets through before.
    held_until: Instant,
    latency: Duration,
    bytes_per_second: f64,
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Way {
    /// When each piece arrives; an empty one is the end.
    pieces: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    last: Option<Instant>,
    ended: bool,
    /// Nothing gets through any more, and neither end knows.
    stuck: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

#[derive(Debug)]
struct Line {
    /// The processes at both ends.
    owners: [u64; 2],
    hosts: [IpAddr; 2],
    /// What each end sends.
    ways: [Way; 2],
    /// When each end learns that the other is gone.
    gone: [Option<Instant>; 2],
    open: [bool; 2],
}

#[derive(Debug)]
struct Port {
    owner: u64,
    calls: VecDeque<(End, SocketAddr)>,
    rings: Arc<Notify>,
}

struct World {
    random: ChaCha8Rng,
    begun: Instant,
    journal: Journal,
    ports: BTreeMap<SocketAddr, Port>,
    lines: BTreeMap<u64, Line>,
    weather: BTreeMap<(IpAddr, IpAddr), Weather>,
    dead: Vec<u64>,
    processes: u64,
    made: u64,
    next_port: u16,
}

impl World {
    fn weather(&mut self, a: IpAddr, b: IpAddr) -> &mut Weather {
        let (now, random) = (self.begun, &mut self.random);
        self.weather.entry((a.min(b), a.max(b))).or_insert_with(|| Weather {
            held_until: now,
            latency: Duration::from_micros(random.random_range(100..1500)),
            bytes_per_second: 1e9,
        })
    }

    /// When something that is sent now arrives.
    fn arrival(&mut self, a: IpAddr, b: IpAddr, bytes: usize) -> Instant {
        let jitter = self.random.random_range(1.0..2.0);
        let Weather { held_until, latency, bytes_per_second } = *self.weather(a, b);
        Instant::now().max(held_until)
            + latency.mul_f64(jitter)
            + Duration::from_secs_f64(bytes as f64 / bytes_per_second)
    }

    fn port(&mut self) -> u16 {
        self.next_port = self.next_port.checked_add(1).unwrap_or(1024);
        self.next_port
    }

    fn is_dead(&self, process: u64) -> bool {
        self.dead.binary_search(&process).is_ok()
    }

    fn put(&mut self, line: u64, side: usize, piece: Vec<u8>) {
        let Some(hosts) = self.lines.get(&line).map(|line| line.hosts) else { return };
        let arrival = self.arrival(hosts[0], hosts[1], piece.len());
        let Some(way) = self.lines.get_mut(&line).map(|line| &mut line.ways[side]) else { return };
        let arrival = way.last.map_or(arrival, |last| last.max(arrival));
        way.last = Some(arrival);
        way.bytes += piece.len();
        way.ended |= piece.is_empty();
        way.pieces.push_back((arrival, piece));
        way.reader.take().into_iter().for_each(Waker::wake);
    }

    /// Connections between two hosts.
    fn between(&self, a: u8, b: u8) -> Vec<u64> {
        let hosts = [host_of(a), host_of(b)];
        let between = |line: &Line| line.hosts == hosts || line.hosts == [hosts[1], hosts[0]];
        self.lines.iter().filter(|(_, line)| between(line)).map(|(number, _)| *number).collect()
    }

    /// One end of a connection is gone; the other hears of it, unless nothing gets through.
    fn leave(&mut self, line: u64, side: usize, loud: bool) {
        let Some(hosts) = self.lines.get(&line).map(|line| line.hosts) else { return };
        let arrival = self.arrival(hosts[0], hosts[1], 0);
        let Some(line) = self.lines.get_mut(&line) else { return };
        line.ways[1 - side].stuck |= !loud;
        line.ways[side].stuck |= !loud;
        if loud && !line.ways[side].stuck {
            line.gone[1 - side] = line.gone[1 - side].or(Some(arrival));
        }
        for way in &mut line.ways {
            way.reader.take().into_iter().chain(way.writer.take()).for_each(Waker::wake);
        }
    }
}

/// All hosts and what is between them.
#[derive(Clone)]
pub(super) struct Net(Arc<Mutex<World>>);

impl Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Net")
    }
}

impl Net {
    pub(super) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(World {
            random: ChaCha8Rng::seed_from_u64(seed),
            begun: Instant::now(),
            journal: Journal::default(),
            ports: BTreeMap::new(),
            lines: BTreeMap::new(),
            weather: BTreeMap::new(),
            dead: Vec::new(),
            processes: 0,
            made: 0,
            next_port: 1024,
        })))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    /// A process on a host of its own number.
    pub(super) fn process(&self, host: u8) -> Arc<Process> {
        let mut world = self.world();
        world.processes += 1;
        Arc::new(Process { net: self.clone(), host: host_of(host), number: world.processes })
    }

    pub(super) fn note(&self, what: &str) {
        let mut world = self.world();
        let since = world.begun.elapsed();
        world.journal.note(since, what);
    }

    /// A number for all that happened, and how much that was.
    pub(super) fn digest(&self) -> (u64, u64) {
        let world = self.world();
        (world.journal.hash.digest(), world.journal.events)
    }

    pub(super) fn last_words(&self) -> String {
        Vec::from(self.world().journal.last.clone()).join("\n")
    }

    /// Connections that are not closed at both ends.
    pub(super) fn open(&self) -> usize {
        self.world().lines.len()
    }

    /// Connections that were ever made.
    pub(super) fn made(&self) -> u64 {
        self.world().made
    }

    /// Nothing gets through between two hosts for a while.
    pub(super) fn part(&self, a: u8, b: u8, time: Duration) {
        self.world().weather(host_of(a), host_of(b)).held_until = Instant::now() + time;
    }

    /// What goes between two hosts takes longer, from now on.
    pub(super) fn slow(&self, a: u8, b: u8, latency: Duration, bytes_per_second: f64) {
        let mut world = self.world();
        let weather = world.weather(host_of(a), host_of(b));
        (weather.latency, weather.bytes_per_second) = (latency, bytes_per_second);
    }

    /// Cuts all connections between two hosts; `loud` if both ends are told.
    pub(super) fn cut(&self, a: u8, b: u8, loud: bool) {
        let mut world = self.world();
        for line in world.between(a, b) {
            world.leave(line, 0, loud);
            world.leave(line, 1, loud);
        }
    }

    /// Cuts all connections between two hosts: what is on its way is lost, and both ends are told.
    pub(super) fn cut_short(&self, a: u8, b: u8) {
        let mut world = self.world();
        for line in world.between(a, b) {
            for way in world.lines.get_mut(&line).into_iter().flat_map(|line| &mut line.ways) {
                way.pieces.retain(|(_, piece)| piece.is_empty());
                way.bytes = 0;
            }
            world.leave(line, 0, true);
            world.leave(line, 1, true);
        }
    }
}

fn host_of(host: u8) -> IpAddr {
    Ipv4Addr::new(127, 1, 0, host).into()
}

/// The network as one process sees it.
#[derive(Debug)]
pub(super) struct Process {
    net: Net,
    host: IpAddr,
    number: u64,
}

impl Process {
    /// A number of it that is as long as any other's: how many bytes it says decides when they
    /// arrive.
    pub(super) fn number(&self) -> u64 {
        (1 << 63) + self.number
    }

    /// It ends: its connections are reset if `loud`, and otherwise never heard of again.
    pub(super) fn kill(&self, loud: bool) {
        let mut world = self.net.world();
        if world.is_dead(self.number) {
            return;
        }
        world.dead.push(self.number);
        world.dead.sort_unstable();
        let ends = |(number, line): (&u64, &Line)| {
            (0..2)
                .filter(|side| line.owners[*side] == self.number)
                .map(|side| (*number, side))
                .collect()
        };
        let ends: Vec<Vec<(u64, usize)>> = world.lines.iter().map(ends).collect();
        for (line, side) in ends.into_iter().flatten() {
            world.leave(line, side, loud);
        }
        let ports = std::mem::take(&mut world.ports);
        let (mine, others): (BTreeMap<_, _>, _) =
            ports.into_iter().partition(|(_, port)| port.owner == self.number);
        world.ports = others;
        drop(world);
        mine.values().for_each(|port| port.rings.notify_waiters());
    }

    fn check(&self) -> io::Result<()> {
        if self.net.world().is_dead(self.number) {
            Err(ErrorKind::NetworkDown.into())
        } else {
            Ok(())
        }
    }

    async fn call(&self, to: SocketAddr) -> io::Result<(End, SocketAddr)> {
        self.check()?;
        let there = self.net.world().arrival(self.host, to.ip(), 60);
        sleep_until(there).await;
        self.check()?;
        let made = {
            let mut world = self.net.world();
            let back = world.arrival(self.host, to.ip(), 60);
            let (number, port) = (world.made, world.port());
            let owner = world.ports.get(&to).map(|port| port.owner);
            if let Some(owner) = owner {
                world.made += 1;
                let line = Line {
                    owners: [self.number, owner],
                    hosts: [self.host, to.ip()],
                    ways: Default::default(),
                    gone: [None; 2],
                    open: [true; 2],
                };
                world.lines.insert(number, line);
                let end = |side| End {
                    net: self.net.clone(),
                    line: number,
                    side,
                    timer: Box::pin(sleep(Duration::ZERO)),
                };
                let (near, far) = (end(0), end(1));
                if let Some(called) = world.ports.get_mut(&to) {
                    called.calls.push_back((far, SocketAddr::new(self.host, port)));
                    called.rings.notify_one();
                }
                Ok((near, back))
            } else {
                Err(back)
            }
        };
        match made {
            Ok((near, back)) => {
                sleep_until(back).await;
                Ok((near, to))
            }
            Err(back) => {
                sleep_until(back).await;
                Err(ErrorKind::ConnectionRefused.into())
            }
        }
    }
}

impl Network for Process {
    fn bind(&self, address: SocketAddr) -> Promise<'_, Box<dyn Listener>> {
        Box::pin(async move {
            self.check()?;
            let mut world = self.net.world();
            let mut address = SocketAddr::new(self.host, address.port());
            while address.port() == 0 || world.ports.contains_key(&address) {
                address.set_port(world.port());
            }
            let rings = Arc::new(Notify::new());
            world.ports.insert(
                address,
                Port { owner: self.number, calls: VecDeque::new(), rings: Arc::clone(&rings) },
            );
            Ok(Box::new(Door { net: self.net.clone(), address, rings }) as Box<dyn Listener>)
        })
    }

    fn connect<'a>(&'a self, address: &'a str) -> Promise<'a, (Stream, SocketAddr)> {
        Box::pin(async move {
            let to = address.parse().map_err(io::Error::other)?;
            let (end, to) = self.call(to).await?;
            Ok((Box::new(end) as Stream, to))
        })
    }

    fn route<'a>(&'a self, _: &'a str) -> Promise<'a, IpAddr> {
        Box::pin(async move { Ok(self.host) })
    }
}

#[derive(Debug)]
struct Door {
    net: Net,
    address: SocketAddr,
    rings: Arc<Notify>,
}

impl Listener for Door {
    fn accept(&self) -> Promise<'_, (Stream, SocketAddr)> {
        Box::pin(async move {
            loop {
                let woken = self.rings.notified();
                {
                    let mut world = self.net.world();
                    let port = world.ports.get_mut(&self.address).ok_or(ErrorKind::NetworkDown)?;
                    if let Some((end, from)) = port.calls.pop_front() {
                        return Ok((Box::new(end) as Stream, from));
                    }
                }
                woken.await;
            }
        })
    }

    fn address(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Calls that no process takes are dropped outside of the lock.
        let port = self.net.world().ports.remove(&self.address);
        drop(port);
    }
}

/// One end of a connection.
#[derive(Debug)]
struct End {
    net: Net,
    line: u64,
    side: usize,
    timer: Pin<Box<Sleep>>,
}

impl End {
    /// The connection, unless this process has ended.
    fn line<'a>(&self, world: &'a mut World) -> io::Result<&'a mut Line> {
        let dead =
            world.lines.get(&self.line).is_none_or(|line| world.is_dead(line.owners[self.side]));
        if dead {
            return Err(ErrorKind::NetworkDown.into());
        }
        world.lines.get_mut(&self.line).ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for End {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let net = this.net.clone();
        let mut world = net.world();
        let side = this.side;
        let line = match this.line(&mut world) {
            Ok(line) => line,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let gone = line.gone[side];
        let way = &mut line.ways[1 - side];
        way.reader = Some(context.waker().clone());
        if way.stuck {
            return Poll::Pending;
        }
        let (now, first) = (Instant::now(), way.pieces.front().map(|piece| piece.0));
        let gone = gone.filter(|_| !way.ended);
        if gone.is_some_and(|at| at <= now) {
            return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
        }
        match way.pieces.front_mut().filter(|piece| piece.0 <= now) {
            Some((_, piece)) => {
                let count = piece.len().min(into.remaining());
                into.put_slice(&piece[..count]);
                if count == piece.len() && count > 0 {
                    way.pieces.pop_front();
                } else {
                    piece.drain(..count);
                }
                way.bytes -= count;
                way.writer.take().into_iter().for_each(Waker::wake);
                Poll::Ready(Ok(()))
            }
            None => {
                drop(world);
                if let Some(next) = first.into_iter().chain(gone).min() {
                    this.timer.as_mut().reset(next);
                    if this.timer.as_mut().poll(context).is_ready() {
                        context.waker().wake_by_ref();
                    }
                }
                Poll::Pending
            }
        }
    }
}

impl AsyncWrite for End {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut world = this.net.world();
        let line = match this.line(&mut world) {
            Ok(line) => line,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let gone = line.gone[this.side].is_some_and(|at| at <= Instant::now());
        let way = &mut line.ways[this.side];
        let count = from.len().min(WINDOW - way.bytes);
        if way.ended || gone && !way.stuck {
            return Poll::Ready(Err(ErrorKind::BrokenPipe.into()));
        }
        if count == 0 {
            way.writer = Some(context.waker().clone());
            return Poll::Pending;
        }
        world.put(this.line, this.side, from[..count].to_vec());
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut world = self.net.world();
        if self.line(&mut world).is_ok_and(|line| !line.ways[self.side].ended) {
            world.put(self.line, self.side, Vec::new());
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let mut world = self.net.world();
        let (number, side) = (self.line, self.side);
        let Some(line) = world.lines.get_mut(&number) else { return };
        line.open[side] = false;
        if line.open == [false; 2] {
            world.lines.remove(&number);
            return;
        }
        let owner = line.owners[side];
        if world.is_dead(owner) {
            return;
        }
        // What was sent before arrives before.
        let Some(line) = world.lines.get(&number) else { return };
        if !line.ways[side].ended {
            world.put(number, side, Vec::new());
        }
        if let Some(line) = world.lines.get_mut(&number) {
            let last = line.ways[side].last.map(|last| last + Duration::from_millis(1));
            line.gone[1 - side] = line.gone[1 - side].or(last);
        }
    }
}
