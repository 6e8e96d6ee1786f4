//! One connection between two nodes: a task that writes frames, control first, and one that reads
//! them.
//!
//! # How to drive it
//! [`Pipe::new`] gives both ends of the queue. The node keeps the [`Pipe`] and puts frames in, with
//! or without a stream behind it; [`Queues`] goes to the task that has the stream. What is read
//! comes to the node as [`PipeItem`], the last of which is `Ended` with the reason. Dropping the
//! [`Pipe`] closes the connection after what waits is written.

use super::security::Stream;
use crate::passes::{self, PassPlace};
use crate::run::NumberFormat;
use crate::sums::exchange::{Block, Blocks, Body, Frame, ReassemblyBuffers, WriteSlot, is_finite};
use crate::sums::{Header, Kind, lock};
use crate::transport::wire::{self, CONTROL_BYTES_MAX, HEADER_BYTES, WireError};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader, ReadBuf, ReadHalf, WriteHalf};
use tokio::sync::{Notify, mpsc};
use xxhash_rust::xxh3::xxh3_64;

/// Control frames that may wait for a peer that does not read.
const CONTROL_WAITING_MAX: usize = 1 << 16;

/// How long what is written at once may take when the node needs the connection no more.
const LAST_WORDS: Duration = Duration::from_secs(10);
/// How long what the other end said before the connection broke may take to be read.
const UNREAD: Duration = Duration::from_secs(1);

/// Frames that wait are written together up to so many bytes, and so many of them.
const TOGETHER_BYTES: usize = 64 << 10;
const TOGETHER_FRAMES: usize = 64;

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

/// What came in.
#[derive(Debug)]
pub(super) enum PipeItem {
    /// A message, unless it was damaged on its way.
    Control(Result<Vec<u8>, String>),
    Chunk(Header, Block),
    /// A chunk of a sum that was read into its place.
    Placed(Header, WriteSlot),
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
    pub(super) format: NumberFormat,
}

/// Bytes that went through the connections of a node.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
}

/// What waits to be written to a connection.
#[derive(Debug, Default)]
struct PendingFrames {
    control: VecDeque<Frame>,
    data: VecDeque<Frame>,
    data_bytes: usize,
    end: End,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum End {
    #[default]
    Open,
    /// What waits is still to be written.
    Dropped,
    /// The connection is given up.
    Closed,
}

#[derive(Debug, Default)]
struct Lane {
    waiting: Mutex<PendingFrames>,
    more: Notify,
    ended: Notify,
}

impl Lane {
    fn end(&self, waiting: &mut PendingFrames, end: End) {
        waiting.end = end;
        self.more.notify_one();
        self.ended.notify_one();
    }
}

/// The sending end of a connection. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Pipe(Arc<Lane>);

/// The other end of a [`Pipe`], before it has a stream.
#[derive(Debug)]
pub(super) struct Queues(Arc<Lane>);

/// What the tasks of a connection share with their node.
#[derive(Clone, Debug)]
pub(super) struct ConnectionContext {
    pub(super) stamp: Stamp,
    pub(super) blocks: Blocks,
    pub(super) buffers: ReassemblyBuffers,
    pub(super) traffic: Arc<Traffic>,
}

impl Frame {
    /// A frame that says something.
    pub(super) fn control(message: &impl serde::Serialize) -> Self {
        let body = wire::encode(message);
        Self { header: header_of(&body), body: Body::Control(body.into()) }
    }
}

/// The header of a control frame with this body: a damaged digit would be another number, and no
/// JSON would tell.
fn header_of(body: &[u8]) -> Header {
    Header { digest: xxh3_64(body), ..Header::control(body.len()) }
}

impl Pipe {
    pub(super) fn new() -> (Self, Queues) {
        let lane = Arc::new(Lane::default());
        (Self(Arc::clone(&lane)), Queues(lane))
    }

    pub(super) fn tell(&self, message: &impl serde::Serialize) {
        self.tell_frame(Frame::control(message));
    }

    /// Sends a control frame, which is the same for many.
    pub(super) fn tell_frame(&self, frame: Frame) {
        let mut waiting = lock(&self.0.waiting);
        if waiting.end != End::Open {
            return;
        }
        // A peer that reads nothing is lost in the end; until it is, memory must not fill up for
        // it.
        if waiting.control.len() > CONTROL_WAITING_MAX {
            return self.0.end(&mut waiting, End::Closed);
        }
        waiting.control.push_back(frame);
        self.0.more.notify_one();
    }

    /// Sends a chunk unless so many bytes already wait; false if it was dropped.
    pub(super) fn send(&self, frame: Frame, waiting_max: usize) -> bool {
        let mut waiting = lock(&self.0.waiting);
        // Only data is bounded by bytes: control frames are short, and none of them may be lost.
        let bytes = waiting.data_bytes + frame.header.length as usize;
        if waiting.end != End::Open || bytes > waiting_max {
            return false;
        }
        waiting.data_bytes = bytes;
        waiting.data.push_back(frame);
        self.0.more.notify_one();
        true
    }

    /// Ends the connection without sending what waits.
    pub(super) fn close(&self) {
        self.0.end(&mut lock(&self.0.waiting), End::Closed);
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut waiting = lock(&self.0.waiting);
        if waiting.end == End::Open {
            self.0.end(&mut waiting, End::Dropped);
        }
    }
}

impl Queues {
    /// Waits for frames and takes as many as are written together, control first; none when the
    /// pipe was dropped.
    async fn next(&self, frames: &mut Vec<Frame>) -> Result<(), PipeError> {
        loop {
            {
                let waiting = &mut *lock(&self.0.waiting);
                if waiting.end == End::Closed {
                    return Err(PipeError::Closed);
                }
                let mut bytes = 0;
                while bytes < TOGETHER_BYTES
                    && frames.len() < TOGETHER_FRAMES
                    // Control overtakes data: what ends or asks for something must not wait behind
                    // megabytes.
                    && let Some(frame) = waiting.control.pop_front().or_else(|| {
                        let chunk = waiting.data.pop_front()?;
                        waiting.data_bytes -= chunk.header.length as usize;
                        Some(chunk)
                    })
                {
                    bytes += frame.header.length as usize;
                    frames.push(frame);
                }
                if !frames.is_empty() || waiting.end == End::Dropped {
                    return Ok(());
                }
            }
            self.0.more.notified().await;
        }
    }

    /// Comes back when the connection is to be given up, at once or when what waits is written.
    async fn ended(&self) -> End {
        loop {
            let end = lock(&self.0.waiting).end;
            if end != End::Open {
                return end;
            }
            self.0.ended.notified().await;
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        *lock(&self.0.waiting) = PendingFrames { end: End::Closed, ..PendingFrames::default() };
    }
}

/// Writes frames until the queues or the connection are closed.
async fn write(
    stream: &mut WriteHalf<Stream>,
    queues: &Queues,
    context: &ConnectionContext,
) -> Result<(), PipeError> {
    let mut frames = Vec::new();
    loop {
        queues.next(&mut frames).await?;
        if frames.is_empty() {
            break;
        }
        // The write goes on where it was when the queue is only dropped: a frame that is cut in the
        // middle would be an error at the other end, and not an end.
        let mut writing = pin!(put(stream, frames.drain(..), context));
        tokio::select! {
            biased;
            written = &mut writing => written?,
            end = queues.ended() => match end {
                End::Closed => return Err(PipeError::Closed),
                _ => tokio::time::timeout(LAST_WORDS, writing).await.map_err(|_| PipeError::Closed)??,
            },
        }
    }
    stream.shutdown().await?;
    Ok(())
}

/// A frame as it goes out: header and body.
fn dressed(frame: Frame, context: &ConnectionContext) -> ([u8; HEADER_BYTES], Body) {
    let Stamp { run, epoch, worker, layout, format } = context.stamp;
    // Frames are made without knowing the connection; what all of them have in common is put in
    // here, once.
    let mut header = Header { run, epoch, worker, layout, ..frame.header };
    let mut body = frame.body;
    if format == NumberFormat::Bf16
        && header.kind != Kind::State
        && let Some(floats) = body.floats()
    {
        // Rounded at the last moment, into memory that is used again: a copy in bf16 is half as
        // long.
        let mut block = context.blocks.take(floats.len(), format);
        block.fill(floats);
        body = Body::Block(Arc::new(block));
    }
    let bytes = body.bytes();
    header.length = bytes.len() as u32;
    header.format = if let Body::Block(block) = &body { block.format } else { NumberFormat::F32 };
    // Terms are summed at once and the sum has a digest; all that is kept by several must be the
    // same.
    if matches!(header.kind, Kind::Sum | Kind::State | Kind::Result) && header.digest == 0 {
        pass(PassPlace::Digest, &header);
        header.digest = xxh3_64(bytes);
    }
    pass(PassPlace::FrameOut, &header);
    (header.encode(), body)
}

/// Counts a pass over the body of a frame, if that is of a gradient.
fn pass(place: PassPlace, header: &Header) {
    if matches!(header.kind, Kind::Term | Kind::Sum | Kind::Result) {
        passes::count(place, header.length as usize);
    }
}

async fn put(
    stream: &mut WriteHalf<Stream>,
    frames: impl Iterator<Item = Frame>,
    context: &ConnectionContext,
) -> Result<(), PipeError> {
    let dressed: Vec<_> = frames
        .inspect(
            |Frame { header, body }| tracing::trace!(?header.kind, header.number, ?body, "out"),
        )
        .map(|frame| dressed(frame, context))
        .collect();
    // Header and body are not copied together: a body may be a part of a gradient, as it lies.
    let mut rest: Vec<IoSlice<'_>> = dressed
        .iter()
        .flat_map(|(head, body)| [IoSlice::new(head), IoSlice::new(body.bytes())])
        .collect();
    let sent: usize = rest.iter().map(|slice| slice.len()).sum();
    let mut rest = &mut rest[..];
    while !rest.is_empty() {
        match stream.write_vectored(rest).await? {
            0 => return Err(std::io::Error::from(std::io::ErrorKind::WriteZero).into()),
            written => IoSlice::advance_slices(&mut rest, written),
        }
    }
    stream.flush().await?;
    context.traffic.sent.fetch_add(sent as u64, Relaxed);
    for (_, body) in dressed {
        if let Body::Block(block) = body {
            context.blocks.give_shared(block);
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
    check(&header, &body)?;
    Ok(body)
}

/// Writes one control frame to a connection that has no tasks yet.
pub(super) async fn write_first(
    stream: &mut Stream,
    message: &impl serde::Serialize,
) -> Result<(), PipeError> {
    let body = wire::encode(message);
    stream.write_all(&[&header_of(&body).encode(), &body[..]].concat()).await?;
    stream.flush().await?;
    Ok(())
}

/// Hangs up on a caller that says something else than this program understands, once it can have
/// heard why.
pub(super) async fn refuse(stream: &mut Stream, answer: &impl serde::Serialize) {
    let last_words = async {
        write_first(stream, answer).await?;
        stream.shutdown().await?;
        // Closed before all is read, a connection is reset, and the answer may never be read.
        tokio::io::copy(stream, &mut tokio::io::sink()).await?;
        Ok::<(), PipeError>(())
    };
    let _ = tokio::time::timeout(UNREAD, last_words).await;
}

/// Carries frames both ways until the connection ends, and says so.
pub(super) async fn run<N: Clone>(
    stream: Stream,
    queues: Queues,
    context: ConnectionContext,
    name: N,
    events: mpsc::Sender<(N, PipeItem)>,
) {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = BufReader::new(reader);
    let ended = {
        let mut reading = pin!(read(&mut reader, &name, &context, &events));
        tokio::select! {
            biased;
            // Reading is looked at first: what came before the end is worth more than what was to
            // go.
            error = &mut reading => Err(error),
            written = write(&mut writer, &queues, &context) => {
                // An end that closed may have said why, and that lies here unread.
                if matches!(written, Err(PipeError::Io(_))) {
                    let _ = tokio::time::timeout(UNREAD, reading).await;
                }
                written
            }
        }
    };
    if ended.is_ok() {
        // Closed before all is read, a connection is reset, and the other end may never read the
        // last of what was written: why it ends.
        let mut nowhere = tokio::io::sink();
        let rest = tokio::io::copy(&mut reader, &mut nowhere);
        let _ = tokio::time::timeout(UNREAD, rest).await;
    }
    let error = ended.err().unwrap_or(PipeError::Closed);
    let _ = events.send((name, PipeItem::Ended(error.to_string()))).await;
}

async fn read<N: Clone>(
    stream: &mut BufReader<ReadHalf<Stream>>,
    name: &N,
    context: &ConnectionContext,
    events: &mpsc::Sender<(N, PipeItem)>,
) -> PipeError {
    loop {
        match next(stream, context).await {
            Ok(incoming) => {
                if events.send((name.clone(), incoming)).await.is_err() {
                    return PipeError::Closed;
                }
            }
            Err(PipeError::Io(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                return PipeError::Closed;
            }
            Err(error) => return error,
        }
    }
}

async fn next(
    stream: &mut BufReader<ReadHalf<Stream>>,
    context: &ConnectionContext,
) -> Result<PipeItem, PipeError> {
    loop {
        let mut bytes = [0; HEADER_BYTES];
        stream.read_exact(&mut bytes).await?;
        // Its lengths are checked there, before any memory is taken for what follows.
        let header = Header::decode(&bytes, CONTROL_BYTES_MAX)?;
        context.traffic.received.fetch_add((HEADER_BYTES + header.length as usize) as u64, Relaxed);
        if header.kind == Kind::Control {
            let mut body = vec![0; header.length as usize];
            stream.read_exact(&mut body).await?;
            tracing::trace!(message = %String::from_utf8_lossy(&body), "in");
            let checked = check(&header, &body).map_err(|error| error.to_string());
            return Ok(PipeItem::Control(checked.map(|()| body)));
        }
        tracing::trace!(?header, "in");
        if (header.run, header.layout) != (context.stamp.run, context.stamp.layout) {
            let (run, layout) = (context.stamp.run, context.stamp.layout);
            return Err(PipeError::Protocol(format!(
                "a chunk of run {:016x}, layout {:x} came; this is run {run:016x}, layout {layout:x}",
                header.run, header.layout
            )));
        }
        pass(PassPlace::FrameIn, &header);
        // Most chunks are those of sums, whose place is known: no copy, and no block.
        if let Some(slot) = context.buffers.slot(&header) {
            if let Some(finite) = place(stream, context, &header, &slot).await? {
                // What is here counts, not what is said of it.
                return Ok(PipeItem::Placed(Header { finite, ..header }, slot));
            }
            continue;
        }
        let mut block = context.blocks.take(header.count(), header.format);
        stream.read_exact(block.bytes_mut()).await?;
        check(&header, block.bytes())?;
        return Ok(PipeItem::Chunk(header, block));
    }
}

fn check(header: &Header, body: &[u8]) -> Result<(), WireError> {
    // Terms have none: who sums them sees whether they are finite, and the sum has one. Nor have
    // messages of workers without XXH3. A digest that was damaged to 0 has another checksum.
    let expected = if header.digest == 0 {
        0
    } else {
        pass(PassPlace::Digest, header);
        xxh3_64(body)
    };
    if expected == header.digest {
        Ok(())
    } else {
        Err(WireError::Digest { expected, found: header.digest })
    }
}

/// Reads a chunk of a sum into its place; whether its numbers are finite, none if that was filled
/// from elsewhere meanwhile.
async fn place(
    stream: &mut BufReader<ReadHalf<Stream>>,
    context: &ConnectionContext,
    header: &Header,
    slot: &WriteSlot,
) -> Result<Option<bool>, PipeError> {
    let mut filled = 0;
    while filled < header.length as usize {
        // The place is locked only while bytes are there, never while they are waited for: another
        // connection may fill it meanwhile.
        let read = poll_fn(|context| {
            let read = slot.with(|place| {
                let mut rest = ReadBuf::new(&mut place[filled..]);
                Pin::new(&mut *stream)
                    .poll_read(context, &mut rest)
                    .map_ok(|()| rest.filled().len())
            });
            read.map_or(Poll::Ready(Ok(None)), |read| read.map_ok(Some))
        });
        match read.await? {
            Some(0) => return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
            Some(read) => filled += read,
            None => {
                // The rest of the body has to be read all the same: the next header comes after it.
                let mut rest = context.blocks.take(header.count(), header.format);
                stream.read_exact(&mut rest.bytes_mut()[filled..]).await?;
                context.blocks.give(rest);
                return Ok(None);
            }
        }
    }
    // Both at once, while the chunk is near.
    slot.with(|place| check(header, place).map(|()| is_finite(place)))
        .transpose()
        .map_err(PipeError::from)
}
