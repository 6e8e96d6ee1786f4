//! What is tried with any bytes: by the fuzzer in `fuzz_targets`, and with the seeds in
//! tests/tcp/fuzz_corpus.rs.

use codedgrad::doctor::{Record, RecordedStep, RunContext, examine};
use codedgrad::sums::{CHUNK, Header, Kind, PeerMessage};
use codedgrad::transport::wire::{
    CONTROL_BYTES_MAX, FromWorker, HEADER_BYTES, HELLO_BYTES_MAX, ToWorker, VERSION,
};
use codedgrad::transport::wire::{decode, encode, frame};
use serde::Serialize;
use serde::de::DeserializeOwned;

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
    fn there_and_back<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
        if let Ok(message) = decode::<T>(bytes) {
            // Messages themselves cannot be compared: a scalar in them may be NaN.
            let written = encode(&message);
            let again = decode::<T>(&written).map(|message| encode(&message));
            assert_eq!(again, Ok(written));
        }
    }
    there_and_back::<ToWorker>(bytes);
    there_and_back::<FromWorker>(bytes);
    there_and_back::<PeerMessage>(bytes);
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

/// Lines of a record are examined, whatever they say, under a scheme of each kind.
pub(crate) fn record(bytes: &[u8]) {
    let steps = bytes.split(|byte| *byte == b'\n').map(serde_json::from_slice::<RecordedStep>);
    let steps: Vec<RecordedStep> = steps.filter_map(Result::ok).collect();
    // Those of the record itself might name files.
    for scheme in ["uncoded", "groups:s=1", "min-load:s=1", "queue:m=2", "m-sgc:B=1,W=2,lambda=1"] {
        let mut record = Record::default();
        let mut taken = 0;
        for step in &steps {
            let under = RecordedStep { scheme: scheme.into(), using: None, ..step.clone() };
            taken += usize::from(record.push(under).is_ok());
        }
        let found = examine(&record, &RunContext::default());
        assert_eq!((found.steps, found.rounds), (taken, record.rounds()));
        let costs = found.findings.iter().map(|finding| finding.costs);
        let dearest = |cost: Option<f64>| cost.unwrap_or(f64::NEG_INFINITY);
        let costs: Vec<f64> = costs.map(dearest).collect();
        assert!(costs.windows(2).all(|pair| pair[0].total_cmp(&pair[1]).is_ge()), "{costs:?}");
        assert!(found.findings.iter().all(|finding| !finding.to_string().is_empty()));
        let part = record.between(Some(1), None);
        assert!(
            part.is_err() || examine(&part.expect("a part"), &RunContext::default()).steps <= taken
        );
    }
}
