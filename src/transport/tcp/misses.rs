//! What a worker may say it misses: a step that it was sent over the connection it has, and not too
//! often.
//!
//! # How to drive it
//! One per connection. [`Misses::sent`] with every step that the worker is told to apply or to
//! skip, [`Misses::takes`] with every state. When it says that it misses a step, [`Misses::ask`]
//! tells what to do; where that step's sum is nowhere any more, [`Misses::recall`] has it take over
//! a state.

use crate::ids::Step;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A step that is asked for again sooner is on its way.
const AGAIN: Duration = Duration::from_secs(1);
/// A state is taken over so many times for one step that does not come.
const STATES: u32 = 3;
/// Steps for which it is known when they were asked for.
const KNOWN: usize = 64;

/// What is to be done about a step that a worker says it misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// Have it sent again, or have the worker take over a state.
    Answer,
    /// Nothing: it comes, or is in a state that comes.
    Wait,
    /// The worker was never sent it.
    NeverSent,
    /// It has taken over states for this step before, and misses it again.
    Endless,
}

/// The steps that a worker was sent over a connection.
#[derive(Debug, Default)]
pub(super) struct Misses {
    last: Option<Step>,
    /// What is below is in the state it took over.
    next: Option<Step>,
    /// Whether it is to take over a state.
    recalled: bool,
    /// When it asked for a step, and how many states it was to take over for it.
    asked: BTreeMap<Step, (Instant, u32)>,
}

impl Misses {
    /// The worker is sent a step.
    pub(super) fn sent(&mut self, step: Step) {
        self.last = self.last.max(Some(step));
    }

    /// The worker is sent a state.
    pub(super) fn takes(&mut self, next: Step) {
        (self.next, self.recalled) = (Some(next), false);
    }

    /// The worker says that a step does not come.
    pub(super) fn ask(&mut self, step: Step, now: Instant) -> Miss {
        if self.last.is_none_or(|last| step > last) {
            return Miss::NeverSent;
        }
        let asked = self.asked.get(&step);
        if asked.is_some_and(|(_, states)| *states > STATES) {
            return Miss::Endless;
        }
        if Some(step) < self.next
            || self.recalled
            || asked.is_some_and(|(at, _)| now.saturating_duration_since(*at) < AGAIN)
        {
            return Miss::Wait;
        }
        // The oldest steps first: they are not asked for any more.
        if self.asked.len() >= KNOWN {
            self.asked.pop_first();
        }
        self.asked.entry(step).or_insert((now, 0)).0 = now;
        Miss::Answer
    }

    /// Nobody has what the worker misses: it is to take over a state.
    pub(super) fn recall(&mut self, step: Step) {
        self.recalled = true;
        self.asked.get_mut(&step).into_iter().for_each(|(_, states)| *states += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sent_is_missed() {
        let (mut misses, now) = (Misses::default(), Instant::now());
        assert_eq!(misses.ask(Step(0), now), Miss::NeverSent);
        misses.sent(Step(7));
        assert_eq!(
            [6, 7, 8, 1 << 60].map(|step| misses.ask(Step(step), now)),
            [Miss::Answer, Miss::Answer, Miss::NeverSent, Miss::NeverSent]
        );
        misses.takes(Step(7));
        misses.sent(Step(8));
        assert_eq!(
            [6, 8, 9].map(|step| misses.ask(Step(step), now)),
            [Miss::Wait, Miss::Answer, Miss::NeverSent]
        );
    }

    #[test]
    fn a_step_is_sent_again_once_a_second() {
        let (mut misses, begun) = (Misses::default(), Instant::now());
        misses.sent(Step(7));
        let ask = |ms| misses.ask(Step(7), begun + Duration::from_millis(ms));
        let answers = (0..10_000).map(ask).filter(|miss| *miss == Miss::Answer).count();
        assert_eq!(answers, 10);
    }

    #[test]
    fn a_state_ends_it_and_if_it_does_not_the_connection_ends() {
        let (mut misses, begun) = (Misses::default(), Instant::now());
        misses.sent(Step(7));
        for round in 0..=u64::from(STATES) {
            let now = begun + Duration::from_secs(2 * round);
            assert_eq!(misses.ask(Step(7), now), Miss::Answer, "round {round}");
            misses.recall(Step(7));
            let meanwhile = if round < u64::from(STATES) { Miss::Wait } else { Miss::Endless };
            assert_eq!(misses.ask(Step(7), now + AGAIN), meanwhile, "round {round}");
            misses.takes(Step(7));
        }
        assert_eq!(misses.ask(Step(7), begun + Duration::from_secs(60)), Miss::Endless);
    }

    #[test]
    fn what_is_noted_stays_small() {
        let (mut misses, now) = (Misses::default(), Instant::now());
        misses.sent(Step(1 << 40));
        let answered =
            (0..100_000).filter(|step| misses.ask(Step(*step), now) == Miss::Answer).count();
        assert_eq!(answered, 100_000, "each of them for the first time");
        assert!(misses.asked.len() <= KNOWN);
    }
}
