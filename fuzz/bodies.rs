//! What is tried with any bytes: by the fuzzer in `fuzz_targets`, and with the seeds in
//! tests/fuzz_corpus.rs.

use codedgrad::transport::wire::{
    Across, CHUNK, CONTROL_BYTES_MAX, FromWorker, HEADER_BYTES, HELLO_BYTES_MAX, Header, Kind,
    ToWorker, VERSION,
};
use codedgrad::transport::wire::{decode, encode, frame};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A header that is read is written with the same bytes, and announces no body beyond the limits.
pub(crate) fn header(bytes: &[u8]) {
    let Some((bytes, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    // The fuzzer does not guess checksums: the second time, what is checked is right.
    let fields = [&b"CGRD"[..], &VERSION.to_le_bytes(), &bytes[6..68]].concat();
    let mended = [&fields[..], &crc32fast::hash(&fields).to_le_bytes()].concat();
    for bytes in [bytes, mended.first_chunk().expect("a header is as long as it was")] {
        for most in [0, HELLO_BYTES_MAX, CONTROL_BYTES_MAX] {
            let Ok(header) = Header::decode(bytes, most) else { continue };
            assert_eq!(header.encode(), *bytes);
            assert!(
                header.length as usize
                    <= if header.kind == Kind::Control { most } else { 4 * CHUNK }
            );
            assert!(header.kind == Kind::Control || header.count() <= CHUNK);
        }
    }
}

/// A message that is read is written so that it is read again.
pub(crate) fn control(bytes: &[u8]) {
    fn there_and_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
        if let Ok(message) = decode::<T>(bytes) {
            assert_eq!(decode::<T>(&encode(&message)), Ok(message));
        }
    }
    there_and_back::<ToWorker>(bytes);
    there_and_back::<FromWorker>(bytes);
    there_and_back::<Across>(bytes);
}

/// A stream is cut into frames without a byte lost, and no frame is seen before its last byte.
pub(crate) fn frames(mut bytes: &[u8]) {
    while let Ok(Some((header, body, rest))) = frame(bytes, HELLO_BYTES_MAX) {
        let whole = [&header.encode()[..], body].concat();
        assert!(bytes.starts_with(&whole) && bytes.len() == whole.len() + rest.len());
        assert_eq!(frame(&bytes[..whole.len() - 1], HELLO_BYTES_MAX), Ok(None));
        control(body);
        bytes = rest;
    }
}
