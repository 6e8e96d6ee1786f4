//! The bytes on the wire: frames and what is in them. Pure: no socket, no clock.
//!
//! A frame is a [`Header`] of [`HEADER_BYTES`] bytes, little-endian, and a body. The body of a
//! control frame is one JSON object ([`ToWorker`] from the coordinator, [`FromWorker`] from a
//! worker, [`PeerMessage`](crate::sums::PeerMessage) between workers); that of any other frame is a
//! chunk of a vector. docs/protocol.md tells the same to those who write a worker in another
//! language.

mod message;

pub use message::{
    FromWorker, Hello, InitialReplica, Offer, Peer, TaskOrder, ToWorker, Welcome, decode, encode,
};

use crate::run::NumberFormat;
use crate::sums::{CHUNK, Header, Kind};
use serde::{Deserialize, Deserializer};
use thiserror::Error;

/// Bytes of a frame before its body.
pub const HEADER_BYTES: usize = 72;
/// Version of everything described here; peers of another version are refused.
pub const VERSION: u16 = 10;
/// Most bytes of a control body.
pub const CONTROL_BYTES_MAX: usize = 16 << 20;
/// Most bytes of the first control body on a connection.
pub const HELLO_BYTES_MAX: usize = 64 << 10;
const MAGIC: [u8; 4] = *b"CGRD";

/// Reads a format from a field where only those of frames may be: f32 and bf16.
///
/// # Errors
/// That of serde when it is another.
pub fn framed_format<'de, D: Deserializer<'de>>(from: D) -> Result<NumberFormat, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Framed {
        F32,
        Bf16,
    }
    Ok(match Framed::deserialize(from)? {
        Framed::F32 => NumberFormat::F32,
        Framed::Bf16 => NumberFormat::Bf16,
    })
}

/// Bytes that are no frame of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// Not the beginning of a frame.
    #[error("a frame begins with \"CGRD\", not with {found:02x?}")]
    Magic {
        /// What was there instead.
        found: [u8; 4],
    },
    /// Another version.
    #[error("the peer speaks version {found} of the protocol, this is version {VERSION}")]
    Version {
        /// Theirs.
        found: u16,
    },
    /// The header is damaged.
    #[error("a header's checksum is {expected:08x}, it says {found:08x}")]
    Checksum {
        /// That of the bytes.
        expected: u32,
        /// That in the header.
        found: u32,
    },
    /// No such kind of frame, or format.
    #[error("there is no frame of kind {kind} and format {format}")]
    Unknown {
        /// Kind.
        kind: u8,
        /// Format.
        format: u8,
    },
    /// A body that is too long.
    #[error("a body of {found} bytes, where at most {most} can be")]
    Length {
        /// Announced.
        found: u32,
        /// Possible.
        most: usize,
    },
    /// A chunk that ends in the middle of an element.
    #[error("a chunk of {found} bytes, which is no whole number of elements of {bytes} bytes")]
    Broken {
        /// Announced.
        found: u32,
        /// Of an element.
        bytes: usize,
    },
    /// Bytes of a body changed on their way.
    #[error("a body's digest is {expected:016x}, its header says {found:016x}")]
    Digest {
        /// That of the body.
        expected: u64,
        /// That in the header.
        found: u64,
    },
}

impl Header {
    /// The bytes of the header.
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0..4 | `CGRD` |
    /// | 4..6 | version |
    /// | 6 | kind: 0 control, 1 term, 2 sum, 3 result, 4 state |
    /// | 7 | format of the numbers: 0 f32, 1 bf16; plus 128 if some number is not finite |
    /// | 8..16 | run |
    /// | 16..20 | epoch |
    /// | 20..24 | worker |
    /// | 24..32 | number |
    /// | 32..36 | attempt |
    /// | 36..40 | piece |
    /// | 40..48 | offset |
    /// | 48..56 | layout |
    /// | 56..64 | digest |
    /// | 64..68 | length of the body in bytes |
    /// | 68..72 | CRC-32 (IEEE) of bytes 0..68 |
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let kind = match self.kind {
            Kind::Control => 0,
            Kind::Term => 1,
            Kind::Sum => 2,
            Kind::Result => 3,
            Kind::State => 4,
        };
        let format = match self.format {
            NumberFormat::F32 => 0,
            NumberFormat::Bf16 => 1,
            // No version has such frames: no reader takes it for another.
            NumberFormat::F16 => 2,
        };
        let format = format | if self.finite { 0 } else { 128 };
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        (bytes[6], bytes[7]) = (kind, format);
        bytes[8..16].copy_from_slice(&self.run.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.worker.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.piece.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.offset.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.layout.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.digest.to_le_bytes());
        bytes[64..68].copy_from_slice(&self.length.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..68]);
        bytes[68..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header; `control_max` is the longest control body that is taken.
    ///
    /// ```
    /// use codedgrad::run::NumberFormat;
    /// use codedgrad::sums::{CHUNK, Header, Kind};
    /// let header = Header::chunk(Kind::Sum, NumberFormat::Bf16, CHUNK, 10);
    /// assert_eq!(Header::decode(&header.encode(), 100), Ok(header));
    /// assert!(Header::decode(&[0; 72], 100).is_err());
    /// ```
    ///
    /// # Errors
    /// [`WireError`] when the bytes are no header, or announce a body that cannot be.
    pub fn decode(bytes: &[u8; HEADER_BYTES], control_max: usize) -> Result<Self, WireError> {
        let mut rest = bytes.as_slice();
        let found: [u8; 4] = take(&mut rest);
        if found != MAGIC {
            return Err(WireError::Magic { found });
        }
        let version = u16::from_le_bytes(take(&mut rest));
        let [kind, format] = take(&mut rest);
        let mut header = Self::control(0);
        header.run = u64::from_le_bytes(take(&mut rest));
        header.epoch = u32::from_le_bytes(take(&mut rest));
        header.worker = u32::from_le_bytes(take(&mut rest));
        header.number = u64::from_le_bytes(take(&mut rest));
        header.attempt = u32::from_le_bytes(take(&mut rest));
        header.piece = u32::from_le_bytes(take(&mut rest));
        header.offset = u64::from_le_bytes(take(&mut rest));
        header.layout = u64::from_le_bytes(take(&mut rest));
        header.digest = u64::from_le_bytes(take(&mut rest));
        header.length = u32::from_le_bytes(take(&mut rest));
        let (expected, found) =
            (crc32fast::hash(&bytes[..68]), u32::from_le_bytes(take(&mut rest)));
        if found != expected {
            return Err(WireError::Checksum { expected, found });
        }
        // After the checksum, which all versions have here: a version that was damaged on its way
        // costs a connection, another one ends the worker.
        if version != VERSION {
            return Err(WireError::Version { found: version });
        }
        header.kind = match kind {
            0 => Kind::Control,
            1 => Kind::Term,
            2 => Kind::Sum,
            3 => Kind::Result,
            4 => Kind::State,
            _ => return Err(WireError::Unknown { kind, format }),
        };
        header.finite = format & 128 == 0;
        header.format = match format & 127 {
            0 => NumberFormat::F32,
            1 => NumberFormat::Bf16,
            _ => return Err(WireError::Unknown { kind, format }),
        };
        // A length of a stranger's becomes memory: no more than what any frame can have.
        let most =
            if header.kind == Kind::Control { control_max } else { CHUNK * header.format.bytes() };
        if header.length as usize > most {
            return Err(WireError::Length { found: header.length, most });
        }
        let bytes = header.format.bytes();
        if header.kind != Kind::Control && !(header.length as usize).is_multiple_of(bytes) {
            return Err(WireError::Broken { found: header.length, bytes });
        }
        Ok(header)
    }
}

/// A frame at the beginning of some bytes: its header, its body, and the bytes after it.
pub type ParsedFrame<'a> = (Header, &'a [u8], &'a [u8]);

/// The first frame of a stream of bytes; none if it is not all there yet.
///
/// ```
/// use codedgrad::sums::Header;
/// use codedgrad::transport::wire::frame;
/// let bytes = [&Header::control(2).encode()[..], b"{}", b"CGRD"].concat();
/// assert_eq!(frame(&bytes, 100), Ok(Some((Header::control(2), &b"{}"[..], &b"CGRD"[..]))));
/// assert_eq!(frame(b"CGRD", 100), Ok(None));
/// ```
///
/// # Errors
/// [`WireError`] when the bytes begin with no frame, or with one whose body is not what its digest
/// says.
pub fn frame(bytes: &[u8], control_max: usize) -> Result<Option<ParsedFrame<'_>>, WireError> {
    let Some((header, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let header = Header::decode(header, control_max)?;
    let Some((body, rest)) = rest.split_at_checked(header.length as usize) else { return Ok(None) };
    let expected = if header.digest == 0 { 0 } else { xxhash_rust::xxh3::xxh3_64(body) };
    if expected != header.digest {
        return Err(WireError::Digest { expected, found: header.digest });
    }
    Ok(Some((header, body, rest)))
}

fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (head, aux) = rest.split_first_chunk().expect("a header is long enough for its fields");
    *rest = aux;
    *head
}

/// Hash of what sender and receiver of vectors must agree on: the numbers in a gradient, the units
/// of a batch, and a text that describes the job.
#[must_use]
pub fn layout(length: usize, units: u32, job: &str) -> u64 {
    let text = format!("{length} {units} {job}");
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

#[cfg(test)]
mod tests;
