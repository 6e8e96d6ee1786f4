//! One connection between two nodes: a task that writes frames, control first, and one that reads them.

use super::block::{Block, Blocks, Body};
use super::security::Stream;
use crate::transport::wire::{self, CONTROL_BYTES_MAX, Format, HEADER_BYTES, Header, Kind, WireError};
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{mpsc, watch};
use xxhash_rust::xxh3::xxh3_64;

/// Control frames that may wait for a peer that does not read.
const CONTROL_WAITING_MAX: usize = 1 << 16;

/// How long a frame may take when nobody needs the connection any more.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Why a connection ended.
#[derive(Debug, Error)]
pub(super) enum PipeError {
    #[error("the connection was closed")]
    Closed,
    #[error("the connection broke: {0}")]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("{0}")]
    Protocol(String),
}

/// A frame on its way out.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) header: Header,
    pub(super) body: Body,
}

impl Frame {
    pub(super) fn control(message: &impl serde::Serialize) -> Self {
        let body = wire::encode(message);
        Self { header: Header::control(body.len()), body: Body::Control(body) }
    }
}

/// What came in.
#[derive(Debug)]
pub(super) enum Incoming {
    Control(Vec<u8>),
    Chunk(Header, Block),
    /// Nothing more will come, and why.
    Ended(String),
}

/// What every frame of a node has in common, and what it has sent and received.
#[derive(Clone, Debug)]
pub(super) struct Stamp {
    pub(super) run: u64,
    pub(super) epoch: u32,
    pub(super) worker: u32,
    pub(super) layout: u64,
    pub(super) format: Format,
}

/// Bytes that went through the connections of a node.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
}

/// The sending end of a connection. Dropping it closes the connection.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    control: UnboundedSender<Frame>,
    data: UnboundedSender<Frame>,
    control_waiting: Arc<AtomicUsize>,
    data_waiting: Arc<AtomicUsize>,
    close: Arc<watch::Sender<bool>>,
}

/// The other end of a [`Pipe`], before it has a stream.
pub(super) struct Queues {
    control: UnboundedReceiver<Frame>,
    data: UnboundedReceiver<Frame>,
    control_waiting: Arc<AtomicUsize>,
    data_waiting: Arc<AtomicUsize>,
    closed: watch::Receiver<bool>,
}

/// What the tasks of a connection share with their node.
#[derive(Clone, Debug)]
pub(super) struct Shop {
    pub(super) stamp: Stamp,
    pub(super) blocks: Blocks,
    pub(super) traffic: Arc<Traffic>,
}

impl Pipe {
    pub(super) fn new() -> (Self, Queues) {
        let (control, control_out) = unbounded_channel();
        let (data, data_out) = unbounded_channel();
        let (close, closed) = watch::channel(false);
        let (control_waiting, data_waiting) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let queues = Queues {
            control: control_out,
            data: data_out,
            control_waiting: Arc::clone(&control_waiting),
            data_waiting: Arc::clone(&data_waiting),
            closed,
        };
        (Self { control, data, control_waiting, data_waiting, close: Arc::new(close) }, queues)
    }

    pub(super) fn tell(&self, message: &impl serde::Serialize) {
        self.tell_frame(Frame::control(message));
    }

    /// Sends a control frame, which is the same for many.
    pub(super) fn tell_frame(&self, frame: Frame) {
        if self.control_waiting.fetch_add(1, Relaxed) > CONTROL_WAITING_MAX {
            return self.close();
        }
        let _ = self.control.send(frame);
    }

    /// Sends a chunk unless so many bytes already wait; false if it was dropped.
    pub(super) fn send(&self, frame: Frame, waiting_max: usize) -> bool {
        let bytes = frame.header.length as usize;
        if self.data_waiting.load(Relaxed) + bytes > waiting_max {
            return false;
        }
        self.data_waiting.fetch_add(bytes, Relaxed);
        self.data.send(frame).is_ok()
    }

    /// Ends the connection without sending what waits.
    pub(super) fn close(&self) {
        self.close.send_replace(true);
    }
}

/// Writes frames until the queues or the connection are closed.
async fn write(stream: &mut WriteHalf<Stream>, queues: &mut Queues, shop: &Shop) -> Result<(), PipeError> {
    let mut closed = queues.closed.clone();
    loop {
        // Both queues end together, when their pipe is dropped.
        let frame = tokio::select! {
            biased;
            () = is_closed(&mut closed) => return Err(PipeError::Closed),
            Some(frame) = queues.control.recv() => {
                queues.control_waiting.fetch_sub(1, Relaxed);
                frame
            }
            frame = queues.data.recv() => {
                let Some(frame) = frame else { break };
                queues.data_waiting.fetch_sub(frame.header.length as usize, Relaxed);
                frame
            }
        };
        tokio::select! {
            biased;
            () = is_closed(&mut closed) => return Err(PipeError::Closed),
            written = put(stream, frame, shop) => written?,
        }
    }
    while let Ok(frame) = queues.control.try_recv() {
        put(stream, frame, shop).await?;
    }
    stream.shutdown().await?;
    Ok(())
}

/// Comes back when the connection is to be given up. Where nobody can ask for that any more, each frame that still waits
/// has some time to get through.
async fn is_closed(closed: &mut watch::Receiver<bool>) {
    if closed.wait_for(|closed| *closed).await.is_err() {
        tokio::time::sleep(LAST_WORDS).await;
    }
}

async fn put(stream: &mut WriteHalf<Stream>, frame: Frame, shop: &Shop) -> Result<(), PipeError> {
    let Stamp { run, epoch, worker, layout, format } = shop.stamp;
    let mut header = Header { run, epoch, worker, layout, ..frame.header };
    let narrow = match (&frame.body, frame.body.floats()) {
        (_, Some(floats)) if format == Format::Bf16 && header.kind != Kind::State => {
            let mut block = shop.blocks.take(floats.len(), format);
            block.fill(floats);
            Some(Body::Block(Arc::new(block)))
        }
        _ => None,
    };
    let body = narrow.as_ref().unwrap_or(&frame.body);
    let bytes = match body {
        Body::Control(bytes) => bytes,
        Body::Block(block) => block.bytes(),
        Body::Slice(..) | Body::Part(..) => bytemuck::cast_slice(body.floats().unwrap_or_default()),
    };
    header.length = bytes.len() as u32;
    header.format = if let Body::Block(block) = body { block.format } else { Format::F32 };
    // Terms are summed at once and the sum has a digest; all that is kept by several must be the same.
    if matches!(header.kind, Kind::Sum | Kind::State | Kind::Result) && header.digest == 0 {
        header.digest = xxh3_64(bytes);
    }
    let head = header.encode();
    let mut rest = [IoSlice::new(&head), IoSlice::new(bytes)];
    let mut rest = &mut rest[..];
    while !rest.is_empty() {
        match stream.write_vectored(rest).await? {
            0 => return Err(std::io::Error::from(std::io::ErrorKind::WriteZero).into()),
            written => IoSlice::advance_slices(&mut rest, written),
        }
    }
    stream.flush().await?;
    shop.traffic.sent.fetch_add((HEADER_BYTES + bytes.len()) as u64, Relaxed);
    for body in [Some(frame.body), narrow].into_iter().flatten() {
        if let Body::Block(block) = body {
            shop.blocks.give_shared(block);
        }
    }
    Ok(())
}

/// Reads the first control body of a connection, of at most so many bytes.
pub(super) async fn read_hello(stream: &mut Stream, most: usize) -> Result<Vec<u8>, PipeError> {
    let mut bytes = [0; HEADER_BYTES];
    stream.read_exact(&mut bytes).await?;
    let header = Header::decode(&bytes, most)?;
    if header.kind != Kind::Control {
        return Err(PipeError::Protocol("the first frame must be a control frame".into()));
    }
    let mut body = vec![0; header.length as usize];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

/// Writes one control frame to a connection that has no tasks yet.
pub(super) async fn write_first(stream: &mut Stream, message: &impl serde::Serialize) -> Result<(), PipeError> {
    let body = wire::encode(message);
    stream.write_all(&[&Header::control(body.len()).encode(), &body[..]].concat()).await?;
    stream.flush().await?;
    Ok(())
}

/// Carries frames both ways until the connection ends, and says so.
pub(super) async fn run<N: Clone>(stream: Stream, mut queues: Queues, shop: Shop, name: N, events: mpsc::Sender<(N, Incoming)>) {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = BufReader::new(reader);
    let error = tokio::select! {
        biased;
        error = read(&mut reader, &name, &shop, &events) => error,
        written = write(&mut writer, &mut queues, &shop) => written.err().unwrap_or(PipeError::Closed),
    };
    let _ = events.send((name, Incoming::Ended(error.to_string()))).await;
}

async fn read<N: Clone>(
    stream: &mut BufReader<ReadHalf<Stream>>,
    name: &N,
    shop: &Shop,
    events: &mpsc::Sender<(N, Incoming)>,
) -> PipeError {
    loop {
        match next(stream, shop).await {
            Ok(incoming) => {
                if events.send((name.clone(), incoming)).await.is_err() {
                    return PipeError::Closed;
                }
            }
            Err(PipeError::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => return PipeError::Closed,
            Err(error) => return error,
        }
    }
}

async fn next(stream: &mut BufReader<ReadHalf<Stream>>, shop: &Shop) -> Result<Incoming, PipeError> {
    let mut bytes = [0; HEADER_BYTES];
    stream.read_exact(&mut bytes).await?;
    let header = Header::decode(&bytes, CONTROL_BYTES_MAX)?;
    shop.traffic.received.fetch_add((HEADER_BYTES + header.length as usize) as u64, Relaxed);
    if header.kind == Kind::Control {
        let mut body = vec![0; header.length as usize];
        stream.read_exact(&mut body).await?;
        return Ok(Incoming::Control(body));
    }
    if (header.run, header.layout) != (shop.stamp.run, shop.stamp.layout) {
        let (run, layout) = (shop.stamp.run, shop.stamp.layout);
        return Err(PipeError::Protocol(format!(
            "a chunk of run {:x}, layout {:x} came; this is run {run:x}, layout {layout:x}",
            header.run, header.layout
        )));
    }
    let mut block = shop.blocks.take(header.count(), header.format);
    stream.read_exact(block.bytes_mut()).await?;
    if header.digest != 0 {
        let expected = xxh3_64(block.bytes());
        if expected != header.digest {
            return Err(WireError::Digest { expected, found: header.digest }.into());
        }
    }
    Ok(Incoming::Chunk(header, block))
}
