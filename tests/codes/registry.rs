//! The registry: what it says of its families is true of them, and families of one's own take part.

use codedgrad::codes::registry::{
    ClosedForm, Family, Recipe, Registry, Space, Traits, WaitsFor, keyed,
};
use codedgrad::codes::{Groups, ParameterError, SchemeSpec};
use codedgrad::delays::{Growth, Preset};
use codedgrad::sim::planner::{Question, plan};

/// Workers that every example takes.
const WORKERS: usize = 12;

/// Every share is computed by so many workers.
const REPLICAS: Family = Family {
    name: "replicas",
    examples: &["replicas:r=2"],
    summary: "every share is computed by r workers or more",
    spaces: Some(|limits| vec![Space::of([keyed("r", 2..=limits.workers)])]),
    ..Family::new(|fields| {
        let replicas = fields.need("r")?;
        Ok(Recipe::code(move |workers| Groups::tolerating(workers, replicas.saturating_sub(1))))
    })
};

/// Whether a text can be made here: without a file of its user's, and in this build.
fn is_here(text: &str) -> bool {
    !text.contains("FILE") && (cfg!(feature = "berrut") || !text.contains("bacc"))
}

#[test]
fn traits_are_those_of_the_schemes() {
    for family in Registry::builtin().families() {
        for text in family.examples.iter().filter(|text| is_here(text)) {
            let spec = family.spec(text).unwrap();
            let (traits, facts) = (spec.traits(), spec.natural(WORKERS).unwrap());
            assert_eq!(spec.family(), family.name);
            assert_eq!(traits.delay, facts.delay > 0, "{text}");
            assert_eq!(traits.mixes, facts.mixture, "{text}");
            assert_eq!(traits.byzantine, facts.byzantine > 0, "{text}");
            assert_eq!(traits.byzantine, spec.byzantine() > 0, "{text}");
            assert_eq!(traits.one_round(), spec.code(WORKERS).is_ok(), "{text}");
            assert!(!facts.partial || traits.feedback, "{text}");
            assert_eq!(traits.pulls, facts.pulls, "{text}");
            let bounded = facts.error_max > 0.0 && !text.contains("rescale");
            assert_eq!(traits.approximate || traits.biased, bounded, "{text}");
        }
    }
}

#[test]
fn a_family_of_ones_own_is_read_planned_and_made() {
    let registry = Registry::default().with(REPLICAS).unwrap();
    let spec = registry.parse("replicas:r=3").unwrap();
    assert_eq!(spec.scheme(WORKERS, 12, 0..9).unwrap().facts().tolerance, 2);
    assert!("replicas:r=3".parse::<SchemeSpec>().is_err(), "it is in no other registry");
    let row = |row: Vec<f64>| row.into_iter().map(|delay| 1.0 + delay).collect();
    let rows: Vec<Vec<f64>> = Preset::Hotspot.rows(WORKERS, 30, 1).into_iter().map(row).collect();
    let also = [registry.parse("replicas:r=12").unwrap()];
    let question = Question {
        families: &registry.families()[registry.families().len() - 1..],
        also: &also,
        ..Question::new(&rows, Growth::usual(Some(Preset::Hotspot), WORKERS))
    };
    let found = plan(&question, &|_| ()).unwrap();
    let schemes: Vec<&str> = found.candidates.iter().map(|found| found.scheme.text()).collect();
    assert!(schemes.contains(&"uncoded") && schemes.contains(&"replicas:r=12"), "{schemes:?}");
    assert!(found.recommended.starts_with("replicas:r="), "{}", found.why);
}

/// A family without parameters has one text, its name, and is tried like any other, with its closed
/// form beside it, also where there are too few rounds to recommend it. A family whose axes are
/// empty is not tried.
#[test]
fn a_family_without_parameters_is_planned_by_its_name() {
    let pairs = Family {
        name: "pairs",
        examples: &["pairs"],
        summary: "two workers or more for every share",
        spaces: Some(|_| vec![Space::of([])]),
        ..Family::new(|_| {
            let form = |workers: usize| {
                let waits_for = WaitsFor::OneOfEach { groups: workers / 2 };
                Some(ClosedForm { waits_for, load: 2.0 / workers as f64, coverage: 1.0 })
            };
            Ok(Recipe::code(|workers| Groups::tolerating(workers, 1)).closed_form(form))
        })
    };
    let nothing = Family {
        name: "nothing",
        examples: &["nothing"],
        spaces: Some(|_| vec![Space::of([keyed("a", [1]), Vec::new()])]),
        ..pairs
    };
    for rounds in [5, 30] {
        let rows: Vec<Vec<f64>> =
            (0..rounds).map(|round| vec![1.0, 1.0, 9.0, f64::from(round) + 1.0]).collect();
        let growth = Growth::usual(None, 4);
        let question = Question { families: &[pairs, nothing], ..Question::new(&rows, growth) };
        let found = plan(&question, &|_| ()).unwrap();
        let schemes: Vec<&str> = found.candidates.iter().map(|found| found.scheme.text()).collect();
        assert!(schemes.contains(&"pairs") && schemes.len() == 2, "{schemes:?}");
        let pairs = found.candidates.iter().find(|found| found.scheme == "pairs").unwrap();
        assert!(pairs.closed_form.is_some_and(|time| time > 0.0), "{pairs:?}");
        assert!(pairs.time_per_job > 0.0, "{pairs:?}");
        assert!(rounds > 20 || found.recommended == "uncoded", "{}", found.why);
    }
}

#[test]
fn what_cannot_be_registered_or_read_says_why() {
    let with = |family| Registry::default().with(family).map(|_| ()).unwrap_err().to_string();
    assert!(with(Family { name: "groups", ..REPLICAS }).contains("registered already"));
    for name in ["", "a:b", "two words", "auto", "a|b", "-x", "Groups"] {
        assert!(with(Family { name, ..REPLICAS }).contains("no scheme's text can begin with"));
    }
    assert!(with(Family { examples: &[], ..REPLICAS }).contains("needs examples"));
    assert!(with(Family { examples: &["groups:s=1"], ..REPLICAS }).contains("needs examples"));
    let registry = Registry::default().with(REPLICAS).unwrap();
    let error = |text| registry.parse(text).map(|_| ()).unwrap_err().to_string();
    assert!(error("replica:r=2").contains("did you mean \"replicas:r=2\"?"));
    assert!(error("other").contains("sbacc, replicas"));
    assert!(error("replicas").contains("r= is missing; write it like replicas:r=2"));
    assert!(error("replicas:r=2,s=1").contains("\"s\" is not a parameter of replicas"));
    let byzantine = Traits { byzantine: true, ..Traits::NONE };
    assert!(with(Family { traits: byzantine, ..REPLICAS }).contains("traits that are not those"));
    let delay = Traits { delay: true, ..Traits::NONE };
    assert!(with(Family { traits: delay, ..REPLICAS }).contains("traits that are not those"));
    let spec = registry.parse("replicas:r=13").unwrap();
    assert!(matches!(spec.code(12), Err(ParameterError::TooManyStragglers { .. })));
}

/// `docs/schemes.md` is of builds with all families.
#[cfg(feature = "berrut")]
mod docs {
    use super::*;
    use std::fmt::Write as _;
    use std::fs;
    use std::path::Path;

    /// What is said of a family in `docs/schemes.md`.
    fn line(family: &Family) -> String {
        let texts: Vec<String> = family.examples.iter().map(|text| format!("`{text}`")).collect();
        let facts = family.spec(family.example()).and_then(|spec| spec.natural(WORKERS));
        let facts = facts.map_or_else(
            |_| "as the file says | |".into(),
            |facts| {
                let delay = match facts.delay {
                    0 => String::new(),
                    1 => "1 round".into(),
                    rounds => format!("{rounds} rounds"),
                };
                format!("{:.3} | {} | {delay}", facts.load, facts.tolerance)
            },
        );
        let (summary, planned) = (family.summary, if family.spaces.is_some() { "yes" } else { "" });
        format!("| {} | {summary} | {facts} | {planned} |\n", texts.join(", "))
    }

    /// `SCHEMES=update cargo test -p codedgrad --test codes schemes_md` writes the table again.
    #[test]
    fn schemes_md_has_every_family() {
        let mut table = String::from(
            "| text | what it does | load | stragglers | delay | tried by `plan` |\n\
         |---|---|---|---|---|---|\n",
        );
        for family in Registry::builtin().families() {
            let _ = write!(table, "{}", line(family));
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schemes.md");
        let text = fs::read_to_string(&path).unwrap();
        let start = text.find("| text |").unwrap();
        let end = start + text[start..].find("|\n\n").unwrap() + 2;
        if std::env::var_os("SCHEMES").is_some_and(|value| value == "update") {
            fs::write(&path, [&text[..start], &table, &text[end..]].concat()).unwrap();
            return;
        }
        assert_eq!(&text[start..end], table, "docs/schemes.md is out of date");
    }
}
