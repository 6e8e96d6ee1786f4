//! Files as others leave them: packed by gzip, in UTF-16, with any ends of lines.

use anyhow::Context;
use codedgrad::delays::TRACE_BYTES_MAX;
use codedgrad::files::{BoundedReader, Opener};
use flate2::bufread::MultiGzDecoder;
use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::rc::Rc;

/// Room for what is read ahead.
const ROOM: usize = 1 << 16;
/// A line that is longer is cut there: it is no line of a log or a table.
const LINE_MOST: usize = 64 << 20;
/// No file, and no text that is packed in one, is longer: a thousand lines of 1 kB from each of
/// 65,536 workers.
const BYTES_MAX: u64 = 64 << 30;

/// A file's text, decoded.
pub struct Input {
    reader: Box<dyn BufRead>,
    bytes: Rc<Cell<u64>>,
}

/// Counts what is read.
struct CountedReader<R> {
    input: R,
    bytes: Rc<Cell<u64>>,
}

impl<R: Read> Read for CountedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.bytes.set(self.bytes.get() + read as u64);
        Ok(read)
    }
}

/// UTF-16 as UTF-8. What is no character becomes a replacement character.
struct Utf16<R> {
    input: R,
    big_endian: bool,
    /// A first half of a pair of surrogates.
    half: Option<u16>,
    ready: Vec<u8>,
}

impl<R: Read> Utf16<R> {
    fn new(input: R, big_endian: bool) -> Self {
        Self { input, big_endian, half: None, ready: Vec::new() }
    }

    fn take(&mut self, unit: u16) {
        let units = self.half.take().into_iter().chain([unit]);
        for letter in char::decode_utf16(units.collect::<Vec<_>>()) {
            match letter {
                Ok(letter) => self.ready.extend(letter.encode_utf8(&mut [0; 4]).bytes()),
                Err(error) if (0xD800..0xDC00).contains(&error.unpaired_surrogate()) => {
                    self.half = Some(error.unpaired_surrogate());
                }
                Err(_) => self.ready.extend("\u{fffd}".bytes()),
            }
        }
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.ready.is_empty() {
            let mut units = Vec::new();
            let read = (&mut self.input).take(buffer.len().max(2) as u64 & !1);
            if { read }.read_to_end(&mut units)? == 0 {
                return Ok(0);
            }
            for pair in units.chunks(2) {
                let pair = [pair[0], pair.get(1).copied().unwrap_or(0)];
                let order = if self.big_endian { u16::from_be_bytes } else { u16::from_le_bytes };
                self.take(order(pair));
            }
        }
        let count = self.ready.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.ready[..count]);
        self.ready.drain(..count);
        Ok(count)
    }
}

impl Input {
    /// A file, packed or not.
    pub fn open(path: &Path) -> io::Result<Self> {
        let bytes = Rc::new(Cell::new(0));
        let input = BoundedReader::open_or_wait(path, BYTES_MAX)?;
        let counted = CountedReader { input, bytes: Rc::clone(&bytes) };
        let mut packed = BufReader::with_capacity(ROOM, counted);
        let mut reader: Box<dyn BufRead> = match packed.fill_buf()? {
            [0x1f, 0x8b, ..] => {
                let unpacked = BoundedReader::new(MultiGzDecoder::new(packed), BYTES_MAX);
                Box::new(BufReader::with_capacity(ROOM, unpacked))
            }
            _ => Box::new(packed),
        };
        let start = reader.fill_buf()?;
        if start.len() == ROOM && start.iter().all(|byte| *byte == 0) {
            let problem = format!("it begins with {ROOM} bytes of zeros: this is no text");
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let (mark, big_endian) = match start {
            [0xef, 0xbb, 0xbf, ..] => (3, None),
            [0xff, 0xfe, ..] => (2, Some(false)),
            [0xfe, 0xff, ..] => (2, Some(true)),
            [first, 0, second, 0, ..] if *first != 0 && *second != 0 => (0, Some(false)),
            [0, first, 0, second, ..] if *first != 0 && *second != 0 => (0, Some(true)),
            _ => (0, None),
        };
        reader.consume(mark);
        if let Some(big_endian) = big_endian {
            let decoded = Utf16::new(reader, big_endian);
            reader = Box::new(BufReader::with_capacity(ROOM, decoded));
        }
        Ok(Self { reader, bytes })
    }

    /// The bytes read so far are counted there, packed as they are.
    pub fn counter(&self) -> Rc<Cell<u64>> {
        Rc::clone(&self.bytes)
    }

    /// The first bytes of the text, no more than so many, and a reader of all of it.
    pub fn with_start(mut self, most: usize) -> io::Result<(Vec<u8>, Box<dyn Read>)> {
        let mut start = Vec::new();
        (&mut self.reader).take(most as u64).read_to_end(&mut start)?;
        let all = io::Cursor::new(start.clone()).chain(self.reader);
        Ok((start, Box::new(all)))
    }

    /// Reads the next line, without its end: a line feed, a carriage return, or both. None at the
    /// end of the file; else whether the line has an end.
    pub fn line(&mut self, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
        line.clear();
        loop {
            let ready = self.reader.fill_buf()?;
            if ready.is_empty() {
                return Ok((!line.is_empty()).then_some(false));
            }
            let end = ready.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            line.extend_from_slice(&ready[..end.unwrap_or(ready.len())]);
            let Some(end) = end else {
                let read = ready.len();
                self.reader.consume(read);
                if line.len() > LINE_MOST {
                    return Ok(Some(true));
                }
                continue;
            };
            let is_return = ready[end] == b'\r';
            self.reader.consume(end + 1);
            if is_return && self.reader.fill_buf()?.first() == Some(&b'\n') {
                self.reader.consume(1);
            }
            return Ok(Some(true));
        }
    }
}

/// The text of a file that is packed, in another encoding, or has carriage returns alone; none
/// where it can be read as it is.
pub fn decoded(path: &Path) -> Option<Vec<u8>> {
    const LOOKED_AT: usize = 4096;
    if !path.is_file() {
        return None;
    }
    let mut start = Vec::new();
    BoundedReader::open(path, BYTES_MAX)
        .ok()?
        .take(LOOKED_AT as u64)
        .read_to_end(&mut start)
        .ok()?;
    let returns = start.windows(2).any(|pair| pair[0] == b'\r' && pair[1] != b'\n');
    let packed = start.starts_with(&[0x1f, 0x8b]);
    let wide = start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]);
    if !(returns || packed || wide || start.contains(&0)) {
        return None;
    }
    let mut input = Input::open(path).ok()?;
    let (mut text, mut line) = (Vec::new(), Vec::new());
    while input.line(&mut line).ok()?.is_some() {
        text.append(&mut line);
        text.push(b'\n');
    }
    Some(text)
}

/// A trace's text, decoded where it has to be.
pub fn text_of(path: &Path, open: Opener) -> anyhow::Result<Box<dyn BufRead>> {
    if let Some(text) = decoded(path) {
        return Ok(Box::new(Cursor::new(text)));
    }
    let file = open(path, TRACE_BYTES_MAX);
    let file = file.with_context(|| format!("cannot read the trace {}", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

#[cfg(test)]
mod tests;
