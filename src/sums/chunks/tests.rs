//! A header is of a chunk or of none, and more.

#![cfg(test)]

use super::*;

#[test]
fn a_header_is_of_a_chunk_or_of_none() {
    let of = |offset: usize, count| {
        Header::chunk(Kind::Sum, NumberFormat::F32, offset, count).chunk_of(CHUNK + 3)
    };
    assert_eq!((of(0, CHUNK), of(CHUNK, 3)), (Ok(0), Ok(1)));
    for (offset, count) in [(0, 3), (1, CHUNK), (CHUNK, 4), (2 * CHUNK, 0), (usize::MAX, 3)] {
        assert!(
            of(offset, count).unwrap_err().contains("no chunk of a vector of 65539"),
            "{offset}"
        );
    }
    let task = Task { job: Job(7), piece: 2, plan: 0 };
    assert_eq!(Header::chunk(Kind::Result, NumberFormat::F32, 0, 1).of_task(task).task(), task);
}

#[test]
fn chunks_cover_a_vector() {
    assert_eq!((chunks(0), chunks(1), chunks(CHUNK), chunks(CHUNK + 1)), (0, 1, 1, 2));
    assert_eq!(chunk_range(1, CHUNK + 3), CHUNK..CHUNK + 3);
}
