//! How findings read, and which of a worker's losses make one.

#![cfg(test)]

use super::*;

fn words(problem: Problem) -> String {
    Finding { problem, costs: None }.to_string()
}

#[test]
fn findings_are_told_in_a_sentence() {
    let since = Moment { round: 61, step: 60, seconds: 3792.5 };
    let slower = |because| Problem::SlowerSince { worker: 5, since, times: 1.293, because };
    assert_eq!(
        words(slower(Some(SlowCause::Computing))),
        "worker 5 has computed 1.29 times as long since step 60 (1:03:12)"
    );
    assert!(words(slower(Some(SlowCause::Elsewhere))).contains("outside its computation"));
    let (computing, elsewhere) = (Some(SlowCause::Computing), Some(SlowCause::Elsewhere));
    let slow = vec![(2, 1.06, elsewhere), (3, 1.1, computing), (4, 1.2, computing)];
    assert_eq!(
        words(Problem::SlightlySlow { workers: slow.clone() }),
        "workers 2-4 take 1.06 to 1.20 times as long as the median; workers 3, 4: computation; \
         worker 2: network, queue or host, not computation"
    );
    assert_eq!(
        words(Problem::SlightlySlow { workers: slow[..1].to_vec() }),
        "worker 2 takes 1.06 times as long as the median (network, queue or host, not \
         computation)"
    );
    let hosts = ["gpu-9", "gpu-12", "gpu-45"].map(str::to_owned);
    let one = Finding {
        problem: Problem::ConstantlySlow { workers: vec![1], times: 1.5, coded: false },
        costs: None,
    };
    assert!(one.told(&hosts).to_string().starts_with("worker gpu-12 takes 1.50 times"));
    assert!(one.told(&["0".into(), "1".into()]).to_string().starts_with("worker 1 takes"));
    let dead = |since| words(Problem::DeadWorkers { workers: vec![0, 3], since, answered: false });
    assert!(dead(Some(since)).starts_with("workers 0, 3 have not answered since step 60"));
    assert!(dead(None).contains("since the connection was lost"));
    let events = BTreeMap::from([("lost".into(), 2), ("resume".into(), 1)]);
    let gap = TimeGap { step: 90, seconds: 100.04, events };
    assert_eq!(
        words(Problem::LostTime { effective: 0.6002, gap }),
        "60.0 % of the wall time went into steps; the longest gap is 100.0 s before step 90 \
         (lost x 2, resume)"
    );
}

#[test]
fn who_was_lost_last_is_dead_and_who_is_lost_often_is_named() {
    let event = |worker, kind: &str| RunEvent { worker, kind: kind.into(), ..RunEvent::default() };
    let mut events = vec![event(Some(0), "lost"), event(Some(9), "lost"), event(None, "stuck")];
    events.extend([event(Some(2), "lost"), event(Some(2), "join")]);
    for _ in 0..3 {
        events.extend([event(Some(1), "lost"), event(Some(1), "join")]);
    }
    let found = WorkerEvents::of(&events.iter().collect::<Vec<_>>(), 4);
    assert_eq!((found.lost, found.came_back, found.flapping), (vec![0], vec![2], vec![(1, 3)]));
    assert_eq!(words(Problem::CameBack { workers: vec![2] }), "worker 2 was lost, and came back");
}
