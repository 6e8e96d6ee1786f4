//! Chunks that come in any order.

#![cfg(test)]

use super::*;
use crate::ids::Step;
use crate::sums::CHUNK;

const LENGTH: usize = CHUNK + 2;

fn registered() -> (ReassemblyBuffers, Arc<ReassemblyBuffer>) {
    let (buffers, buffer) =
        (ReassemblyBuffers::default(), Arc::new(ReassemblyBuffer::new(vec![0.0; LENGTH])));
    buffers.register(SUM, &buffer);
    (buffers, buffer)
}

const SUM: SumId = SumId { step: Step(3), attempt: 1 };

fn header(chunk: usize) -> Header {
    let range = chunk_range(chunk, LENGTH);
    Header {
        digest: 1,
        ..Header::chunk(Kind::Sum, NumberFormat::F32, range.start, range.len()).of_sum(SUM, 0)
    }
}

#[test]
fn a_chunk_is_read_into_its_place_once() {
    let (buffers, buffer) = registered();
    let slot = buffers.slot(&header(1)).unwrap();
    assert!(buffers.slot(&header(1)).is_none(), "a worker reads it");
    assert_eq!(
        slot.with(|bytes| bytes.copy_from_slice(cast_slice_mut(&mut [2.0f32, 3.0]))),
        Some(())
    );
    assert!(slot.complete(&buffer));
    drop(slot);
    assert!(buffers.slot(&header(1)).is_none(), "it is there");
    assert_eq!(buffer.take()[CHUNK - 1..], [0.0, 2.0, 3.0]);
}

#[test]
fn who_is_given_up_writes_nothing_any_more() {
    let (buffers, buffer) = registered();
    drop(buffers.slot(&header(1)).unwrap());
    let slot = buffers.slot(&header(1)).expect("the first has given it up");
    buffer.write(1, |numbers| numbers.fill(5.0));
    assert_eq!((slot.with(|bytes| bytes.fill(0)), slot.complete(&buffer)), (None, false));
    drop(slot);
    assert!(buffers.slot(&header(1)).is_none());
    let first = buffers.slot(&header(0)).unwrap();
    assert_eq!(buffer.take().last(), Some(&5.0));
    assert_eq!(first.with(|bytes| bytes.fill(0)), None, "the vector is elsewhere");
}

#[test]
fn only_what_is_missing_can_be_claimed() {
    let (buffers, buffer) = registered();
    let wrong = [
        Header { digest: 0, ..header(1) },
        Header { kind: Kind::Term, ..header(1) },
        Header { attempt: 0, ..header(1) },
        Header { length: 4, ..header(1) },
        Header { offset: 2 * CHUNK as u64, ..header(1) },
    ];
    assert!(wrong.iter().all(|header| buffers.slot(header).is_none()));
    buffer.close(0..1);
    assert!(buffers.slot(&header(0)).is_none(), "it is made here");
    assert!(buffers.slot(&header(1)).is_some());
    drop(buffer);
    assert!(buffers.slot(&header(1)).is_none(), "no worker wants the sum any more");
}
