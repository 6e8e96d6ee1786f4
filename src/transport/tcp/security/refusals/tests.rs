//! Whom the coordinator refuses.

#![cfg(test)]

use super::*;

fn at(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn host(number: u32) -> IpAddr {
    IpAddr::from((0x0a00_0000 + number).to_be_bytes())
}

#[test]
fn the_first_of_each_host_are_said() {
    let mut refusals = Refusals::default();
    for number in 0..5 {
        assert_eq!(
            refusals.note(host(number), "no", at(0.0)),
            [format!("refused a call from 10.0.0.{number}: no")]
        );
    }
    assert_eq!(
        (refusals.due(), refusals.sum(at(100.0))),
        (None, None),
        "there is nothing to be summed up"
    );
    assert_eq!(refusals.note(host(0), "no", at(101.0)).len(), 1);
}

#[test]
fn a_flood_is_one_line_per_window() {
    let mut refusals = Refusals::default();
    let lines: Vec<String> = (0..10_000)
        .flat_map(|i| refusals.note(host(i % 2), "no", at(0.004 * f64::from(i))))
        .collect();
    assert_eq!(lines.len(), 6 + 3, "three of each host, and three windows that are over");
    assert!(
        lines[..6].iter().all(|line| line.starts_with("refused a call from 10.0.0.")),
        "{lines:?}"
    );
    assert_eq!(
        lines[7],
        "refused 2500 more calls within 10 s: 1250 from 10.0.0.0, 1250 from 10.0.0.1; the last \
         one: no"
    );
    assert_eq!((refusals.due(), refusals.sum(at(39.9))), (Some(at(40.0)), None));
    assert!(refusals.sum(at(40.0)).is_some() && refusals.due().is_none());
    // It has been quiet for a while: the next ones are said again.
    assert_eq!(refusals.note(host(0), "no", at(50.1)).len(), 1);
}

#[test]
fn however_many_hosts_there_are_a_window_has_so_many_lines() {
    let mut refusals = Refusals::default();
    let long = "é".repeat(10_000);
    let lines: Vec<String> =
        (0..100_000).flat_map(|i| refusals.note(host(i), &long, at(1.0))).collect();
    assert_eq!(lines.len(), LINES);
    assert!(lines.iter().all(|line| line.chars().count() < 850));
    assert!(refusals.said.len() <= HOSTS && refusals.hidden.len() <= HOSTS);
    let sum = refusals.sum(at(11.0)).unwrap();
    assert!(
        sum.starts_with("refused 99980 more calls within 10 s: 1 from 10.0.0.20, 1 from "),
        "{sum}"
    );
    assert!(sum.contains(", 99977 from other hosts; the last one: é"), "{sum}");
    // Those hosts are loud; one that is not is still heard.
    assert_eq!(refusals.note(host(20), "no", at(11.0)).len(), 0);
    assert_eq!(
        refusals.note(host(200_000), "no", at(11.0)).len(),
        0,
        "there are as many as are told apart"
    );
    assert_eq!(
        refusals.note(host(200_000), "no", at(31.1)).len(),
        2,
        "one that sums up, and its own"
    );
}
