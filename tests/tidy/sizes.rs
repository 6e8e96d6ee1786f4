//! How much there may be of what a reader has to hold in the head.

use super::{CRATES, ROOMS, files, root, rust_files, shipped, without_tests};
use std::collections::BTreeMap;
use std::fs;

/// How many there are, which is how many there may be: who comes below lowers the number here.
const CEILINGS: [(&str, usize); 5] = [
    // Of `Transport`, `Link`, and of what the transport's parts tell each other.
    ("methods and variants of messages", 153),
    // Its parts decide, and it carries out.
    ("methods of the engine", 44),
    ("functions over 80 lines", 13),
    // Tables and formulas in documentation, texts of `--help`: rustfmt cannot break them.
    ("lines over 100 columns", 58),
    ("statements that give more than two values to as many names", 0),
];

/// Comments that say why, lines of them per 1,000 lines of code, which may only become more: where
/// code reads as if it could be simpler, the next engineer asks.
const REASONS: [(&str, usize); 14] = [
    ("src/codes", 4),
    ("src/delays", 3),
    ("src/doctor", 5),
    ("src/gpu", 18),
    ("src/mesh", 4),
    ("src/schedulers", 41),
    ("src/sim", 3),
    ("src/sums", 27),
    ("src/train", 7),
    ("src/transport", 28),
    ("shell/src", 8),
    ("cli/src", 8),
    ("lab/src", 5),
    ("python/src", 5),
];

/// Sees that there are no more of these than before.
fn holds(what: &str, found: &[String]) {
    let (_, most) = CEILINGS.into_iter().find(|(name, _)| *name == what).unwrap();
    assert!(found.len() <= most, "{} {what}, {most} before:\n{}", found.len(), found.join("\n"));
}

/// The bodies of the items of a text that stand at its left edge and begin with these words, with
/// their names; `pub` or not.
fn bodies<'a>(text: &'a str, begins: &str) -> Vec<(&'a str, &'a str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(begins) {
        let line = text[..at].rsplit('\n').next().unwrap();
        if !(line.is_empty() || line.starts_with("pub") && line.ends_with(' ')) {
            continue;
        }
        let rest = &text[at + begins.len()..];
        let name = rest.split(|x: char| !x.is_alphanumeric()).next().unwrap();
        // Without an end it is declared elsewhere, or in one line.
        if let Some(end) = rest.find("\n}\n") {
            found.push((name, &rest[..end]));
        }
    }
    found
}

fn body<'a>(text: &'a str, kind: &str, name: &str) -> &'a str {
    let found = bodies(text, kind).into_iter().find(|(its, _)| *its == name);
    found.unwrap_or_else(|| panic!("no {kind}{name}")).1
}

fn methods(body: &str) -> usize {
    body.matches("\n    fn ").count()
}

fn variants(body: &str) -> usize {
    let is_one = |line: &&str| {
        let word = line.strip_prefix("    ").unwrap_or_default();
        word.starts_with(|first: char| first.is_ascii_uppercase())
    };
    body.lines().filter(is_one).count()
}

fn read(file: &str) -> String {
    shipped(&fs::read_to_string(root().join(file)).unwrap())
}

/// What the driver of a scheme has to know stays small: methods, events, what a simulator may skip,
/// and the vote.
#[test]
fn a_scheme_is_small() {
    let scheme = read("src/codes/sequential/scheme.rs");
    let own = methods(body(&scheme, "trait ", "Scheme"));
    assert!((1..=12).contains(&own), "{own} methods");
    let events = variants(body(&scheme, "enum ", "RoundEvent"));
    let skips = methods(body(&scheme, "trait ", "FastForward"));
    let vote = read("src/codes/vote.rs");
    let verifier = body(&vote, "impl ", "Verifier").matches("\n    pub fn ").count();
    assert!(events > 0 && skips > 0 && verifier > 0, "{events}, {skips}, {verifier}");
    assert!(own + events + skips + verifier <= 30, "{own}, {events}, {skips}, {verifier}");
    // A method of the trait that can be left out is there for three schemes at least.
    let codes = rust_files("src/codes");
    for (at, _) in scheme.match_indices(") -> Option<&mut dyn FastForward> {") {
        assert!(scheme[..at].ends_with("fn fast_forward(&mut self"), "a second such method");
    }
    let told = |text: &str| shipped(text).matches("    fn fast_forward(&mut self)").count();
    assert!(codes.iter().map(|(_, text)| told(text)).sum::<usize>() > 3);
}

/// Who changes the protocol reads all of these.
#[test]
fn a_transport_is_small_and_has_few_messages() {
    let transport = read("src/transport/mod.rs");
    let methods = |name| methods(body(&transport, "trait ", name));
    assert!((1..=8).contains(&methods("Transport")), "{} methods", methods("Transport"));
    assert!((1..=9).contains(&methods("Link")), "{} methods", methods("Link"));
    let mut all = Vec::new();
    for name in ["Transport", "Link"] {
        all.extend((0..methods(name)).map(|_| format!("a method of {name}")));
    }
    let messages =
        ["Order", "Notice", "ToWorker", "FromWorker", "PeerMessage", "Command", "Event", "Effect"];
    for (path, text) in ["src/transport", "src/sums"].into_iter().flat_map(rust_files) {
        for (name, body) in bodies(&shipped(&text), "enum ") {
            if messages.iter().any(|end| name.ends_with(end)) {
                let variant = format!("a variant of {name} in {}", path.display());
                all.extend(std::iter::repeat_n(variant, variants(body)));
            }
        }
    }
    assert!(all.len() > 60, "only {} were found", all.len());
    holds("methods and variants of messages", &all);
}

/// A part of the engine or of the sums is a machine of its own, not more of a large one.
#[test]
fn types_have_few_methods() {
    let mut by_type: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in ["src/schedulers", "src/sums"].into_iter().flat_map(rust_files) {
        for (name, body) in bodies(&shipped(&text), "impl ") {
            let is_method = |line: &&str| {
                line.strip_prefix("    ").is_some_and(|line| {
                    line.starts_with("fn ") || line.starts_with("pub") && line.contains(" fn ")
                })
            };
            let methods = body.lines().filter(is_method);
            let methods = methods.map(|line| format!("{line} {}", path.display()));
            by_type.entry(name.to_owned()).or_default().extend(methods);
        }
    }
    let engine = by_type.remove("Engine").unwrap_or_default();
    assert!(engine.len() > 20, "only {} were found", engine.len());
    holds("methods of the engine", &engine);
    assert!(by_type["CoordinatorSums"].len() > 20, "the largest are among them");
    for (name, methods) in by_type {
        assert!(methods.len() <= 30, "{name} has {}:\n{}", methods.len(), methods.join("\n"));
    }
}

#[test]
fn files_stay_short() {
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        let lines = shipped(&text).lines().count();
        assert!(lines <= 720, "{}: {lines} lines", path.display());
    }
    let mut long = Vec::new();
    for (path, text) in ROOMS.into_iter().flat_map(rust_files) {
        let wide = text.lines().filter(|line| line.chars().count() > 100);
        long.extend(wide.map(|line| format!("{}: {line}", path.display())));
        assert!(
            text.starts_with("//!") || text.starts_with("#![doc"),
            "{} does not say what it is",
            path.display()
        );
    }
    holds("lines over 100 columns", &long);
    let architecture = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    assert!(architecture.lines().count() <= 100);
}

#[test]
fn the_python_package_has_short_files_and_keeps_privates_private() {
    for (path, text) in files("python/codedgrad", "py") {
        let lines = text.lines().count();
        assert!(lines <= 700, "{}: {lines} lines", path.display());
        assert!(text.starts_with("\"\"\""), "{} does not say what it is", path.display());
        // What lies below a `Run` is for `_core/run.py` alone: others take it as they are given it.
        let reads = text.lines().find(|line| line.contains("run._"));
        assert_eq!(reads, None, "{}", path.display());
    }
}

/// The functions of a file that have a body, by their first lines, and of how many lines they are.
fn functions(code: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let declared = line.trim_start();
        let begins = ["fn ", "pub ", "pub(", "const fn ", "async fn ", "unsafe fn "];
        if !begins.iter().any(|begin| declared.starts_with(begin)) || !declared.contains("fn ") {
            continue;
        }
        let end = format!("{}}}", &line[..line.len() - declared.len()]);
        let signature = lines[at..].iter().find(|line| line.ends_with(['{', ';', '}']));
        if signature.is_some_and(|line| line.ends_with('{')) {
            let length = lines[at..].iter().take_while(|line| **line != end).count() + 1;
            found.push((declared, length));
        }
    }
    found
}

#[test]
fn functions_become_shorter() {
    let mut seen = 0;
    let mut long = Vec::new();
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        for (declared, lines) in functions(&shipped(&text)) {
            seen += 1;
            if lines > 80 {
                long.push(format!("{}: {lines} lines: {declared}", path.display()));
            }
        }
    }
    assert!(seen > 3000, "only {seen} were found");
    holds("functions over 80 lines", &long);
    let example = "trait T {\n    fn a(\n    );\n    fn b() {\n        1;\n    }\n}\nfn c() {}\n";
    assert_eq!(functions(example), [("fn b() {", 3)]);
}

/// What two programs need is in `shell`, and nothing of it is copied.
#[test]
fn no_function_is_there_twice() {
    const LINES: usize = 10;
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        let code = shipped(&text);
        for (declared, lines) in functions(&code) {
            let at = declared.as_ptr() as usize - code.as_ptr() as usize;
            let body: Vec<&str> =
                code[at..].lines().skip(1).take(lines.saturating_sub(2)).map(str::trim).collect();
            if body.len() >= LINES {
                let place = format!("{}: {declared}", path.display());
                places.entry(body.join("\n")).or_default().push(place);
            }
        }
    }
    assert!(places.len() > 1000, "only {} were found", places.len());
    for found in places.into_values() {
        assert_eq!(found.len(), 1, "one body:\n{}", found.join("\n"));
    }
}

/// The text in the brackets that a text begins with, and what comes behind them.
fn in_brackets(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    for (at, x) in text.char_indices() {
        match x {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text.starts_with('(').then(|| (&text[1..at], &text[at + 1..]));
        }
    }
    None
}

/// Parts between commas that are in no brackets.
fn parts(text: &str) -> usize {
    let mut depth = 0;
    let commas = text.chars().filter(|x| {
        match x {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        *x == ',' && depth == 0
    });
    commas.count() + usize::from(!text.trim_end().ends_with(','))
}

/// Statements that assign more than two values at once.
fn at_once(code: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut at = 0;
    for line in code.split_inclusive('\n') {
        let indent = line.len() - line.trim_start().len();
        let statement = &code[at + indent..];
        at += line.len();
        let tuples = statement.strip_prefix("let ").unwrap_or(statement);
        let assigned = in_brackets(tuples).and_then(|(names, rest)| {
            let (_, rest) = in_brackets(rest.strip_prefix(" =")?.trim_start())?;
            rest.starts_with(';').then(|| parts(names))
        });
        if assigned.is_some_and(|values| values > 2) {
            found.push(line.trim());
        }
    }
    found
}

#[test]
fn code_is_read_line_by_line() {
    let files: Vec<_> = CRATES.into_iter().flat_map(rust_files).collect();
    let all: Vec<String> = files.iter().map(|(_, text)| shipped(text)).collect();
    let found: Vec<String> = all.iter().flat_map(|code| at_once(code)).map(str::to_owned).collect();
    holds("statements that give more than two values to as many names", &found);
    let example = "  let (a, (b, c), d) =\n    (f(1, 2), (2, 3), 4);\n  (x, y) = (1, 2);\n";
    assert_eq!(at_once(example), ["let (a, (b, c), d) ="]);
}

/// Most fields of a struct, unless they are the flags of a command: what has more is a list of
/// state that belongs to several, whom nobody has named.
const FIELDS: usize = 15;

/// The structs of a file that have named fields: what is said above each, its name, and how many
/// fields.
fn structs(code: &str) -> Vec<(String, String, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let declared = line.trim_start();
        let indent = &line[..line.len() - declared.len()];
        let visibility = declared.split_once("struct ").map(|(before, _)| before.trim_end());
        let Some(visibility) = visibility.filter(|_| line.ends_with('{')) else { continue };
        if !visibility.is_empty() && !visibility.starts_with("pub") {
            continue;
        }
        let name = declared[visibility.len()..].trim_start().strip_prefix("struct ").unwrap();
        let name = name.split(|x: char| !x.is_alphanumeric()).next().unwrap();
        let end = format!("{indent}}}");
        // A help text may have empty lines, and ends of anything but of an item.
        let above: Vec<&str> =
            lines[..at].iter().rev().take_while(|line| **line != end).copied().collect();
        let is_field = |line: &&&str| {
            let deep = line.strip_prefix(indent).and_then(|rest| rest.strip_prefix("    "));
            deep.is_some_and(|field| {
                field.contains(':') && field.starts_with(|x: char| x.is_alphabetic() || x == '_')
            })
        };
        let fields =
            lines[at + 1..].iter().take_while(|line| **line != end).filter(is_field).count();
        found.push((above.concat(), name.to_owned(), fields));
    }
    found
}

#[test]
fn structs_have_at_most_15_fields() {
    let mut seen = 0;
    let mut large = Vec::new();
    for (path, text) in CRATES.into_iter().flat_map(rust_files) {
        for (above, name, fields) in structs(&shipped(&text)) {
            seen += 1;
            let flags = ["Args", "Parser"].iter().any(|derived| above.contains(derived));
            if fields > FIELDS && !flags {
                large.push((name, path.clone(), fields));
            }
        }
    }
    assert!(seen > 300, "only {seen} structs were found");
    assert!(large.is_empty(), "more than {FIELDS} fields: {large:#?}");
}

#[test]
fn code_says_why() {
    for (folder, least) in REASONS {
        let (mut reasons, mut code) = (0, 0);
        for (_, text) in rust_files(folder) {
            for line in
                without_tests(&text).lines().map(str::trim_start).filter(|line| !line.is_empty())
            {
                let is_doc = line.starts_with("///") || line.starts_with("//!");
                reasons += usize::from(line.starts_with("//") && !is_doc);
                code += usize::from(!line.starts_with("//"));
            }
        }
        let found = 1000 * reasons / code;
        assert!(found >= least, "{folder}: {found} lines of 1,000 say why, {least} before");
    }
}
