//! How texts of schemes are read.

#![cfg(test)]

use super::*;
use crate::codes::registry::Registry;

#[test]
fn texts_echo_and_errors_teach() {
    for text in Registry::builtin().examples().filter(|text| !text.contains("FILE")) {
        assert_eq!(text.parse::<SchemeSpec>().unwrap().to_string(), text);
    }
    let message = |text: &str| text.parse::<SchemeSpec>().unwrap_err().to_string();
    assert!(message("grups:s=1").contains("did you mean \"groups:s=1\""));
    for slip in ["groups s=1", "groups=1", " groups:s=1", "groups(s=1)"] {
        assert!(message(slip).ends_with("; did you mean \"groups:s=1\"?"), "{slip}");
    }
    let unknown = message("mds");
    assert!(unknown.contains("known: uncoded, groups, min-load,"), "{unknown}");
    assert!(unknown.len() < 240, "one can read it: {unknown}");
    assert!(message("groups").contains("give either s= (stragglers) or l= (groups)"));
    assert!(message("groups:s=1,l=2").contains("either"));
    assert!(message("groups:s=-1").contains("s=-1 is not a whole number"));
    assert!(message("groups:s=1,s=2").contains("given twice"));
    assert!(message("groups:s=1,rescue").contains("\"rescue\" is not a parameter of groups"));
    assert!(message("drop").contains("b= is missing"));
    assert!(message("drop:b=1,").contains("empty parameter"));
    assert!(message("groups: s=1").contains("a blank beside s"));
    assert!(message("uncoded:s=1").contains("not a parameter of uncoded"));
    assert!(message("graph:d=3,err=low").contains("err=low is not a number"));
    assert!(message("min-lod:s=1").contains("did you mean \"min-load:s=2\""));
    assert!(message("matrix").contains("the file is missing"));
    assert!(message("matrix:no-such-file").contains("no-such-file: "));
    assert!(message("interval:cuts=a,speeds=b").contains("either cuts="));
    assert!(message("interval:speeds=x,s=1").contains("units= is missing"));
}

/// The error of the code of `workers` workers that `text` names, whose `FILE` has the given
/// content.
fn with_file(text: &str, content: &str, workers: usize) -> Result<f64, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content).unwrap();
    let text = text.replace("FILE", file.path().to_str().unwrap());
    let code = text.parse::<SchemeSpec>().and_then(|spec| spec.code(workers));
    code.map(|code| code.facts().load).map_err(|error| error.to_string())
}

#[test]
fn files_give_codes_and_their_mistakes_are_named() {
    assert_eq!(with_file("matrix:FILE", "1,1,0\n0,1,1\n1,0,1\n", 3), Ok(2.0 / 3.0));
    assert_eq!(with_file("matrix:FILE,s=1", "1\r\n1\r\n", 2), Ok(1.0));
    assert_eq!(with_file("interval:cuts=FILE", "0,2\n2,4\n0,4", 3), Ok(1.0));
    assert_eq!(with_file("interval:speeds=FILE,s=1,units=8", "3,1,2,2", 4), Ok(0.75));
    assert_eq!(with_file("interval:speeds=FILE,l=2,units=8", "3\n1\n3\n1\n", 4), Ok(0.75));
    for (text, content, problem) in [
        ("matrix:FILE", "1,0\n0\n", "line 2 has 1 column, expected 2"),
        ("matrix:FILE", "1,0\n\n0,1\n", "line 2 is empty"),
        ("matrix:FILE", "", "the table is empty"),
        ("matrix:FILE", "1,0\n0,NaN\n", "line 2, column 2: \"NaN\" is not a finite number"),
        ("matrix:FILE", "1,0\n1e999,1\n", "line 2, column 1: \"1e999\""),
        ("matrix:FILE", "1,0\n0,1,\n", "line 2, column 3: \"\""),
        ("matrix:FILE", "1,1\n0,0\n", "line 2 is all zero"),
        ("matrix:FILE", "1,0,1\n2,0,1\n", "the coefficient 0.000000 instead of 1"),
        ("matrix:FILE", "1,0\n0,1\n1,1\n", "is for 3 workers, but the run has 2: say --workers 3"),
        ("matrix:FILE,s=2", "1,0\n0,1\n", "s must be at most 1"),
        ("interval:cuts=FILE", "0,1\n2,3\n", "connect 0 only with 1, not with 3"),
        ("interval:cuts=FILE", "0,1\n1,1\n", "worker 1 has the interval [1, 1)"),
        ("interval:cuts=FILE", "0,1\n1,2,3\n", "line 2 has 3 columns, expected 2"),
        ("interval:cuts=FILE", "0,1\n1.5,2\n", "line 2, column 1: \"1.5\" is not a cut point"),
        ("interval:speeds=FILE,s=1,units=8", "1,0", "column 2: \"0\" is not a speed"),
        ("interval:speeds=FILE,s=1,units=8", "1\n-2", "line 2, column 1: \"-2\""),
        ("interval:speeds=FILE,s=0,units=3", "9\n1", "take units="),
    ] {
        let error = with_file(text, content, 2).unwrap_err();
        assert!(error.contains(problem), "{text} {content:?}: {error}");
    }
}

#[test]
fn conditions_name_the_legal_values() {
    let build = |text: &str, n: usize| {
        text.parse::<SchemeSpec>().unwrap().code(n).map(|_| ()).unwrap_err().to_string()
    };
    assert!(build("groups:s=8", 8).contains("at most 7"));
    assert!(build("groups:l=0", 8).contains("from 1 to 8"));
    assert!(build("groups:l=9", 8).contains("from 1 to 8"));
    assert!(build("drop:b=8", 8).contains("from 1 to 7"));
    assert!(build("drop:b=0", 8).contains("uncoded"));
    assert!(build("uncoded", 0).contains("at least 1"));
    assert!(build("min-load:s=8", 8).contains("at most 7"));
    assert!(build("cyclic:s=8", 8).contains("at most 7"));
    assert!(build("cyclic:s=8", 4096).contains("min-load:s=8"));
    assert!(build("graph:d=9", 12).contains("d must be from 2 to 4"));
    assert!(build("graph:d=2", 2).contains("at least 3 workers"));
    assert!(build("graph:d=3,err=1.5", 12).contains("from 0 (exact) to below 1"));
    assert!("uncoded".parse::<SchemeSpec>().unwrap().scheme(8, 7, 0..1).is_err());
}
