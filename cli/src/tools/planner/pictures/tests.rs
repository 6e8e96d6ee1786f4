//! The work axis is as long as what it shows.

#![cfg(test)]

use super::*;
use codedgrad::codes::registry::Registry;
use codedgrad::delays::{Growth, Preset};
use codedgrad::sim::planner::{Question, plan};

/// The axis ends where the points do, and nothing lies on the legend.
#[test]
fn the_work_axis_is_as_long_as_what_it_shows() {
    let answers = |row: &Vec<f64>| row.iter().map(|delay| 1.0 + delay).collect();
    let rows: Vec<Vec<f64>> = Preset::Bursts.rows(8, 40, 1).iter().map(answers).collect();
    let growth = Growth::usual(Some(Preset::Bursts), 8);
    let queue = [*Registry::builtin().family("queue").unwrap()];
    let question = Question { families: &queue, ..Question::new(&rows, growth) };
    let found = plan(&question, &|_| ()).unwrap();
    let (least, most) = work_shown(&found);
    let works = || found.tried.iter().map(|point| point.work);
    let (fewest, greatest) = (works().fold(f64::INFINITY, f64::min), works().fold(0.0, f64::max));
    assert!(greatest < 2.5, "else this says nothing: {greatest}");
    assert!(least < fewest && most > greatest, "{least} {fewest} {greatest} {most}");
    assert!(most - least < 1.15 * (greatest - fewest) + 0.1, "{least} {most}");
    let svg = time_against_work(&found).unwrap();
    let marks = svg.split("<circle cx=\"").skip(1);
    let height = |mark: &str| mark.split('"').nth(2).unwrap().parse::<i32>().unwrap();
    let (legend, dots): (Vec<i32>, Vec<i32>) = marks.map(height).partition(|y| *y == LEGEND);
    assert_eq!(legend.len(), 4, "a mark for each word: {svg}");
    assert!(dots.len() > 5 && dots.iter().all(|y| *y > LEGEND + 10), "{svg}");
}
