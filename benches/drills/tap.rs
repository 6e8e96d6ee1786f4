//! A worker's network, in which a fault happens at a given phase of a given step.

use codedgrad::sums::{Header, Kind};
use codedgrad::transport::tcp::security::Stream;
use codedgrad::transport::tcp::{Listener, Network, Promise, Sockets};
use codedgrad::transport::wire::{CONTROL_BYTES_MAX, HEADER_BYTES};
use rustix::process::{Signal, getpid, kill_process};
use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter};
use std::future::Future;
use std::io::{self, ErrorKind};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Phase {
    BeforeCompute,
    InCompute,
    /// Half of its buckets are final, and it has told so.
    AnnouncedHalf,
    /// It is asked for a chunk, and has sent none.
    Asked,
    /// Half of the terms that it sums have come.
    HalfSummed,
    /// Its word that it is done has gone out, and nothing else.
    AfterDone,
    /// Half of what it sends of its vector has gone out.
    MidSend,
    /// Half of the sums that it hands out have gone, or half of the sum has come where it sums
    /// nothing.
    AllGather,
    /// It is told to apply the step, and does not hear of it.
    BeforeApply,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Fault {
    /// What is under way takes some time longer.
    Slow,
    /// `SIGSTOP`.
    Stopped,
    /// `kill -9`.
    Killed,
    /// `kill -9`, and another process takes its place.
    Back,
    /// The same, some time later.
    BackLate,
    /// The connection is cut.
    Cut,
    /// Nothing comes through any more, and neither end knows.
    HalfOpen,
    /// A few bytes at a time come through.
    Trickling,
}

pub(crate) const PHASES: [(Phase, &str); 9] = [
    (Phase::BeforeCompute, "before computing"),
    (Phase::InCompute, "computing"),
    (Phase::AnnouncedHalf, "announced half"),
    (Phase::Asked, "asked, not sent"),
    (Phase::HalfSummed, "owner with half summed"),
    (Phase::AfterDone, "after done"),
    (Phase::MidSend, "sending its vector"),
    (Phase::AllGather, "sending sums"),
    (Phase::BeforeApply, "committed, not applied"),
];

pub(crate) const FAULTS: [(Fault, &str); 8] = [
    (Fault::Slow, "slow, ten steps"),
    (Fault::Stopped, "stopped"),
    (Fault::Killed, "killed"),
    (Fault::Back, "killed, comes back"),
    (Fault::BackLate, "comes back late"),
    (Fault::Cut, "cut"),
    (Fault::HalfOpen, "half-open"),
    (Fault::Trickling, "trickling"),
];

/// What happens when.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Drill {
    pub(crate) fault: Fault,
    pub(crate) phase: Phase,
    pub(crate) step: u64,
    /// How long slow takes, and until who is late comes back.
    pub(crate) slow_seconds: f64,
    /// Bytes of vectors before it happens in the middle of them.
    pub(crate) sent: u64,
    pub(crate) gathered: u64,
    pub(crate) summed: u64,
    /// Whether this worker hands out sums.
    pub(crate) sums: bool,
}

/// What a worker prints when it happens.
pub(crate) const HAPPENED: &str = "it happened";

/// Bytes of a trickle, and the pause after them.
const DROP: usize = 1000;
const DRIP: Duration = Duration::from_millis(100);

struct Trouble {
    drill: Option<Drill>,
    /// Connections made.
    calls: u64,
    /// Bytes of vectors seen.
    seen: u64,
    /// The connection that is hit, and since when.
    hit: Option<(u64, Instant)>,
    happened: bool,
    wakers: BTreeMap<(u64, bool), Waker>,
}

impl Trouble {
    /// Whether bytes of a frame are those at which it happens.
    fn is_due(&mut self, out: bool, header: &Header, fresh: usize, body: Option<&[u8]>) -> bool {
        let Some(drill) = self.drill.filter(|_| !self.happened) else { return false };
        let told = |kind: &str| {
            body.and_then(|body| {
                serde_json::from_slice::<serde_json::Value>(body).ok()?.get(kind).cloned()
            })
        };
        let mut among = |kinds: &[Kind], enough: u64| {
            let counts = kinds.contains(&header.kind) && header.number == drill.step;
            self.seen += if counts { fresh as u64 } else { 0 };
            counts && self.seen >= enough
        };
        match drill.phase {
            Phase::AfterDone => {
                out && told("done").is_some_and(|done| done["task"]["job"] == drill.step)
            }
            Phase::MidSend => out && among(&[Kind::Term, Kind::Result], drill.sent),
            Phase::Asked => !out && told("ask").is_some_and(|ask| ask["step"] == drill.step),
            Phase::HalfSummed => !out && among(&[Kind::Term], drill.summed),
            Phase::AllGather => out == drill.sums && among(&[Kind::Sum], drill.gathered),
            Phase::BeforeApply => {
                !out && told("apply").is_some_and(|apply| apply["step"] == drill.step)
            }
            Phase::BeforeCompute | Phase::InCompute | Phase::AnnouncedHalf => false,
        }
    }

    /// It happens, on a connection if it is about one.
    fn happen(&mut self, connection: u64) {
        let Some(drill) = self.drill else { return };
        self.happened = true;
        println!("{HAPPENED}");
        match drill.fault {
            Fault::Stopped => strike(Signal::STOP),
            Fault::Killed | Fault::Back | Fault::BackLate => strike(Signal::KILL),
            Fault::Slow | Fault::Cut | Fault::HalfOpen | Fault::Trickling => {
                self.hit = Some((connection, Instant::now()));
            }
        }
        mem::take(&mut self.wakers).into_values().for_each(Waker::wake);
    }
}

fn strike(signal: Signal) {
    if let Err(error) = kill_process(getpid(), signal) {
        eprintln!("{error}");
    }
    // Until another thread has taken the signal, this one would go on.
    thread::sleep(Duration::from_secs(3600));
}

/// The network of a worker.
#[derive(Clone)]
pub(crate) struct Taps(Arc<Mutex<Trouble>>);

impl Debug for Taps {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Taps")
    }
}

impl Taps {
    pub(crate) fn new(drill: Option<Drill>) -> Self {
        Self(Arc::new(Mutex::new(Trouble {
            drill,
            calls: 0,
            seen: 0,
            hit: None,
            happened: false,
            wakers: BTreeMap::new(),
        })))
    }

    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The trainer comes to a phase. What befalls connections befalls the one to the coordinator,
    /// which is the first.
    pub(crate) async fn comes_to(&self, phase: Phase, step: u64) {
        let drill = self.trouble().drill.filter(|drill| (drill.phase, drill.step) == (phase, step));
        match drill {
            Some(Drill { fault: Fault::Slow, slow_seconds, .. })
                if !mem::replace(&mut self.trouble().happened, true) =>
            {
                println!("{HAPPENED}");
                sleep(Duration::from_secs_f64(slow_seconds)).await;
            }
            Some(_) if !self.trouble().happened => self.trouble().happen(0),
            _ => {}
        }
    }

    /// Wraps a connection; who calls sends 72 bytes before the first frame and gets 67.
    fn tap(&self, inner: Stream, calls: bool) -> Stream {
        let mut trouble = self.trouble();
        let number = trouble.calls;
        trouble.calls += 1;
        let frames = |skip| Frames { skip, ..Frames::default() };
        let frames = if calls { [frames(67), frames(72)] } else { [frames(72), frames(67)] };
        let timer = || Box::pin(sleep(Duration::ZERO));
        Box::new(Tap {
            inner: Some(inner),
            taps: self.clone(),
            number,
            frames,
            timers: [timer(), timer()],
            kept: Vec::new(),
        })
    }
}

impl Network for Taps {
    fn bind(&self, address: SocketAddr) -> Promise<'_, Box<dyn Listener>> {
        Box::pin(async move {
            Ok(Box::new(Door { inner: Sockets.bind(address).await?, taps: self.clone() })
                as Box<dyn Listener>)
        })
    }

    fn connect<'a>(&'a self, address: &'a str) -> Promise<'a, (Stream, SocketAddr)> {
        Box::pin(async move {
            let (stream, peer) = Sockets.connect(address).await?;
            Ok((self.tap(stream, true), peer))
        })
    }

    fn route<'a>(&'a self, address: &'a str) -> Promise<'a, IpAddr> {
        Sockets.route(address)
    }
}

#[derive(Debug)]
struct Door {
    inner: Box<dyn Listener>,
    taps: Taps,
}

impl Listener for Door {
    fn accept(&self) -> Promise<'_, (Stream, SocketAddr)> {
        Box::pin(async move {
            let (stream, from) = self.inner.accept().await?;
            Ok((self.taps.tap(stream, false), from))
        })
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.inner.address()
    }
}

/// Finds frames in what goes one way.
#[derive(Default)]
struct Frames {
    /// Bytes of the handshake that are still to come.
    skip: usize,
    head: Vec<u8>,
    header: Option<Header>,
    body: Vec<u8>,
    left: usize,
}

impl Frames {
    /// Goes through bytes; whether some of them are those that `is_due` looks for.
    fn find(
        &mut self,
        bytes: &[u8],
        mut is_due: impl FnMut(&Header, usize, Option<&[u8]>) -> bool,
    ) -> bool {
        let (mut rest, mut due) = (&bytes[self.skip.min(bytes.len())..], false);
        self.skip -= bytes.len() - rest.len();
        while !rest.is_empty() {
            let Some(header) = self.header else {
                let count = (HEADER_BYTES - self.head.len()).min(rest.len());
                self.head.extend_from_slice(&rest[..count]);
                rest = &rest[count..];
                if let Ok(head) = <&[u8; HEADER_BYTES]>::try_from(&self.head[..]) {
                    self.header = Header::decode(head, CONTROL_BYTES_MAX).ok();
                    self.left = self.header.map_or(0, |header| header.length as usize);
                    self.head.clear();
                }
                continue;
            };
            let count = self.left.min(rest.len());
            if header.kind == Kind::Control {
                self.body.extend_from_slice(&rest[..count]);
            }
            (rest, self.left) = (&rest[count..], self.left - count);
            due |= is_due(&header, count, (self.left == 0).then_some(&self.body[..]));
            if self.left == 0 {
                self.header = None;
                self.body.clear();
            }
        }
        due
    }
}

/// A connection with the fault in it.
struct Tap {
    inner: Option<Stream>,
    taps: Taps,
    number: u64,
    /// What is read, and what is written.
    frames: [Frames; 2],
    timers: [Pin<Box<Sleep>>; 2],
    /// What was read when it happened.
    kept: Vec<u8>,
}

impl Tap {
    fn fault(&self) -> Option<(Drill, Instant)> {
        let trouble = self.taps.trouble();
        trouble.hit.filter(|hit| hit.0 == self.number).and_then(|hit| Some((trouble.drill?, hit.1)))
    }

    /// How many bytes come through now.
    fn passes(&mut self, out: bool, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.taps.trouble().wakers.insert((self.number, out), context.waker().clone());
        let Some((drill, since)) = self.fault() else { return Poll::Ready(Ok(usize::MAX)) };
        let timer = &mut self.timers[usize::from(out)];
        match drill.fault {
            Fault::Cut => Poll::Ready(Err(ErrorKind::ConnectionReset.into())),
            Fault::HalfOpen => Poll::Pending,
            Fault::Trickling => {
                ready!(timer.as_mut().poll(context));
                timer.set(sleep(DRIP));
                Poll::Ready(Ok(DROP))
            }
            Fault::Slow => {
                let until = since + Duration::from_secs_f64(drill.slow_seconds);
                if Instant::now() >= until {
                    return Poll::Ready(Ok(usize::MAX));
                }
                timer.set(sleep_until(until));
                timer.as_mut().poll(context).map(|()| Ok(usize::MAX))
            }
            Fault::Stopped | Fault::Killed | Fault::Back | Fault::BackLate => {
                Poll::Ready(Ok(usize::MAX))
            }
        }
    }

    /// Looks at bytes that came through; whether it happens with them.
    fn look_at(&mut self, out: bool, bytes: &[u8]) -> bool {
        let taps = self.taps.clone();
        let mut trouble = taps.trouble();
        let due = self.frames[usize::from(out)]
            .find(bytes, |header, fresh, body| trouble.is_due(out, header, fresh, body));
        if due {
            trouble.happen(self.number);
        }
        due
    }
}

impl AsyncRead for Tap {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let most = ready!(this.passes(false, context))?.min(into.remaining());
        if !this.kept.is_empty() {
            let count = this.kept.len().min(most);
            into.put_slice(&this.kept[..count]);
            this.kept.drain(..count);
            return Poll::Ready(Ok(()));
        }
        let Some(inner) = &mut this.inner else { return Poll::Ready(Ok(())) };
        let mut part = ReadBuf::new(into.initialize_unfilled_to(most));
        ready!(Pin::new(inner).poll_read(context, &mut part))?;
        let bytes = part.filled().to_vec();
        if this.look_at(false, &bytes) {
            this.kept = bytes;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        into.advance(bytes.len());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tap {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let most = ready!(this.passes(true, context))?.min(bytes.len());
        let Some(inner) = &mut this.inner else { return Poll::Ready(Ok(0)) };
        let count = ready!(Pin::new(inner).poll_write(context, &bytes[..most]))?;
        this.look_at(true, &bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut()
            .inner
            .as_mut()
            .map_or(Poll::Ready(Ok(())), |inner| Pin::new(inner).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.fault().is_some_and(|(drill, _)| drill.fault == Fault::HalfOpen) {
            return Poll::Ready(Ok(()));
        }
        this.inner
            .as_mut()
            .map_or(Poll::Ready(Ok(())), |inner| Pin::new(inner).poll_shutdown(context))
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if self.fault().is_some_and(|(drill, _)| drill.fault == Fault::HalfOpen) {
            // Even its end goes unheard.
            mem::forget(self.inner.take());
        }
    }
}
