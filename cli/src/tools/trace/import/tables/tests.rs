//! Formats are told by their headers, and more.

#![cfg(test)]

use super::*;

fn found(header: &str) -> Result<(Format, Vec<usize>), String> {
    let header: Vec<String> = header.split(',').map(str::to_owned).collect();
    let small: Vec<String> = header.iter().map(|name| name.to_lowercase()).collect();
    recognised(&header, &small)
}

#[test]
fn formats_are_told_by_their_headers() {
    for (header, workers) in [
        ("round,w0,w1", vec![1, 2]),
        ("step,rank_0,rank_1", vec![1, 2]),
        ("Step,Rank 0,Rank 1", vec![1, 2]),
        (",0,1", vec![1, 2]),
        ("step,gpu-9,gpu-12", vec![1, 2]),
        ("Step,run1 - s,run1 - s__MIN,run1 - s__MAX,run2 - s,run2 - s__MIN", vec![1, 4]),
        ("Wall time,Step,node-a1,node-a2", vec![2, 3]),
    ] {
        let found = found(header).unwrap_or_else(|problem| panic!("{header}: {problem}"));
        assert_eq!(found, (Format::Rounds, workers), "{header}");
    }
    assert_eq!(found("step,s0d0,s1d0"), Ok((Format::Stages, vec![1, 2])));
    assert_eq!(found("epoch,step_end,same_epoch,w0"), Ok((Format::Intervals, vec![3])));
}

#[test]
fn what_does_not_fit_is_named() {
    let message = |header: &str| found(header).unwrap_err();
    assert!(message("node,start_day,end_day").contains("column 1 is named \"node\""));
    assert!(message("step,rank,ms").contains("import --long step,rank,ms"));
    assert!(message("step,step_end").contains("no column is a worker's among step, step_end"));
    assert!(message("step,w0,s0d0").contains("others by stage and rank"));
    assert!(message("0.5,0.25").contains("it may be a trace already"));
    assert!(message("step,w0,loss").contains("column 3 is named \"loss\""));
}

#[test]
fn a_star_stands_for_anything_anywhere() {
    let header = ["a1 - s", "a1 - s__MIN", "b1 - s", "Loss"].map(str::to_owned);
    let columns = |choice| chosen(&header, choice);
    assert_eq!(columns("* - s"), Ok(vec![0, 2]));
    assert_eq!(columns("a*s, *1 *"), Ok(vec![0, 2]));
    assert_eq!((columns("loss"), columns("a1 - s__MIN")), (Ok(vec![3]), Ok(vec![1])));
    assert!(columns("c*").unwrap_err().contains("no column is named \"c*\""));
    assert_eq!(called(&[header[0].clone(), header[2].clone()]), ["a1", "b1"]);
}
