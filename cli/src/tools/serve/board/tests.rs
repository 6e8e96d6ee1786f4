//! What the board shows.

#![cfg(test)]

use super::*;
use codedgrad::ids::{Round, Step};

#[test]
fn what_others_say_moves_no_cursor() {
    let evil = "evil\n\x1b[2Jworker 0\u{9b}31m\r\t\u{202e}\u{7f}";
    let workers = vec![tcp::WorkerStatus { identity: evil.into(), ..tcp::WorkerStatus::default() }];
    let network = tcp::TcpStatus { workers, ..tcp::TcpStatus::default() };
    let board = Board::new(evil, 1, Arc::new(Mutex::new(network)));
    board.begins(0, 1);
    board.fault(Worker(0), evil);
    let table = board.shown().table(Width::ENDLESS);
    let strange = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
    assert!(!table.contains(strange), "{table:?}");
    assert_eq!(
        table.lines().count(),
        5,
        "what there is to say, the last fault, a heading and one worker: {table}"
    );
    let shown = r"evil\n\u{1b}[2Jworker 0\u{9b}31m\r\t\u{202e}\u{7f}";
    assert_eq!(table.matches(shown).count(), 3, "{table}");
}

#[test]
fn it_is_said_why_a_worker_is_not_there() {
    let worker =
        |connected, epoch| tcp::WorkerStatus { connected, epoch, ..tcp::WorkerStatus::default() };
    let workers = vec![
        worker(true, 1),
        worker(false, 0),
        worker(false, 2),
        worker(false, 2),
        worker(false, 2),
    ];
    let network = tcp::TcpStatus { workers, ..tcp::TcpStatus::default() };
    let board = Board::new("auto", 5, Arc::new(Mutex::new(network)));
    let happened = |what| {
        board.happened(&Incident { step: Step(1), round: Round(1), what });
    };
    let lost = |worker| IncidentKind::Lost { worker, reason: "it hung up".into() };
    happened(lost(Worker(0)));
    happened(IncidentKind::Joined { worker: Worker(0), again: true });
    happened(lost(Worker(2)));
    happened(IncidentKind::LetGo { worker: Worker(3), leaves: true });
    happened(lost(Worker(3)));
    happened(IncidentKind::LetGo { worker: Worker(4), leaves: false });
    let table = board.table(Width::ENDLESS);
    assert!(table.contains("auto: the run has not begun: 1 of 5 workers are there\n"), "{table}");
    assert!(!table.contains("step 0 of 0"), "{table}");
    let states: Vec<&str> = table.lines().rev().take(5).collect();
    for (line, state) in
        states.iter().rev().zip(["connected", "not come yet", "lost", "left", "drained"])
    {
        assert!(line.contains(state), "{state}: {table}");
    }
}

#[test]
fn the_status_fits_the_terminal() {
    let worker = |identity: &str, connected| tcp::WorkerStatus {
        identity: identity.into(),
        connected,
        epoch: 2,
        silent_seconds: 0.4,
        ..tcp::WorkerStatus::default()
    };
    let workers = vec![worker("host-with-a-long-name/0", true), worker("host1/1", false)];
    let network = tcp::TcpStatus { workers, ..tcp::TcpStatus::default() };
    let board = Board::new("groups:s=1", 2, Arc::new(Mutex::new(network)));
    board.begins(31, 300);
    board.fault(Worker(1), "it has not answered for 15 s: it is given up until it comes back");
    let at = |columns: usize| {
        let text = board.table(Width::of(columns));
        assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
        format!("{columns} columns:\n{text}")
    };
    insta::assert_snapshot!([60, 80, 120].map(at).join("\n"));
}

#[test]
fn of_every_family_it_is_known_whether_it_tolerates_somebody() {
    let (mut yes, mut no) = (0, 0);
    for family in families::registry().families() {
        for example in family.examples {
            let Ok(spec) = families::scheme(example) else { continue };
            let Ok(scheme) = spec.scheme(12, 48, 0..100) else { continue };
            let found = Tolerant::default().is(example, 12, 48);
            assert_eq!(found, scheme.facts().tolerance > 0, "{example}");
            *if found { &mut yes } else { &mut no } += 1;
        }
    }
    assert!(yes > 5 && no > 0, "{yes} tolerate a worker, {no} do not");
}
