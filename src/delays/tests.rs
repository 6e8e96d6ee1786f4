//! A file starts again at its first line, and more.

#![cfg(test)]

use super::*;

#[test]
fn a_file_starts_again_at_its_first_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "1,2,3\n4,5,6\n").unwrap();
    let name = file.path().to_str().unwrap();
    let rows: Vec<Vec<f64>> =
        DelayRows::open(name, Some(2), 0).unwrap().take(5).collect::<Result<_, _>>().unwrap();
    assert_eq!(rows, [[1.0, 2.0], [4.0, 5.0], [1.0, 2.0], [4.0, 5.0], [1.0, 2.0]]);
    let delays = Delays::for_rounds(name, 2, 0, 5).unwrap();
    assert_eq!(delays.rows(5), rows);
    assert_eq!(delays.to_string(), "trace of 2 rounds, the first 2 of 3 columns");
    assert_eq!(
        Delays::for_rounds(name, 3, 0, 1).unwrap().to_string(),
        "a longer trace's first 1 round"
    );
    assert_eq!(DelayRows::open(name, None, 0).unwrap().columns(), Some(3));
}

#[test]
fn every_preset_streams_the_rows_it_gives() {
    for name in Preset::names() {
        let delays = Delays::open(name, 5, 3).unwrap();
        let rows = DelayRows::open(name, Some(5), 3).unwrap();
        assert_eq!(rows.unit(), delays.unit());
        assert_eq!(
            rows.take(40).collect::<Result<Vec<_>, _>>().unwrap(),
            delays.rows(40),
            "{name}"
        );
        assert!(delays.rows(40).iter().flatten().all(|d| d.is_finite() && *d >= 0.0));
        assert!(delays.to_string().starts_with(name) && delays.to_string().len() < 100, "{delays}");
    }
}
