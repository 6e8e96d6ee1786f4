//! Events are lines of JSON.

#![cfg(test)]

use super::*;
use codedgrad::ids::Worker;

#[test]
fn events_are_lines_of_json() {
    let step = Event::Step(StepSummary {
        scheme: "groups:s=1".into(),
        step: 3,
        steps: 10,
        seconds: 0.25,
        outcome: "applied".into(),
        late: [Worker(2)].into(),
        answered: [3, 4],
    });
    let line = serde_json::to_string(&step).unwrap();
    assert_eq!(
        line,
        r#"{"event":"step","scheme":"groups:s=1","step":3,"steps":10,"seconds":0.25,"#.to_owned()
            + r#""outcome":"applied","late":[2],"answered":[3,4]}"#
    );
    assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), step);
    let left = RunEvent { worker: Some(3), told: true, ..RunEvent::default() };
    let line = serde_json::to_string(&Event::Happened(left.clone().into())).unwrap();
    assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), Event::Happened(left.into()));
    let over = Event::Over { outcome: Outcome::Finished, connected: vec![0, 2] };
    let line = serde_json::to_string(&over).unwrap();
    assert_eq!(line, r#"{"event":"over","outcome":"finished","connected":[0,2]}"#);
}
