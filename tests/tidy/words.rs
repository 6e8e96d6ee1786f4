//! One word for one thing: those of docs/glossary.md, and fewer of the old ones.

use super::documents::documents;
use super::{CRATES, files, root, rust_files, shipped};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Words that documents, help and errors do not use; docs/glossary.md has what to say instead.
const OLD_WORDS: [&str; 33] = [
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
    "passage",
    "passages",
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
const OLD_NAMES: [(&str, usize); 24] = [
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
    // The alias of `iterations()`, which goes in 0.2.
    ("passage", 2),
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

/// Words that say no thing when they stand alone, and that no ending tells.
const NOT_THINGS: [&str; 28] = [
    "Across", "Because", "Before", "Behind", "Beside", "Between", "Came", "Caught", "Found",
    "Given", "Gone", "Has", "Heard", "Held", "Kept", "Known", "Left", "Made", "Meant", "Seen",
    "Sent", "Shown", "Spent", "Taken", "Told", "Under", "Unfit", "Wrong",
];
/// Names that end like participles and are nouns; `Sealed` is how Rust calls such a trait.
const NOUNS: [&str; 8] =
    ["Finding", "Folding", "Recording", "Ring", "Sealed", "Setting", "Timing", "Training"];

/// The types of a file that others see, in the crate or outside.
fn public_types(code: &str) -> Vec<&str> {
    let types = code.lines().filter_map(|line| {
        let kinds = [" struct ", " enum ", " trait ", " type "];
        let (visibility, name) = kinds.iter().find_map(|kind| line.trim().split_once(kind))?;
        let is_public = visibility == "pub"
            || visibility.starts_with("pub(") && visibility.find(')') == Some(visibility.len() - 1);
        is_public.then(|| name.split(|x: char| !x.is_alphanumeric()).next().unwrap())
    });
    types.collect()
}

/// Whether a name is a participle alone, or another word that is no noun.
fn is_no_noun(name: &str) -> bool {
    let is_participle = name.ends_with("ed") || name.ends_with("ing");
    let is_one_word = name.chars().filter(|x| x.is_uppercase()).count() == 1;
    is_one_word && (is_participle && !NOUNS.contains(&name) || NOT_THINGS.contains(&name))
}

#[test]
fn types_are_named_by_nouns() {
    let files: Vec<_> = CRATES.into_iter().flat_map(rust_files).collect();
    let mut seen = BTreeSet::new();
    for (path, text) in &files {
        for name in public_types(&shipped(text)).into_iter().map(str::to_owned) {
            assert!(!is_no_noun(&name), "{}: say what {name} is", path.display());
            seen.insert(name);
        }
    }
    assert!(seen.len() > 500, "only {} were found", seen.len());
    assert!(NOUNS.iter().all(|noun| seen.contains(*noun)), "nouns that no type is named by");
    let example = "pub struct Told<'a>;\n  pub(crate) enum Summed {\npub(in super::super) type Came =\n\
                   struct Seen;\npub fn of(x: impl Made, type Kept) {\npub trait TermKind {";
    assert_eq!(public_types(example), ["Told", "Summed", "Came", "TermKind"]);
    let bad = ["Told", "Summed", "Sending", "Beside", "TermKind", "DecodedSum", "Ring"];
    let bad: Vec<&str> = bad.into_iter().filter(|name| is_no_noun(name)).collect();
    assert_eq!(bad, ["Told", "Summed", "Sending", "Beside"]);
}

/// Words that stand where a sentence should name a worker, a user or the run.
const NO_NOUNS: [&str; 4] = ["nobody", "somebody", "anybody", "everybody"];
/// How often they may stand in documents, help and messages, and in all other source: comments,
/// names and tests. Neither number may rise.
const NO_NOUNS_SHOWN: usize = 40;
const NO_NOUNS_BEHIND: usize = 250;

/// How often those words stand in a text.
fn no_nouns(text: &str) -> usize {
    let text = text.to_lowercase();
    let words = text.split(|x: char| !x.is_alphanumeric());
    words.filter(|word| NO_NOUNS.contains(word)).count()
}

/// All source, with its tests.
fn source() -> impl Iterator<Item = (PathBuf, String)> {
    let rust = CRATES.into_iter().chain(["tests", "cli/tests", "lab/tests"]);
    rust.flat_map(|folder| files(folder, "rs")).chain(files("python", "py"))
}

#[test]
fn sentences_name_who_acts() {
    let said = |text: &str| sentences(&shipped(text)).iter().map(|it| no_nouns(it)).sum::<usize>();
    let messages: usize =
        CRATES.into_iter().flat_map(rust_files).map(|(_, text)| said(&text)).sum();
    let pages: usize = documents().values().map(|text| no_nouns(text)).sum();
    let shown = messages + pages;
    assert!(shown <= NO_NOUNS_SHOWN, "{shown} times: name the worker, the user or the run");
    let behind: usize = source().map(|(_, text)| no_nouns(&text)).sum::<usize>() - messages;
    assert!(behind <= NO_NOUNS_BEHIND, "{behind} times in comments, names and tests");
    assert_eq!(no_nouns("Nobody is here, nobody_waits, and everybody's"), 3);
}

/// Sentences for which there are better ones: none of them may come back.
const REPLACED: [&str; 24] = [
    "have not answered after so long",
    "wait so much longer than they must",
    "of fewer than 20 little can be concluded",
    "until (1+mu) times the first answer",
    "0 for never, since those",
    "has cost it so many workers",
    "for those that fall behind, who take over",
    "for so long, since it may be started again",
    "whose workers are programs of others'",
    "who are started again when they die",
    "for ten good minutes all is forgotten",
    "is as good as SIGTERM",
    "or all of it (-vv)",
    "does not drop what",
    "never said that they hold",
    "all is decided, but",
    "has left it, as it said",
    "begins without the state of",
    "not as it was agreed",
    "it is the better one where you may",
    "every step once, late or not",
    "is planned without at once",
    "which is guessed to do for",
    "two lines record who is slow",
];

#[test]
fn replaced_sentences_do_not_come_back() {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = Vec::new();
    let shown = documents().into_iter().map(|(path, text)| (path, plain(&text)));
    let rust = CRATES.into_iter().flat_map(rust_files);
    // Sentences go over the ends of lines, in comments and in texts.
    let bare = |text: &str| {
        ["///", "//!", "//", "\\\n"].iter().fold(text.to_owned(), |text, it| text.replace(it, ""))
    };
    let comments = rust.map(|(path, text)| (path, plain(&bare(&text))));
    for (path, text) in shown.chain(comments) {
        let back = REPLACED.into_iter().filter(|sentence| text.contains(sentence));
        found.extend(back.map(|sentence| (path.clone(), sentence)));
    }
    assert!(found.is_empty(), "sentences that were replaced: {found:#?}");
}
