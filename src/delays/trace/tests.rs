//! What a table of delays may be, and what is said of one that is none.

#![cfg(test)]

use super::*;
use crate::delays::TIME_MAX;
use proptest::prelude::*;
use std::io::{Cursor, Read};

fn read(text: &str, workers: usize) -> Result<Trace, TraceError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    Trace::read(file.path(), workers)
}

#[test]
fn cells_are_named() {
    assert_eq!(read("1, 2,9\n0.5,3,9\n\n", 2).unwrap().rows(), [vec![1.0, 2.0], vec![0.5, 3.0]]);
    let message = |text: &str| read(text, 2).unwrap_err().to_string();
    assert!(message("1,2\n3,x").contains("line 2, column 2: \"x\""));
    for bad in ["-2", "-inf", "1e999", "0x1", "1 2", "none of it"] {
        assert!(message(&format!("1,2\n1,{bad}")).contains("line 2, column 2"), "{bad}");
    }
    assert!(message("1").contains("line 1 has 1 column, but the run has 2 workers"));
    assert!(
        message("1,2\n\n3")
            .contains("line 3, column 2: the line has 1 column, but the first one has 2")
    );
    assert!(
        message("1,2\n3,4,5")
            .contains("line 2, column 3: the line has 3 columns, but the first one has 2")
    );
    assert!(message("round,w0\n1,2").contains("line 1, column 1: \"round\" looks like a header"));
    assert!(message("-2,1").contains("\"-2\" is not a delay"));
    assert!(message("\n").contains("no rounds"));
    assert!(message(&format!("1,2\n1,{}", "y".repeat(100))).len() < 250);
}

#[test]
fn a_mark_of_byte_order_and_line_ends_of_windows_do_not_matter() {
    assert_eq!(read("\u{feff}1,2\r\n3,4\r\n", 2).unwrap().rows(), [vec![1.0, 2.0], vec![3.0, 4.0]]);
    let wrong = TraceReader::new(&b"1,2\n\xff,3\n"[..], "x".as_ref(), None)
        .unwrap()
        .nth(1)
        .unwrap()
        .unwrap_err();
    assert!(std::error::Error::source(&wrong).unwrap().to_string().contains("line 2 is not text"));
}

#[test]
fn separators_comments_and_decimal_commas_are_read() {
    let rows = |text| read(text, 2).unwrap().rows().to_vec();
    let expected = [vec![1.5, 2.0], vec![0.5, 3.0]];
    for text in [
        "# w0 w1\n1.5 2\n0.5 3\n",
        "1,5;2\n0,5;3\n",
        "1.5\t2\n\n0.5\t3\n",
        "  1.500e+00   2.000e+00\n  5.000e-01   3.000e+00\n",
        "\"1.5\",\"2\"\n\"0.5\",\"3\"\n",
    ] {
        assert_eq!(rows(text), expected, "{text}");
    }
}

#[test]
fn what_is_missing_or_not_received_has_one_rule() {
    let mut reader =
        TraceReader::new(&b"1,nan\n-1.0,2\n,3\n4,inf\n"[..], "x".as_ref(), None).unwrap();
    let rows: Vec<_> = reader.by_ref().collect::<Result<_, _>>().unwrap();
    assert_eq!((rows, reader.incomplete()), (vec![vec![2.0, 2.0], vec![4.0, 4.0]], 2));
    let mut told = TraceReader::new(&b"1,nan\n-1,2\n"[..], "x".as_ref(), None).unwrap();
    assert!(told.next_as_told().unwrap().unwrap()[1].is_nan());
    assert_eq!(told.next_as_told().unwrap().unwrap(), [f64::INFINITY, 2.0]);
}

/// An endless file of zeros that counts what is taken from it.
struct Endless(u64);

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        buffer
            .iter_mut()
            .enumerate()
            .for_each(|(at, byte)| *byte = b"0,1\n"[(self.0 as usize + at) % 4]);
        self.0 += buffer.len() as u64;
        Ok(buffer.len())
    }
}

#[test]
fn a_row_costs_a_row() {
    let mut reader =
        TraceReader::new(BufReader::new(Endless(0)), "endless".as_ref(), None).unwrap();
    assert_eq!(
        reader.by_ref().take(100_000).filter(|row| row.as_ref().unwrap() == &[0.0, 1.0]).count(),
        100_000
    );
    assert_eq!(reader.bytes_read(), 400_000);
    let endless = BufReader::new(std::io::repeat(b'1'));
    assert!(
        TraceReader::new(endless, "repeat".as_ref(), None)
            .unwrap_err()
            .to_string()
            .contains("not a trace")
    );
}

#[test]
fn only_the_rounds_asked_for_are_read() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "1,2\n3,4\n5,x\n").unwrap();
    let trace = Trace::read_rounds(file.path(), 2, 2).unwrap();
    assert_eq!((trace.rows().len(), trace.is_cut(), trace.columns()), (2, true, 2));
    assert!(Trace::read_rounds(file.path(), 2, 3).is_err());
    assert!(!Trace::read_rounds(file.path(), 1, 3).unwrap().is_cut());
}

proptest! {
    #[test]
    fn numbers_are_written_as_rust_displays_them(
        digits in 0u64..1_000_000_000_000,
        places in 0i32..22,
    ) {
        let delay = digits as f64 / 10f64.powi(places);
        let plain = delay == 0.0 || (1e-5..1e16).contains(&delay);
        let expected = if plain { format!("{delay}") } else { format!("{delay:e}") };
        let mut text = Vec::new();
        write_row(&mut text, &[delay, delay]).unwrap();
        prop_assert_eq!(String::from_utf8(text).unwrap(), format!("{expected},{expected}\n"));
    }

    #[test]
    fn what_is_written_is_read_back_to_the_bit(
        rows in (1usize..6).prop_flat_map(|n| {
            prop::collection::vec(prop::collection::vec(any::<u64>(), n), 1..8)
        }),
    ) {
        let delay = |bits: &u64| {
            Some(f64::from_bits(bits >> 1)).filter(|x| *x <= TIME_MAX).unwrap_or(0.0)
        };
        let rows: Vec<Vec<f64>> =
            rows.iter().map(|row| row.iter().map(delay).collect()).collect();
        let mut text = Vec::new();
        rows.iter().for_each(|row| write_row(&mut text, row).unwrap());
        let mut reader = TraceReader::new(Cursor::new(text), "memory".as_ref(), None).unwrap();
        let bits =
            |rows: &[Vec<f64>]| rows.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        let read: Vec<Vec<f64>> = reader.by_ref().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(bits(&read), bits(&rows));
        reader.rewind().unwrap();
        prop_assert_eq!(reader.next().unwrap().unwrap(), rows[0].clone());
    }

    #[test]
    fn no_text_makes_the_reader_fall_over(
        text in "[0-9.,eE\\-+naNxif \n\r]{0,60}",
        workers in 0usize..4,
    ) {
        if let Ok(reader) = TraceReader::new(text.as_bytes(), "memory".as_ref(), Some(workers))
        {
            for row in reader.flatten() {
                prop_assert!(
                    row.len() == workers && row.iter().all(|d| d.is_finite() && *d >= 0.0)
                );
            }
        }
    }
}
