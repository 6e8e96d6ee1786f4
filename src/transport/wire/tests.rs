//! Messages, there and back.

#![cfg(test)]

use super::*;
use crate::ids::OrderId;
use crate::ids::Step;
use proptest::prelude::*;

fn any_header() -> impl Strategy<Value = Header> {
    let kinds =
        prop::sample::select(vec![Kind::Control, Kind::Term, Kind::Sum, Kind::Result, Kind::State]);
    let numbers = (
        any::<u64>(),
        any::<u32>(),
        any::<u32>(),
        any::<u64>(),
        any::<u32>(),
        any::<u32>(),
        any::<u64>(),
        any::<u64>(),
    );
    (kinds, any::<(bool, bool)>(), numbers, any::<u64>(), 0u32..=1 << 15).prop_map(
        |(kind, (narrow, finite), numbers, digest, count)| {
            let (run, epoch, worker, number, attempt, piece, offset, layout) = numbers;
            let format = if narrow { NumberFormat::Bf16 } else { NumberFormat::F32 };
            let length = count * format.bytes() as u32;
            Header {
                kind,
                format,
                finite,
                run,
                epoch,
                worker,
                number,
                attempt,
                piece,
                offset,
                layout,
                digest,
                length,
            }
        },
    )
}

proptest! {
    #[test]
    fn headers_come_back(header in any_header()) {
        prop_assert_eq!(Header::decode(&header.encode(), CONTROL_BYTES_MAX), Ok(header));
    }

    /// No single damaged byte goes unnoticed.
    #[test]
    fn damage_is_found(header in any_header(), at in 0..HEADER_BYTES, flip in 1u8..) {
        let mut bytes = header.encode();
        bytes[at] ^= flip;
        prop_assert!(Header::decode(&bytes, CONTROL_BYTES_MAX).is_err());
    }

    /// Nor a single bit of a message that has a digest: a digit would be another one.
    #[test]
    fn a_damaged_message_is_found(
        number in any::<u64>(),
        order in any::<u64>().prop_map(OrderId),
        transfer in any::<u64>(),
        after in any::<Vec<u64>>(),
        at in any::<prop::sample::Index>(),
    ) {
        let after = after.into_iter().map(Step).collect();
        let body = encode(&ToWorker::Ping { number, order, transfer, after });
        let digest = xxhash_rust::xxh3::xxh3_64(&body);
        let header = Header { digest, ..Header::control(body.len()) };
        let mut bytes = [&header.encode()[..], &body].concat();
        prop_assert_eq!(frame(&bytes, CONTROL_BYTES_MAX), Ok(Some((header, &body[..], &[][..]))));
        let bit = at.index(8 * bytes.len());
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(frame(&bytes, CONTROL_BYTES_MAX).is_err());
    }

    #[test]
    fn garbage_is_refused(bytes: [[u8; 8]; 9]) {
        let bytes: [u8; HEADER_BYTES] = bytes.concat().try_into().unwrap();
        prop_assert!(Header::decode(&bytes, CONTROL_BYTES_MAX).is_err());
    }
}

#[test]
fn bodies_are_bounded() {
    let long = Header { length: HELLO_BYTES_MAX as u32 + 1, ..Header::control(0) };
    assert!(matches!(
        Header::decode(&long.encode(), HELLO_BYTES_MAX),
        Err(WireError::Length { most: HELLO_BYTES_MAX, .. })
    ));
    let chunk = Header {
        length: 4 * CHUNK as u32 + 4,
        ..Header::chunk(Kind::Sum, NumberFormat::F32, 0, 1)
    };
    assert!(Header::decode(&chunk.encode(), CONTROL_BYTES_MAX).is_err());
    let odd = Header { length: 7, ..Header::chunk(Kind::Term, NumberFormat::F32, 0, 1) };
    assert!(Header::decode(&odd.encode(), CONTROL_BYTES_MAX).is_err());
}
