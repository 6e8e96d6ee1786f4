//! What is left is told from steps that were seen.

#![cfg(test)]

use super::*;
use std::collections::BTreeSet;

fn decided(step: u64) -> StepSummary {
    StepSummary {
        scheme: "uncoded".into(),
        step,
        steps: 1000,
        seconds: 0.1,
        outcome: "applied".into(),
        late: BTreeSet::new(),
        answered: [4, 4],
    }
}

/// Steps of a checkpoint are not counted as done now, and each scheme is as fast as itself.
#[test]
fn what_is_left_is_told_from_steps_that_were_seen() {
    let mut progress = Progress::new(1000, [500, 400, 0]);
    assert_eq!((progress.bar.position(), progress.bar.length()), (900, Some(3000)));
    assert_eq!(progress.seconds_left(), None, "no step has been seen");
    progress.begin(0, "uncoded".into());
    progress.show(&decided(500));
    progress.runs[0] = Tempo { made: 510, timed: 10, seconds: 20.0 };
    assert_eq!(progress.seconds_left(), Some(2.0 * (490 + 600 + 1000) as f64));
    progress.runs[1] = Tempo { made: 410, timed: 10, seconds: 10.0 };
    assert_eq!(progress.seconds_left(), Some(2.0 * 490.0 + 590.0 + 1.5 * 1000.0));
    progress.begin(2, "queue:m=2".into());
    std::thread::sleep(Duration::from_millis(20));
    progress.show(&decided(0));
    assert_eq!(progress.bar.position(), 510 + 410 + 1);
    let third = progress.runs[2].seconds;
    assert!((0.02..10.0).contains(&third), "the time since the last step: {third}");
    for run in &mut progress.runs {
        run.made = 1000;
    }
    assert_eq!(progress.seconds_left(), Some(0.0));
}
