//! Groups whose results are accepted by vote: exact gradients although some workers return wrong
//! results.
//!
//! # Construction
//! The groups of [`Groups`], `l = floor(n / (s+2b+1))` of them. Members of a group compute the same
//! sum; a value is accepted as soon as `b+1` of them returned the same bytes, as told by their
//! digests.
//!
//! # Guarantee
//! Exact with any `s` stragglers and any `b` Byzantine workers among the members of every group:
//! `b+1` equal results are not all wrong. It needs workers that are bitwise deterministic. Digests
//! are not cryptographic: an attacker who can make a wrong result with the digest of a right one is
//! not found.
//!
//! # Cost
//! Load `1/l`, at least `(s+2b+1)/n`; with honest workers `b+1` answers of each group suffice. A
//! vote is O(group).
//!
//! # Numerics
//! Weights 0 and 1, the bits of uncoded training where shares are aligned blocks of micro-batches.
//!
//! # Source
//! Majority over repetitions as in Chen et al., DRACO, ICML 2018 (arXiv 1803.09877); digests in
//! place of vectors are ours.

use super::family::{Family, Recipe, Traits};
use super::sequential::{Horizon, OneRound, RoundEvent, SchemeFacts};
use super::{GradientCode, Groups, ParameterError};
use crate::ids::{Cut, Task, Worker, WorkerSet};
use std::cmp::Reverse;
use std::fmt;

/// Groups that vote.
pub(super) const FAMILY: Family = Family {
    name: "vote",
    examples: &["vote:s=1,b=1"],
    summary: "exact although b workers of every group of s+2b+1 return wrong results: b+1 equal \
        ones are accepted; workers must be bitwise deterministic",
    traits: Traits { byzantine: true, ..Traits::NONE },
    ..Family::new(|fields| {
        let stragglers = fields.need("s")?;
        let wrong = fields.need("b")?;
        let recipe = Recipe::scheme(move |horizon| voting_groups(stragglers, wrong, horizon));
        Ok(recipe.byzantine(wrong).without_matrix(
            "accepts results by vote, which no weights tell: `codedgrad code groups:l=...` shows \
             its groups",
        ))
    })
};

/// Groups that take any `stragglers` and any `wrong` workers each.
fn voting_groups(
    stragglers: usize,
    wrong: usize,
    horizon: Horizon,
) -> Result<OneRound, ParameterError> {
    let Horizon { workers, units, jobs, .. } = horizon;
    let needed = stragglers.saturating_add(wrong.saturating_mul(2)).saturating_add(1);
    if workers < needed {
        return Err(ParameterError::TooFewVoters { stragglers, wrong, workers, needed });
    }
    let groups = Groups::new(workers, workers / needed)?;
    let shares = groups.facts().shares() as u32;
    let cut = Cut::new(units.unwrap_or(shares), shares)?;
    Ok(OneRound::voting(groups, wrong, cut, jobs))
}

/// Members of a group who cannot be told right from wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispute {
    /// Which group.
    pub group: usize,
    /// Its members.
    pub members: WorkerSet,
    /// How many members returned each of the different results, most first.
    pub votes: Vec<usize>,
    /// How many equal ones were needed.
    pub needed: usize,
}

impl fmt::Display for Dispute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, members, votes, needed } = self;
        let counts: Vec<String> = votes.iter().map(usize::to_string).collect();
        write!(
            f,
            "group {group} (workers {members}) returned {} different results ({} times), ",
            votes.len(),
            counts.join(", ")
        )?;
        write!(
            f,
            "none of them the {needed} times that are needed: more workers are wrong than b={}, or \
             they are not ",
            needed - 1
        )?;
        write!(f, "bitwise deterministic")
    }
}

/// What a worker was given in this round, and what it returned.
#[derive(Clone, Copy, Debug)]
struct Answer {
    task: Task,
    digest: Option<u128>,
}

/// The vote on the results of workers that compute the same.
///
/// It stands between the workers and a scheme whose facts name voting groups: the scheme is told of
/// a result only once it is known to be right, `b+1` members of its group having returned the same.
/// The driver of the scheme tells both of every [`RoundEvent`], passes what the scheme assigns
/// through [`Verifier::given`] and what comes back through [`Verifier::heard`], and counts as
/// missing also whom [`Verifier::lacking`] names. A scheme's restart is none of its affair: the
/// round that is opened after it is. A simulation in which no worker lies needs only
/// [`Verifier::lacking`], by which a vote takes more answers than a sum.
///
/// # Formula
/// ```text
/// l = floor(n / (s+2b+1))     a result of group j is accepted when b+1 members returned it
/// ```
/// where `n` is the number of workers, `s` of stragglers and `b` of Byzantine workers.
///
/// ```
/// use codedgrad::codes::{SchemeSpec, Verifier, sequential::{RoundEvent, Scheme}};
/// use codedgrad::ids::{Worker, WorkerSet};
/// let mut scheme = "vote:s=1,b=1".parse::<SchemeSpec>()?.scheme(4, 4, 0..1)?;
/// let mut verifier = Verifier::of(scheme.facts()).unwrap();
/// let (nobody, mut right) = (WorkerSet::empty(4), Vec::new());
/// verifier.on(&RoundEvent::Opened { dead: &nobody });
/// scheme.on(RoundEvent::Opened { dead: &nobody });
/// for (worker, digest) in [(0, 5), (1, 77), (3, 5)] {
///     let mut tasks = Vec::new();
///     scheme.assign(Worker(worker), &mut tasks);
///     verifier.given(Worker(worker), &mut tasks);
///     verifier.heard(Worker(worker), tasks[0], digest, &mut right);
/// }
/// for (worker, task) in right {
///     scheme.returned(worker, task);
/// }
/// assert!(scheme.admits(&verifier.lacking(&WorkerSet::of(4, [Worker(2)]))));
/// assert_eq!(verifier.wrong(), [Worker(1)]);
/// # Ok::<(), codedgrad::codes::ParameterError>(())
/// ```
#[derive(Debug)]
pub struct Verifier {
    wrong: usize,
    group_of: Vec<u32>,
    /// The members of every group.
    members: Vec<Vec<Worker>>,
    answers: Vec<Option<Answer>>,
    /// What is accepted of each group.
    accepted: Vec<Option<u128>>,
    /// Workers that will return nothing in this round.
    gone: WorkerSet,
}

impl Verifier {
    /// That of a scheme, if its workers vote.
    #[must_use]
    pub fn of(facts: &SchemeFacts) -> Option<Self> {
        let group_of = facts.voting_groups.clone();
        let groups = 1 + *group_of.iter().max()? as usize;
        let mut members = vec![Vec::new(); groups];
        for (worker, group) in Worker::all(facts.workers).zip(&group_of) {
            members[*group as usize].push(worker);
        }
        Some(Self {
            wrong: facts.byzantine,
            group_of,
            members,
            answers: vec![None; facts.workers],
            accepted: vec![None; groups],
            gone: WorkerSet::empty(facts.workers),
        })
    }

    /// A worker is given tasks: those that it has answered already are taken out, since the scheme
    /// may not know of them yet.
    pub fn given(&mut self, worker: Worker, tasks: &mut Vec<Task>) {
        let answer = &mut self.answers[worker.index()];
        if answer.is_some_and(|answer| answer.digest.is_some()) {
            tasks.clear();
        }
        if let Some(&task) = tasks.first() {
            *answer = Some(Answer { task, digest: None });
        }
    }

    /// A worker returned a result with this digest; appends the results that are known to be right
    /// by it. False if it was not at that task, or has answered.
    pub fn heard(
        &mut self,
        worker: Worker,
        task: Task,
        digest: u128,
        right: &mut Vec<(Worker, Task)>,
    ) -> bool {
        let expected = Some(&mut self.answers[worker.index()]).and_then(Option::as_mut);
        let Some(answer) = expected.filter(|answer| answer.task == task && answer.digest.is_none())
        else {
            return false;
        };
        answer.digest = Some(digest);
        let group = self.group_of[worker.index()] as usize;
        if let Some(accepted) = self.accepted[group] {
            right.extend((digest == accepted).then_some((worker, task)));
            return true;
        }
        let most = self.votes(group, None).first().copied();
        if let Some((accepted, _)) = most.filter(|(_, count)| *count > self.wrong) {
            self.accepted[group] = Some(accepted);
            let returned = self.members[group].iter().filter_map(|member| {
                let answer = self.answers[member.index()]?;
                (answer.digest == Some(accepted)).then_some((*member, answer.task))
            });
            right.extend(returned);
        }
        true
    }

    /// Something has happened that the scheme is told of too.
    pub fn on(&mut self, event: &RoundEvent<'_>) {
        match *event {
            RoundEvent::Opened { dead } => {
                self.answers.fill(None);
                self.accepted.fill(None);
                self.gone.clone_from(dead);
            }
            RoundEvent::Gone(worker) => {
                self.gone.insert(worker);
            }
            RoundEvent::Back(worker) => {
                self.gone.remove(worker);
            }
            // Where the scheme keeps a result for a decoded job, others who returned the same hold
            // it.
            RoundEvent::Lost { worker, .. } => self.answers[worker.index()] = None,
            RoundEvent::Dropped(_) | RoundEvent::GivenUp(_) | RoundEvent::NoReturns => {}
        }
    }

    /// Whom the scheme must do without if these are missing: besides them those who have returned
    /// what is not accepted, and all of a group of which nothing can be accepted any more.
    #[must_use]
    pub fn lacking(&self, missing: &WorkerSet) -> WorkerSet {
        let mut lacking = missing.clone();
        for (group, members) in self.members.iter().enumerate() {
            let stands = self.stands(group, missing);
            for member in members {
                let refused =
                    self.digest(*member).is_some_and(|said| Some(said) != self.accepted[group]);
                if !stands || refused {
                    lacking.insert(*member);
                }
            }
        }
        lacking
    }

    /// Workers whose results of this round are known to be wrong.
    #[must_use]
    pub fn wrong(&self) -> Vec<Worker> {
        let differs = |worker: &Worker| {
            let accepted = self.accepted[self.group_of[worker.index()] as usize];
            let digests = self.digest(*worker).zip(accepted);
            digests.is_some_and(|(digest, accepted)| digest != accepted)
        };
        Worker::all(self.answers.len()).filter(differs).collect()
    }

    /// Where results differ and none of them can be accepted any more.
    #[must_use]
    pub fn dispute(&self) -> Option<Dispute> {
        let disputed = |group: &usize| {
            let votes = self.votes(*group, None);
            votes.len() > 1 && !self.stands(*group, &self.gone)
        };
        let group = (0..self.accepted.len()).find(disputed)?;
        let votes = self.votes(group, None).into_iter().map(|(_, count)| count).collect();
        let members = WorkerSet::of(self.answers.len(), self.members[group].iter().copied());
        Some(Dispute { group, members, votes, needed: self.wrong + 1 })
    }

    /// Of all who returned the same as a worker whose result is right, the one of the lowest
    /// number, and its task: which of them answered first changes nothing.
    #[must_use]
    pub fn holder(&self, worker: Worker) -> Option<(Worker, Task)> {
        let group = self.group_of[worker.index()] as usize;
        let accepted = self.accepted[group]?;
        let holds = |member: &Worker| {
            let answer = self.answers[member.index()]?;
            (answer.digest == Some(accepted)).then_some((*member, answer.task))
        };
        self.members[group].iter().find_map(holds)
    }

    fn digest(&self, worker: Worker) -> Option<u128> {
        self.answers[worker.index()].and_then(|answer| answer.digest)
    }

    /// The results of a group and how many members returned each, most first.
    fn votes(&self, group: usize, without: Option<&WorkerSet>) -> Vec<(u128, usize)> {
        let mut votes: Vec<(u128, usize)> = Vec::new();
        for worker in &self.members[group] {
            if without.is_some_and(|without| without.contains(*worker)) {
                continue;
            }
            let Some(digest) = self.digest(*worker) else { continue };
            match votes.iter_mut().find(|(known, _)| *known == digest) {
                Some((_, count)) => *count += 1,
                None => votes.push((digest, 1)),
            }
        }
        votes.sort_by_key(|(_, count)| Reverse(*count));
        votes
    }

    /// Whether a group's result is known once all but `missing` have answered alike.
    fn stands(&self, group: usize, missing: &WorkerSet) -> bool {
        let owes =
            |worker: &&Worker| self.digest(**worker).is_none() && !missing.contains(**worker);
        let outstanding = self.members[group].iter().filter(owes).count();
        let votes = self.votes(group, Some(missing));
        match self.accepted[group] {
            Some(digest) => outstanding > 0 || votes.iter().any(|(known, _)| *known == digest),
            None => votes.first().map_or(0, |(_, count)| *count) + outstanding > self.wrong,
        }
    }
}

#[cfg(test)]
mod tests;
