//! One word for one thing: those of docs/glossary.md, and fewer of the old ones.

use super::documents::documents;
use super::{CRATES, files, root, rust_files, shipped};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Words that documents, help and errors do not use; docs/glossary.md has what to say instead.
const OLD_WORDS: [&str; 31] = [
    "weave",
    "weaving",
    "woven",
    "loom",
    "fabric",
    "salvage",
    "wrong workers",
    "wrong worker",
    "wrong ones",
    "answer wrongly",
    "answers wrongly",
    "micro-steps",
    "micro-step",
    "trained in turn",
    "models in turn",
    "becomes of",
    "whoever",
    "whatever",
    "at hand",
    "is gone",
    "are gone",
    "anew",
    "twin",
    "twins",
    "spoilt",
    "sent home",
    "borne",
    "keeper",
    "foreseen",
    "foretold",
    "rival",
];

/// The old words in a text, as whole words, also where a line ends within one.
fn old_words(text: &str) -> Vec<&'static str> {
    let plain = text.to_lowercase();
    let plain = format!(" {} ", plain.split_whitespace().collect::<Vec<_>>().join(" "));
    let is_inside = |x: char| x.is_alphanumeric() || x == '_' || x == '-';
    let stands = |word: &&str| {
        plain.match_indices(*word).any(|(at, _)| {
            let before = plain[..at].chars().next_back();
            let after = plain[at + word.len()..].chars().next();
            !before.is_some_and(is_inside) && !after.is_some_and(is_inside)
        })
    };
    OLD_WORDS.iter().filter(|word| stands(word)).copied().collect()
}

/// The texts in double quotes of a file, as far as they are what it says: names are no sentences.
fn sentences(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(start) = rest.find('"') {
        // A character, not the beginning of a text.
        if rest[..start].ends_with('\'') {
            rest = &rest[start + 1..];
            continue;
        }
        let mut end = start + 1;
        while let Some(next) = rest[end..].chars().next() {
            match next {
                '"' => break,
                '\\' => end += 1 + rest[end + 1..].chars().next().map_or(0, char::len_utf8),
                _ => end += next.len_utf8(),
            }
        }
        let text = rest[start + 1..end.min(rest.len())].replace("\\\n", " ").replace("\\n", " ");
        if text.contains(' ') {
            found.push(text);
        }
        rest = rest.get(end + 1..).unwrap_or_default();
    }
    found
}

#[test]
fn documents_help_and_errors_use_the_words_of_the_glossary() {
    let mut found = Vec::new();
    // What is past may be told in its words.
    let past = ["docs/glossary.md", "CHANGELOG.md"];
    for (path, text) in documents() {
        if !past.iter().any(|page| path == Path::new(page)) {
            found.extend(old_words(&text).into_iter().map(|word| (path.clone(), word)));
        }
    }
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        for sentence in sentences(&shipped(&text)) {
            found.extend(old_words(&sentence).into_iter().map(|word| (path.clone(), word)));
        }
    }
    for help in ["cli/tests/pins/golden/help.txt", "lab/tests/pins/golden/help.txt"] {
        let shown = fs::read_to_string(root().join(help)).unwrap();
        found.extend(old_words(&shown).into_iter().map(|word| (help.into(), word)));
    }
    assert!(found.is_empty(), "old words, for which docs/glossary.md has others: {found:#?}");
    let glossary = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    assert_eq!(old_words("It is\nat hand, woven; micro_steps"), ["woven", "at hand"]);
    assert!(old_words(&glossary).len() >= 20);
}

/// How often the old words stand in the source, in comments and in names: lower these numbers with
/// every file that is renamed; none of them may rise.
const OLD_NAMES: [(&str, usize); 23] = [
    ("woven", 0),
    ("salvage", 0),
    ("hopes(", 0),
    ("whoever", 22),
    ("whatever", 56),
    ("at hand", 103),
    ("is gone", 3),
    ("becomes of", 1),
    ("twin", 0),
    ("spoil", 0),
    ("anew", 8),
    ("foretell", 0),
    ("foretold", 0),
    ("foreseen", 0),
    ("keeper", 0),
    ("inlet", 0),
    ("bereft", 0),
    ("somebody out", 0),
    ("stretch", 2),
    ("wrong workers", 0),
    ("answer wrongly", 0),
    // Most of them are the key `micro_steps` of plans and summaries, which stays.
    ("micro-step", 175),
    ("sent home", 1),
];

/// How often something stands in a text in small letters: as words, `as_words` or `AsWords`.
fn times(name: &str, text: &str) -> usize {
    let forms = ["_", ""].map(|between| name.replace([' ', '-'], between));
    let forms: BTreeSet<&str> = forms.iter().map(String::as_str).chain([name]).collect();
    forms.into_iter().map(|form| text.matches(form).count()).sum()
}

#[test]
fn old_names_become_fewer() {
    let rust = CRATES.into_iter().flat_map(rust_files);
    let source: String =
        rust.chain(files("python/codedgrad", "py")).map(|(_, text)| text.to_lowercase()).collect();
    for (name, most) in OLD_NAMES {
        let count = times(name, &source);
        assert!(count <= most, "`{name}` stands {count} times in the source, {most} before");
    }
    assert_eq!(times("at hand", "at hand, at_hand and atbhand; enum athand"), 3);
    assert_eq!(times("twin", "twins of a twin"), 2);
}
