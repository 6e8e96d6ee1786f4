//! Cells are apart by what the lines agree on.

#![cfg(test)]

use super::*;

fn read(text: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let mut sheet = Sheet::open(file.path()).unwrap_or_else(|_| panic!("{text}"));
    let mut rows = Vec::new();
    while sheet.next().unwrap_or_else(|_| panic!("{text}")) {
        rows.push((0..sheet.header.len()).map(|at| sheet.cell(at).into_owned()).collect());
    }
    (sheet.header, rows)
}

#[test]
fn cells_are_apart_by_what_the_lines_agree_on() {
    for text in [
        "step,w 0\n0,1.5\n1,2\n",
        "step;w 0\r\n0;1.5\r\n1;2\r\n",
        "\"step\"\t\"w 0\"\n\"0\"\t\"1.5\"\n\"1\"\t\"2\"\n",
        "# made by hand\n\n step | w 0 \n0|1.5\n1|2",
    ] {
        let (header, rows) = read(text);
        assert_eq!(header, ["step", "w 0"], "{text}");
        assert_eq!(rows, [["0", "1.5"], ["1", "2"]], "{text}");
    }
    let (_, rows) = read("step,s\n0,1\nstep,s\n1,2\n2");
    assert_eq!(rows, [["0", "1"], ["1", "2"]]);
    let (header, rows) = read("step;time,s\n0;0,99\n1;1,01\n");
    assert_eq!((header.len(), &*rows[0]), (2, &["0".to_owned(), "0,99".to_owned()][..]));
    let (header, rows) = read("# step rank s\n0.0e+00   1.0e+00  9.9e-01\n1 1 2\n");
    assert_eq!((header, rows.len()), (vec!["step".into(), "rank".into(), "s".into()], 2));
    let (header, _) = read("name,\"a, b\"\"c\"\"\"\n1,2\n");
    assert_eq!(header[1], "a, b\"c\"");
}
