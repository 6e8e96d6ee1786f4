//! What the doctor says, and in which form.

#![cfg(test)]

use super::*;
use crate::Cli;
use clap::Parser;
use codedgrad::doctor::{Moment, Problem};

/// Words of a command line as a shell takes them; quotes are single ones.
fn split(command: &str) -> Vec<String> {
    let (mut words, mut quoted) = (vec![String::new()], false);
    let mut letters = command.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            '\\' if !quoted => words.last_mut().unwrap().extend(letters.next()),
            letter => words.last_mut().unwrap().push(letter),
        }
    }
    words
}

#[test]
fn every_command_to_try_parses() {
    let row = |round: usize| vec![1.0, 1.0 + (round / 30) as f64, 1.0, 2.5];
    let record = Record::of_trace((0..60).map(row)).unwrap();
    let found = examine(&record, &RunContext::default());
    let since = Moment { round: 30, step: 30, seconds: 75.0 };
    let problems = [
        Problem::DeadWorkers { workers: vec![1], since: Some(since), answered: false },
        Problem::ConstantlySlow { workers: vec![1], times: 2.0, coded: false },
        Problem::SlightlySlow { workers: vec![(1, 1.1, None)] },
        Problem::SlowerSince { worker: 1, since, times: 1.5, because: None },
        Problem::EverybodySlowerSince { since, times: 1.5 },
        Problem::SlowRounds { rounds: 3, of: 60, steps: (4, 6) },
        Problem::OtherScheme { scheme: "queue:m=16".into(), than: "uncoded".into() },
    ];
    let plan = planned(
        &found,
        &mut codedgrad_shell::output::Output {
            out: &mut Vec::new(),
            notes: codedgrad_shell::output::Notes::Kept(&mut Vec::new()),
        },
    );
    let plan = plan.ok().flatten().unwrap();
    for (input, number, from) in
        [("runs/0001", Some(2), None), ("it's mine.csv", None, Some(3)), ("-", None, None)]
    {
        let input = input.to_owned();
        let more = Vec::new();
        let args = DoctorArgs {
            input,
            more,
            number,
            from,
            to: None,
            plan: false,
            html: None,
            trace: None,
            json: false,
        };
        let mut commands = 0;
        for plan in [None, Some(&plan)] {
            let (args, found, under_way) = (&args, &found, None);
            let (names, not_seen) = (&[], &[]);
            let advice = Advice { args, number, found, plan, names, not_seen, under_way };
            for problem in &problems {
                let finding = Finding { problem: problem.clone(), costs: None };
                let Some(command) = advice.command(&finding) else { continue };
                commands += 1;
                let parsed = Cli::try_parse_from(split(&command));
                assert!(parsed.is_ok(), "{command}: {:?}", parsed.err());
            }
        }
        let under_way = Some(Path::new("my runs"));
        let (names, not_seen) = (&[], &[]);
        let (args, found, plan) = (&args, &found, Some(&plan));
        let advice = Advice { args, number, found, plan, names, not_seen, under_way };
        let tried = |problem: Problem| advice.command(&Finding { problem, costs: None }).unwrap();
        let one = Problem::SlowerSince { worker: 7, since, times: 1.5, because: None };
        assert_eq!(tried(one), "echo 7 >> 'my runs/drain'");
        let two = Problem::ConstantlySlow { workers: vec![1, 7], times: 2.0, coded: false };
        assert_eq!(tried(two), "printf '%s\\n' 1 7 >> 'my runs/drain'");
        assert!(commands >= if args.input == "-" { 0 } else { 6 }, "{commands}");
    }
}
