//! `codedgrad-lab berrut` as its users meet it.

use crate::program::{codedgrad, refused, text};
use serde_json::Value;
use std::fs;

fn berrut(arguments: &[&str]) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let output = codedgrad(folder.path(), &[&["berrut"], arguments, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout)
        .expect("one JSON object on standard output and nothing else")
}

fn list(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap()).collect()
}

#[test]
fn prints_the_contract() {
    let shown = berrut(&[
        "--function",
        "x",
        "--data-blocks",
        "4",
        "--workers",
        "9",
        "--stragglers",
        "2,5",
        "--encoder",
        "berrut",
    ]);
    for key in [
        "data_points",
        "worker_points",
        "relative_error",
        "located",
        "suspect",
        "decode_weights",
        "not_finite",
    ] {
        assert!(!shown[key].is_null(), "{key}");
    }
    assert_eq!((list(&shown["stragglers"]), list(&shown["byzantine"])), (vec![2, 5], vec![]));
    assert_eq!(
        (shown["corruption"].as_f64(), shown["secure"].as_bool()),
        (Some(10.0), Some(false))
    );
    assert_eq!(
        shown["worker_points"][0].as_f64(),
        Some(1.0),
        "points of the second kind without --secure"
    );
    let weights = shown["decode_weights"].as_array().unwrap();
    assert_eq!((weights.len(), weights[0].as_array().unwrap().len()), (4, 9));
    assert!(weights.iter().all(|row| row[2] == 0.0 && row[5] == 0.0));
    assert_eq!(weights[0][1].as_f64(), Some(1.0), "worker 1 holds block 0 as it is");
    assert!((0.001..0.3).contains(&shown["relative_error"].as_f64().unwrap()));
    assert_eq!(berrut(&["--seed", "3"]), berrut(&["--seed", "3"]));
    assert_ne!(
        berrut(&["--seed", "3"])["relative_error"],
        berrut(&["--seed", "4"])["relative_error"]
    );
}

#[test]
fn wrong_workers_are_located_and_left_out() {
    let common = [
        "--data-blocks",
        "8",
        "--workers",
        "32",
        "--stragglers",
        "1,9,30",
        "--byzantine",
        "3,17-18",
    ];
    let defended = berrut(&[&common[..], &["--secure", "--function", "mlp"]].concat());
    assert_eq!(list(&defended["located"]), [3, 17, 18]);
    assert_eq!(
        (defended["suspect"].as_bool(), defended["capacity"].as_u64()),
        (Some(false), Some(5))
    );
    assert!(defended["scores"].as_array().unwrap().iter().all(|t| t.as_f64().unwrap() > 4.0));
    assert!(defended["sigma2"].as_f64().unwrap() > 0.0 && defended["q"].as_f64().unwrap() >= 1.0);
    let undefended = berrut(&[&common[..], &["--function", "mlp"]].concat());
    let error = |shown: &Value| shown["relative_error"].as_f64().unwrap();
    assert!(error(&undefended) > 1.0 && error(&defended) < 0.15);
    assert_eq!(list(&undefended["located"]), [0u64; 0]);
    let fewer =
        berrut(&[&common[..], &["--secure", "--function", "mlp", "--max-byzantine", "2"]].concat());
    assert_eq!(fewer["suspect"].as_bool(), Some(true));
    let nobody = berrut(&["--secure"]);
    assert_eq!((list(&nobody["located"]), nobody["suspect"].as_bool()), (vec![], Some(false)));
}

#[test]
fn polynomials_are_exact() {
    for locator in ["pgz", "music"] {
        let shown = berrut(&[
            "--function",
            "gram",
            "--stragglers",
            "1",
            "--byzantine",
            "4-6",
            "--secure",
            "--decoder",
            "lsq",
            "--dimension",
            "7",
            "--locator",
            locator,
        ]);
        assert_eq!(
            (shown["encoder"].as_str(), list(&shown["located"])),
            (Some("lagrange"), vec![4, 5, 6])
        );
        assert!(shown["relative_error"].as_f64().unwrap() < 1e-10);
    }
    let shown = berrut(&["--function", "x", "--decoder", "lsq", "--stragglers", "0-9"]);
    assert!(
        shown["relative_error"].as_f64().unwrap() < 1e-10,
        "a line needs four answers of sixteen"
    );
}

#[test]
fn answers_that_are_not_finite_are_named() {
    let shown = berrut(&["--byzantine", "4,9", "--corruption", "inf", "--secure"]);
    assert_eq!((list(&shown["not_finite"]), list(&shown["located"])), (vec![4, 9], vec![]));
    assert!(shown["relative_error"].as_f64().unwrap() < 0.3);
}

#[test]
fn input_that_cannot_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &[&str]); 16] = [
        (&["--data-blocks", "5", "--workers", "4"], &["5 data blocks on 4 workers"]),
        (&["--stragglers", "1,1"], &["--stragglers 1,1", "twice"]),
        (&["--stragglers", "5,2"], &["2 is listed after 5"]),
        (&["--byzantine", "16"], &["no worker 16: workers are 0 to 15"]),
        (&["--byzantine", "x"], &["not a worker's number"]),
        (
            &["--stragglers", "1-4", "--byzantine", "4"],
            &["worker 4", "--stragglers", "--byzantine"],
        ),
        (&["--locator", "gp"], &["--secure"]),
        (&["--max-byzantine", "1"], &["--secure"]),
        (&["--force"], &["--secure"]),
        (&["--dimension", "5"], &["--dimension", "lsq"]),
        (&["--corruption", "-1"], &["--corruption"]),
        (&["--corruption", "nan"], &["--corruption NaN"]),
        (&["--secure", "--max-byzantine", "6"], &["A=6", "n=16", "1.5 K = 6", "A=5"]),
        (
            &["--secure", "--max-byzantine", "5", "--locator", "pgz", "--dimension", "8"],
            &["2A + s = 10", "N - m = 8", "A=4"],
        ),
        (&["--stragglers", "0-15"], &["at least 1"]),
        (&["--decoder", "lsq", "--dimension", "17"], &["m from 1 to 16"]),
    ];
    for (arguments, needles) in cases {
        let arguments = [&["berrut"], arguments].concat();
        assert!(refused(folder.path(), &arguments, needles).stdout.is_empty(), "{arguments:?}");
    }
    let forced = berrut(&["--secure", "--max-byzantine", "6", "--force"]);
    assert!(forced["relative_error"].as_f64().unwrap().is_finite());
}

#[test]
fn words_say_what_happened() {
    let folder = tempfile::tempdir().unwrap();
    let say = |arguments: &[&str]| {
        text(&codedgrad(folder.path(), &[&["berrut"], arguments].concat()).stdout)
    };
    let defended = say(&["--workers", "20", "--byzantine", "3", "--stragglers", "7", "--secure"]);
    for needle in [
        "straggler",
        "located: wrong",
        "had the Byzantine workers been known",
        "Located worker 3",
        "could be located",
    ] {
        assert!(defended.contains(needle), "{needle}: {defended}");
    }
    assert!(say(&["--byzantine", "3"]).contains("WRONG, and used"));
    assert!(say(&["--workers", "9"]).contains("holds block 0 as it is"));
    assert!(
        say(&["--workers", "24", "--byzantine", "3,9", "--secure", "--max-byzantine", "1"])
            .contains("SUSPECT")
    );
}

#[test]
fn sweeps_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = [
        "berrut",
        "--function",
        "square",
        "--data-blocks",
        "2",
        "--workers",
        "11",
        "--sweep",
        "--out",
        "pictures",
        "--json",
    ];
    let output = codedgrad(folder.path(), &sweep);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let read =
        |key: &str| fs::read_to_string(folder.path().join(shown[key].as_str().unwrap())).unwrap();
    let (csv, svg) = (read("csv"), read("svg"));
    assert!(csv.starts_with("panel,series,x,least,median,largest\n") && svg.contains("no defence"));
    let median = |panel: &str, series: &str, x: &str| {
        let start = format!("{panel},{series},{x},");
        let line = csv
            .lines()
            .find(|line| line.starts_with(&start))
            .unwrap_or_else(|| panic!("{start} in {csv}"));
        line.split(',').nth(4).unwrap().parse::<f64>().unwrap()
    };
    assert!(
        median("workers", "spline encoder + spline decoder", "32")
            < median("workers", "spline encoder + spline decoder", "4")
    );
    assert!(
        median("stragglers", "spline encoder + spline decoder", "0")
            < median("stragglers", "spline encoder + spline decoder", "6")
    );
    assert!(
        median("attack", "no defence", "1000")
            > 100.0 * median("attack", "located and left out", "1000")
    );
}
