//! What documents say of the code, and of each other.

use super::root;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn every_dependency_is_explained() {
    let contributing = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    for manifest in ["Cargo.toml", "shell/Cargo.toml", "cli/Cargo.toml", "lab/Cargo.toml"] {
        let manifest = fs::read_to_string(root().join(manifest)).unwrap();
        let mut section = "";
        for line in manifest.lines() {
            if line.starts_with('[') {
                section = line;
            }
            let name = line.split([' ', '.']).next().unwrap_or_default();
            if section.ends_with("dependencies]") && line.contains('=') {
                assert!(
                    contributing.contains(name),
                    "CONTRIBUTING.md does not say why {name} is there"
                );
            }
        }
    }
}

/// Every document, by its path from the root.
pub(crate) fn documents() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for folder in ["", "docs", "docs/lab", "python", "examples/traces", "cli/tests/data/traces"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).unwrap();
                found.insert(path.strip_prefix(root()).unwrap().to_owned(), text);
            }
        }
    }
    assert!(found.len() >= 20, "only {} documents were found", found.len());
    found
}

#[test]
fn benchmarks_are_one_table_per_claim() {
    const WORDS_MOST: usize = 3500;
    let page = &documents()[Path::new("docs/benchmarks.md")];
    let words = page.split_whitespace().count();
    assert!(words <= WORDS_MOST, "{words} words: docs/lab/benchmarks.md is for the story");
}

/// Where a document's links lead: `[text](target)`, and `[name]: target` on a line of its own.
fn targets(text: &str) -> Vec<&str> {
    let inline = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    let defined = text.lines().filter_map(|line| {
        let (name, target) = line.strip_prefix('[')?.split_once("]: ")?;
        (!name.contains(']')).then_some(target)
    });
    inline.chain(defined).collect()
}

/// The names by which links reach a document's headings.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        kept.chars().filter(|x| x.is_alphanumeric() || ['-', '_'].contains(x)).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_between_documents_lead_somewhere() {
    let documents = documents();
    for (document, text) in &documents {
        for link in targets(text) {
            // Nothing is published: pages about it elsewhere do not exist.
            let dead = ["https://docs.rs/codedgrad", "https://docs.rs/crate/codedgrad"];
            let dead = dead.iter().any(|page| link.starts_with(page))
                || link.starts_with("https://pypi.org/project/codedgrad");
            assert!(!dead, "{} links to {link}, which is not published", document.display());
            if link.starts_with("http") {
                continue;
            }
            let (path, anchor) =
                link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
            let folder = document.parent().unwrap();
            let mut target = if path.is_empty() { document.clone() } else { folder.join(path) };
            while let Some(up) = target.iter().position(|part| part == "..") {
                target = target.iter().take(up - 1).chain(target.iter().skip(up + 1)).collect();
            }
            assert!(root().join(&target).exists(), "{} links to {link}", document.display());
            if let Some(anchor) = anchor {
                let found = documents
                    .get(&target)
                    .is_some_and(|text| anchors(text).iter().any(|heading| heading == anchor));
                assert!(found, "{} links to {link}, which has no such heading", document.display());
            }
        }
    }
    // A reference that is not defined is shown as it stands.
    for page in ["README.md", "python/README.md"] {
        let (document, text) = (Path::new(page), &documents[Path::new(page)]);
        let prose: String = text.split("```").step_by(2).collect();
        let uses = prose.split("][").skip(1).filter_map(|rest| rest.split(']').next());
        for name in uses.filter(|name| name.chars().all(|x| x.is_alphanumeric() || x == '-')) {
            let defined = text.lines().any(|line| line.starts_with(&format!("[{name}]: ")));
            assert!(defined || name.is_empty(), "{}: [{name}]", document.display());
        }
    }
}

#[test]
fn the_readme_is_short_and_shows_what_other_pages_test() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let readme = read("README.md");
    let words = readme.split_whitespace().count();
    assert!(words <= 1050, "{words} words, by `wc -w`");
    // Without tables and examples.
    let prose = readme.split("```").step_by(2).flat_map(str::lines);
    let prose = prose.filter(|line| !line.starts_with('|')).flat_map(str::split_whitespace);
    let words = prose.count();
    assert!(words <= 600, "{words} words of prose");
    let block = |text: &str| {
        let (_, block) = text.split_once("```diff\n").unwrap();
        block.split("```").next().unwrap().trim().to_owned()
    };
    assert_eq!(block(&readme), block(&read("docs/python.md")));
}

#[test]
fn what_is_said_of_the_version_is_true() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let manifest = read("Cargo.toml");
    let value = |key: &str| {
        let line = manifest.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap();
        line.split('"').nth(1).unwrap().to_owned()
    };
    assert!(read("CITATION.cff").contains(&format!("\nversion: {}\n", value("version"))));
    assert!(read("README.md").contains(&format!("Rust {} or later", value("rust-version"))));
}

#[test]
fn front_pages_link_to_nothing_beside_them() {
    // Where documentation is shown there are no files of the repository.
    for page in ["src/lib.rs", "shell/src/lib.rs", "cli/src/lib.rs", "lab/src/lib.rs"] {
        let text = fs::read_to_string(root().join(page)).unwrap();
        assert!(!text.contains("#![doc = include_str!"), "{page} shows another file");
        let front = text.lines().filter(|line| line.starts_with("//!"));
        for link in front.flat_map(|line| line.split("](").skip(1)) {
            assert!(link.starts_with("http"), "{page} links to {link}");
        }
    }
}
