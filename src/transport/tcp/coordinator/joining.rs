//! Who is let in, under which number, and who has to leave.

use super::super::callers::Caller;
use super::super::door::check_hello;
use super::super::members::{Claim, Member, drained};
use super::super::pipe::{Pipe, run, write_first};
use super::super::security::Role;
use super::super::sent::SentRecord;
use super::super::states::IncomingStates;
use super::super::status::WorkerStatus;
use super::super::{Exchange, HANDSHAKE};
use super::CoordinatorNode;
use crate::ids::{OrderId, Step, Worker};
use crate::sums::exchange::CoordinatorEvent;
use crate::transport::wire::{Hello, ToWorker, Welcome};
use crate::transport::{Disagreement, Dismissal, LET_GO, Notice, RunFacts};
use std::collections::BTreeMap;
use tokio::time::Instant;
use tracing::{Instrument, info_span};

impl CoordinatorNode {
    /// The number for a worker that calls, or what it is told instead.
    fn seat_for(&self, role: Option<Role>, hello: &Hello) -> Result<u32, Box<ToWorker>> {
        let refused = |why| Err(Box::new(ToWorker::refused(why)));
        if !hello.supports_collectives && self.listen.exchange == Exchange::Nccl {
            let why = "this run sums in groups of workers, of which its program knows nothing";
            return refused(why.to_owned());
        }
        if let Err(why) = check_hello(hello) {
            return refused(why);
        }
        let Hello { worker, ref identity, process, .. } = *hello;
        let worker = match (role, worker) {
            (Some(Role::Coordinator), _) => {
                return refused("its certificate is the coordinator's".to_owned());
            }
            (Some(Role::Worker(Worker(named))), Some(worker)) if worker != named => {
                return refused(format!(
                    "its certificate is worker {named}'s, it says it is worker {worker}"
                ));
            }
            (Some(Role::Worker(Worker(named))), _) => Some(named),
            (None, worker) => worker,
        };
        self.members.member(Claim { worker, identity, process })
    }

    /// Lets in who calls, or tells it why not.
    pub(super) async fn call(&mut self, caller: Caller) {
        let worker = match self.seat_for(caller.role, &caller.hello) {
            Ok(worker) => worker,
            Err(answer) => return caller.refuse(*answer).await,
        };
        if let Err(difference) = self.compare(worker, &caller.hello.facts) {
            return self.stays_outside(worker, caller, difference).await;
        }
        let Caller { mut stream, from, hello, .. } = caller;
        let Hello { identity, process, address, offer, has, domain, .. } = *hello;
        // The same process that calls again has lost its connection; another one takes its place.
        if self.members.is_other_process(worker, process) {
            self.members.replace(worker);
            self.dismiss(worker, &Dismissal::Replaced);
        } else {
            self.lose(worker, "it has called again");
        }
        // A restarted coordinator counts from 0; numbers of connections must not come twice, for
        // what is still under way is told apart by them.
        let earlier = offer.map_or(0, |offer| offer.epoch);
        let epoch = self.members.epoch(worker).max(earlier).saturating_add(1);
        let welcome = self.welcome(worker, epoch);
        if !matches!(
            tokio::time::timeout(HANDSHAKE, write_first(&mut stream, &welcome)).await,
            Ok(Ok(()))
        ) {
            return tracing::warn!("{from} was gone before it was welcomed");
        }
        let (pipe, queues) = Pipe::new();
        let span = info_span!("connection", worker, epoch);
        tokio::spawn(
            run(stream, queues, self.context.clone(), (worker, epoch), self.events.clone())
                .instrument(span),
        );
        let offered = offer.filter(|offer| offer.run == self.listen.run).map(|offer| offer.next);
        // What it says of another run is no state of this one.
        let next = offered.or_else(|| has.next(self.listen.first));
        // With several models in turns, as many steps can be without their digests.
        let models = self.facts.models.unwrap_or(1).max(1);
        let reachable = address.is_some();
        let member = Member {
            pipe,
            epoch,
            next,
            process,
            address,
            heard: Instant::now(),
            order: OrderId::default(),
            unanswered: BTreeMap::new(),
            sent: SentRecord::new(offered, models),
            asked: Vec::new(),
            arriving: IncomingStates::default(),
        };
        self.members.enter(worker, member, identity.clone());
        self.sums(CoordinatorEvent::Connected { worker, epoch, reachable });
        self.watched.status().workers[worker as usize] = WorkerStatus {
            identity,
            address: from.to_string(),
            domain: domain.unwrap_or_default(),
            connected: true,
            epoch,
            silent_seconds: 0.0,
            refused: None,
        };
        if self.begun {
            // Before the run begins, who is there is told all at once.
            self.notify(Worker(worker), Notice::Joined { next });
            self.sums(CoordinatorEvent::HasState { worker, next });
        }
        self.announce();
    }

    fn welcome(&self, worker: u32, epoch: u32) -> ToWorker {
        let listen = &self.listen;
        ToWorker::Welcome(Box::new(Welcome {
            worker: Worker(worker),
            workers: listen.config.shape.workers,
            run: listen.run,
            epoch,
            length: listen.config.length,
            layout: self.context.stamp.layout,
            first: listen.first.unwrap_or(Step(0)),
            micro_steps: listen.config.jobs.micro_steps,
            log_steps: listen.config.log_steps,
            format: listen.config.format,
            eager: listen.exchange == Exchange::Hold,
            collective: listen.exchange == Exchange::Nccl,
            silence: listen.silence,
            job: listen.job.clone(),
            facts: self.facts.clone(),
        }))
    }

    /// Compares what a worker trains with what is known.
    fn compare(&mut self, worker: u32, facts: &RunFacts) -> Result<(), Disagreement> {
        if let Err(difference) = self.facts.agree(facts) {
            if self.begun {
                return Err(difference);
            }
            // Another process in its place may train something else: what only the one before it
            // has said counts for nothing.
            let mut others = self.comparison.without(worker, self.listen.all_facts());
            others.agree(facts)?;
            self.facts = others;
        }
        if !self.begun {
            self.comparison.agrees(worker, facts);
        }
        Ok(())
    }

    /// Whether a worker that differs is refused at once, and why: later on, or if it differs from
    /// what is sure.
    fn is_refused(&self, facts: &RunFacts, difference: Disagreement) -> Option<Disagreement> {
        if self.begun {
            return Some(difference);
        }
        self.comparison.judged(facts, difference)
    }

    /// A worker that calls differs from those before it.
    async fn stays_outside(&mut self, worker: u32, caller: Caller, difference: Disagreement) {
        if let Some(difference) = self.is_refused(&caller.hello.facts, difference) {
            self.notes_refusal(worker, &difference.to_string());
            return caller.refuse(ToWorker::refused(difference.to_string())).await;
        }
        let facts = caller.hello.facts.clone();
        self.comparison.differs(worker, &facts, Some(caller));
        self.announce();
    }

    /// A worker that is already there says what it trains.
    pub(super) fn agree(&mut self, worker: Worker, facts: &RunFacts) {
        let Err(difference) = self.compare(worker.0, facts) else { return };
        let Some(difference) = self.is_refused(facts, difference) else {
            self.comparison.differs(worker.0, facts, None);
            return self.announce();
        };
        self.watched.status().refused += 1;
        self.refuse(worker.0, &difference.to_string());
    }

    /// The run begins: who differs from what it is, is refused.
    pub(super) fn refuse_who_differs(&mut self) {
        for (worker, facts, outside) in self.comparison.close() {
            let Err(difference) = self.facts.clone().agree(&facts) else { continue };
            match outside {
                Some(outside) => {
                    self.notes_refusal(worker, &difference.to_string());
                    tokio::spawn(outside.refuse(ToWorker::refused(difference.to_string())));
                }
                None => self.refuse(worker, &difference.to_string()),
            }
        }
    }

    /// There is no run: all workers hear why, those outside when the transport ends.
    pub(super) fn refuse_all(&mut self, reason: &str) {
        let came = self.comparison.told();
        came.into_iter().for_each(|(worker, _)| self.notes_refusal(worker.0, reason));
        let there: Vec<u32> = self.members.connected().map(|(worker, _)| worker).collect();
        there.into_iter().for_each(|worker| self.refuse(worker, reason));
        self.comparison.fails(reason.to_owned());
    }

    /// A worker that is there is refused for good.
    fn refuse(&mut self, worker: u32, reason: &str) {
        self.notes_refusal(worker, reason);
        self.dismiss(worker, &Dismissal::Refused { reason: reason.to_owned() });
    }

    fn notes_refusal(&mut self, worker: u32, reason: &str) {
        if let Some(status) = self.watched.status().workers.get_mut(worker as usize) {
            status.refused = Some(reason.to_owned());
        }
    }

    /// A worker has to leave, and is told why.
    pub(super) fn dismiss(&mut self, worker: u32, why: &Dismissal) {
        let (word, reason) = match why {
            Dismissal::Replaced => {
                (ToWorker::Replaced {}, "another process has taken its place".to_owned())
            }
            Dismissal::GivenUp { reason } => return self.lose(worker, reason),
            // It hangs up itself, when it has applied what is on its way to it.
            Dismissal::LetGo => {
                return self.members.member_mut(worker).into_iter().for_each(|it| it.stop(LET_GO));
            }
            Dismissal::Drained => (drained(), "it is drained".to_owned()),
            Dismissal::Refused { reason } => (ToWorker::refused(reason.clone()), reason.clone()),
        };
        self.part_with(worker, &reason, Some(&word));
    }
}
