//! What the processes of one host say to each other through a file in memory.
//!
//! Each of them opens a [`Mailbox`] on the same file, and all make the same calls of
//! [`gather`](Mailbox::gather) in the same order. The calls are numbered. In call `k` a process
//! writes what it says to its own slot, of two the one of `k mod 2`, and then `k` to its head. It
//! waits until all heads have at least `k`, and reads the slots. Two slots are enough: a process
//! comes to call `k + 2` only after all have come to call `k + 1`. So all have read what was said
//! in call `k`.
//!
//! What is read may be older than its head says, where a processor writes in another order: it is
//! taken only with the digest that was written with it.
//!
//! Who has written wakes the others by a datagram without content, which may be lost: a process
//! that waits looks again and again by itself, and more often where it hears none.
//!
//! What processes write to other memory that they share is there for the others when a call is
//! over. Between two calls a process [announces](Mailbox::announce) how much of it is there.
//!
//! While a process waits it looks whether the others live, and whether one has said a last word.

use crate::arguments::{Deadline, now};
use codedgrad::files::{open_regular, read};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The head of a process: its number in the system, the number of its last call, how long its last
/// word is, and what it has announced, behind the number of its last call then.
const HEAD: usize = 32;
/// Bytes that a last word may have.
const WORD: usize = 4088;
/// What is said in one call: its length, a digest, and as many bytes as fit. What is longer takes
/// more calls.
const SLOT: usize = 16 + CONTENT;
const CONTENT: usize = 4080;
/// Linux's number for it.
const NO_SUCH_PROCESS: i32 = 3;
/// Bytes that the system says of a process, at most.
const STAT_BYTES: u64 = 4096;
/// How often one who waits looks at the others' processes and last words, and at Python's signals.
const LOOK: Duration = Duration::from_millis(20);
/// How long it waits for a datagram between two looks at what is there.
const PAUSE: Duration = Duration::from_millis(5);
/// The same where processes cannot wake each other.
const DEAF_PAUSE: Duration = Duration::from_micros(500);
/// How long a process that has said its last word may still come to a call.
const GRACE: Duration = Duration::from_secs(1);

/// A process's place in the file, through which all hear each other.
#[pyclass(frozen, module = "codedgrad._native")]
pub(crate) struct Mailbox {
    file: File,
    rank: usize,
    ranks: usize,
    calls: AtomicU64,
    bell: Option<Bell>,
}

/// By what processes wake each other.
struct Bell {
    socket: UnixDatagram,
    others: Vec<SocketAddr>,
}

impl Bell {
    /// That of one process of those that have the same file. The names lie outside the file system:
    /// nothing is left of them when the processes have ended.
    fn new(file: &File, rank: usize, ranks: usize) -> io::Result<Self> {
        let of_file = file.metadata()?;
        let named = |rank: usize| {
            let name = format!("codedgrad {} {} {rank}", of_file.dev(), of_file.ino());
            SocketAddr::from_abstract_name(name)
        };
        let socket = UnixDatagram::bind_addr(&named(rank)?)?;
        socket.set_read_timeout(Some(PAUSE))?;
        let others = (0..ranks).filter(|other| *other != rank).map(named);
        Ok(Self { others: others.collect::<io::Result<_>>()?, socket })
    }

    /// Wakes the others. One that has not heard earlier ones wakes as well.
    fn ring(&self) {
        let _ = self.socket.set_nonblocking(true);
        for other in &self.others {
            let _ = self.socket.send_to_addr(&[], other);
        }
        let _ = self.socket.set_nonblocking(false);
    }

    /// Waits for one of the others, or for a while.
    fn wait(&self) {
        let _ = self.socket.recv(&mut []);
    }
}

#[pymethods]
impl Mailbox {
    /// Bytes of the file for so many processes.
    #[staticmethod]
    fn size(ranks: usize) -> usize {
        ranks * (HEAD + WORD + 2 * SLOT)
    }

    /// Opens the file, which has only zeros at first, for one process of so many.
    #[new]
    fn new(path: &str, rank: usize, ranks: usize) -> PyResult<Self> {
        if rank >= ranks {
            let wrong = format!("rank {rank} of {ranks}: ranks count from 0");
            return Err(PyValueError::new_err(wrong));
        }
        let file = open_regular(Path::new(path), OpenOptions::new().read(true).write(true))?;
        let bell = Bell::new(&file, rank, ranks).ok();
        let found = Self { file, rank, ranks, calls: AtomicU64::new(0), bell };
        found.write(found.head(rank), u64::from(std::process::id()))?;
        Ok(found)
    }

    /// What each process says, for which all of them come here. Raises `RuntimeError` where one has
    /// ended, or has said its last word and does not come, or does not come in time.
    #[pyo3(signature = (said, seconds=None))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        said: &[u8],
        seconds: Option<f64>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let deadline = Deadline::after(seconds)?;
        let mut found = vec![Vec::new(); self.ranks];
        let mut start = 0;
        loop {
            let piece = &said[start.min(said.len())..said.len().min(start + CONTENT)];
            let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            self.say_in(number, said.len(), piece)?;
            let lengths = self.hear(py, (number, start), &deadline, &mut found)?;
            start += CONTENT;
            if lengths.iter().all(|length| *length <= start) {
                return Ok(found.iter().map(|each| PyBytes::new(py, each)).collect());
            }
        }
    }

    /// Says this process's last word, if it is short enough.
    fn say(&self, word: &[u8]) -> PyResult<()> {
        if word.len() <= WORD {
            self.file.write_all_at(word, self.word(self.rank))?;
            // It is there when its length is.
            self.write(self.head(self.rank) + 16, word.len() as u64)?;
        }
        Ok(())
    }

    /// The last words of others.
    fn heard<'py>(&self, py: Python<'py>) -> PyResult<Vec<(usize, Bound<'py, PyBytes>)>> {
        let mut found = Vec::new();
        for rank in (0..self.ranks).filter(|rank| *rank != self.rank) {
            let length = self.read(self.head(rank) + 16)? as usize;
            if length > 0 {
                let mut word = vec![0; length.min(WORD)];
                self.file.read_exact_at(&mut word, self.word(rank))?;
                found.push((rank, PyBytes::new(py, &word)));
            }
        }
        Ok(found)
    }

    /// Says how much of what others wait for is there, since the last call.
    fn announce(&self, count: u32) -> PyResult<()> {
        let number = self.calls.load(Ordering::Relaxed);
        Ok(self.write(self.head(self.rank) + 24, number << 32 | u64::from(count))?)
    }

    /// How much each process has announced since this one's last call: nothing, if it is at another
    /// call.
    fn announced(&self) -> PyResult<Vec<u32>> {
        let number = self.calls.load(Ordering::Relaxed);
        let heads = self.heads()?;
        let said = heads.chunks_exact(HEAD).map(|head| number_at(head, 24));
        let of_now = |said: u64| if said >> 32 == number & 0xffff_ffff { said as u32 } else { 0 };
        Ok(said.map(of_now).collect())
    }

    /// The first of the others whose process has ended.
    fn dead(&self) -> PyResult<Option<usize>> {
        Ok(self.dead_of((0..self.ranks).filter(|rank| *rank != self.rank))?)
    }
}

impl Mailbox {
    fn head(&self, rank: usize) -> u64 {
        (HEAD * rank) as u64
    }

    fn word(&self, rank: usize) -> u64 {
        (HEAD * self.ranks + WORD * rank) as u64
    }

    fn slot(&self, rank: usize, number: u64) -> u64 {
        let slot = 2 * rank + (number % 2) as usize;
        ((HEAD + WORD) * self.ranks + SLOT * slot) as u64
    }

    fn dead_of(&self, several: impl Iterator<Item = usize>) -> io::Result<Option<usize>> {
        for rank in several {
            let process = self.read(self.head(rank))?;
            if process > 0 && !lives(process) {
                return Ok(Some(rank));
            }
        }
        Ok(None)
    }

    fn heads(&self) -> io::Result<Vec<u8>> {
        let mut heads = vec![0; HEAD * self.ranks];
        self.file.read_exact_at(&mut heads, 0)?;
        fence(Ordering::SeqCst);
        Ok(heads)
    }

    fn read(&self, place: u64) -> io::Result<u64> {
        let mut found = [0; 8];
        self.file.read_exact_at(&mut found, place)?;
        Ok(u64::from_le_bytes(found))
    }

    /// What was written before is there for who reads the number.
    fn write(&self, place: u64, number: u64) -> io::Result<()> {
        fence(Ordering::SeqCst);
        self.file.write_all_at(&number.to_le_bytes(), place)
    }

    /// Says something in a call: of so many bytes these.
    fn say_in(&self, number: u64, length: usize, piece: &[u8]) -> io::Result<()> {
        let mut slot = Vec::with_capacity(16 + piece.len());
        slot.extend((length as u64).to_le_bytes());
        slot.extend(digest(number, length, piece).to_le_bytes());
        slot.extend(piece);
        self.file.write_all_at(&slot, self.slot(self.rank, number))?;
        self.write(self.head(self.rank) + 8, number)?;
        if let Some(bell) = &self.bell {
            bell.ring();
        }
        Ok(())
    }

    /// Waits for what all say in a call, from one place of it on; gives back how long each is.
    fn hear(
        &self,
        py: Python<'_>,
        (number, start): (u64, usize),
        deadline: &Deadline,
        found: &mut [Vec<u8>],
    ) -> PyResult<Vec<usize>> {
        let mut heard = Heard { number, start, lengths: vec![None; self.ranks], found };
        let mut last_word: Option<Instant> = None;
        loop {
            // Who has ended before this look says nothing more.
            let missing = (0..self.ranks).filter(|rank| heard.lengths[*rank].is_none());
            let dead = self.dead_of(missing.filter(|rank| *rank != self.rank))?;
            let until = now() + dead.map_or(deadline.left(LOOK), |_| Duration::ZERO);
            if py.detach(|| self.wait(&mut heard, until))? {
                return Ok(heard.lengths.into_iter().flatten().collect());
            }
            py.check_signals()?;
            if deadline.is_over() {
                let missing = heard.lengths.iter().position(Option::is_none).unwrap_or(0);
                let late = format!("rank {missing} does not come in time");
                return Err(PyRuntimeError::new_err(late));
            }
            if let Some(rank) = dead {
                return Err(PyRuntimeError::new_err(format!("rank {rank} has ended")));
            }
            if let Some((rank, _)) = self.heard(py)?.first()
                && last_word.get_or_insert_with(now).elapsed() >= GRACE
            {
                let gone = format!("rank {rank} has raised an exception");
                return Err(PyRuntimeError::new_err(gone));
            }
        }
    }

    /// Takes in what is there, until some time; whether that is all.
    fn wait(&self, heard: &mut Heard<'_>, until: Instant) -> io::Result<bool> {
        loop {
            self.take(heard)?;
            if heard.lengths.iter().all(Option::is_some) {
                return Ok(true);
            }
            if now() >= until {
                return Ok(false);
            }
            match &self.bell {
                Some(bell) => bell.wait(),
                None => thread::sleep(DEAF_PAUSE),
            }
        }
    }

    fn take(&self, heard: &mut Heard<'_>) -> io::Result<()> {
        let heads = self.heads()?;
        for (rank, head) in heads.chunks_exact(HEAD).enumerate() {
            if heard.lengths[rank].is_some() || number_at(head, 8) < heard.number {
                continue;
            }
            let mut slot = [0; SLOT];
            self.file.read_exact_at(&mut slot, self.slot(rank, heard.number))?;
            let length = number_at(&slot, 0) as usize;
            let piece = &slot[16..16 + length.saturating_sub(heard.start).min(CONTENT)];
            if digest(heard.number, length, piece) == number_at(&slot, 8) {
                heard.lengths[rank] = Some(length);
                heard.found[rank].extend(piece);
            }
        }
        Ok(())
    }
}

/// What is known of a call: how long it is what each process says, and that from one place on.
struct Heard<'a> {
    number: u64,
    start: usize,
    lengths: Vec<Option<usize>>,
    found: &'a mut [Vec<u8>],
}

fn number_at(bytes: &[u8], place: usize) -> u64 {
    let mut found = [0; 8];
    found.copy_from_slice(&bytes[place..place + 8]);
    u64::from_le_bytes(found)
}

fn digest(number: u64, length: usize, piece: &[u8]) -> u64 {
    xxh3_64_with_seed(piece, number.rotate_left(32) ^ length as u64)
}

/// Whether a process has not ended; where the system does not say so it lives.
fn lives(process: u64) -> bool {
    match read(Path::new(&format!("/proc/{process}/stat")), STAT_BYTES) {
        // Its name is between brackets, and may be anything.
        Ok(found) => {
            let state = found.rsplit(|byte| *byte == b')').next();
            let state = state.and_then(|rest| rest.trim_ascii_start().first());
            !matches!(state, Some(b'Z' | b'X'))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            !std::fs::exists("/proc/self/stat").unwrap_or(false)
        }
        // No such process: it has ended while it was read.
        Err(error) => error.raw_os_error() != Some(NO_SUCH_PROCESS),
    }
}
