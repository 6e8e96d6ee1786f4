//! A last word is heard once.

#![cfg(test)]

use super::*;

#[test]
fn a_last_word_is_heard_once() {
    let folder = tempfile::tempdir().unwrap();
    let word = LastWord::of(3, folder.path());
    assert_eq!(word.take(), None);
    fs::write(word.path(), "refused\nunits of a batch: 8 here, 4 in the run\nmore\n").unwrap();
    let why = "units of a batch: 8 here, 4 in the run".to_owned();
    assert_eq!(word.take(), Some(Final { how: EndKind::Refused, why }));
    assert_eq!(word.take(), None);
    fs::write(word.path(), "failed\nunits is 0: it must be 1 or more\n").unwrap();
    let failed = |said: &Final| said.how == EndKind::Failed && said.why.contains("units is 0");
    assert!(word.take().is_some_and(|said| failed(&said)));
    fs::write(word.path(), "ends\nRuntimeError: lr was changed\n").unwrap();
    assert!(word.take().is_some_and(|said| said.how == EndKind::Ends));
    fs::write(word.path(), "what").unwrap();
    assert_eq!(word.take(), None);
}
