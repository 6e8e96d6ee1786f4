//! What a training run is to do, as kept in its folder: enough to do it again or to go on with it.

use super::{Failure, OrInput};
use crate::codes::SchemeSpec;
use crate::codes::sequential::{Accept, Horizon, SchemeFacts};
use crate::delays::Delays;
use crate::ids::Job;
use crate::train::AdamWConfig;
use crate::train::candle::{Batches, Corpus, Fault, GptConfig, LocalRun, Tokens};
use anyhow::{Context, anyhow};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What time a run goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ClockKind {
    /// Real time; injected delays are waited for.
    Wall,
    /// Modelled time; nobody waits, and the record is reproducible to the byte.
    Virtual,
}

/// A training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) schemes: Vec<String>,
    pub(super) workers: usize,
    pub(super) steps: u64,
    pub(super) corpus: Option<PathBuf>,
    pub(super) tokenizer: Option<PathBuf>,
    pub(super) init: Option<PathBuf>,
    pub(super) delays: Option<String>,
    pub(super) clock: ClockKind,
    /// Uncoded compute time of a step: calibrated under a wall clock, given under a virtual one.
    pub(super) step_seconds: f64,
    pub(super) micro_batch_rows: usize,
    pub(super) micro_batches: u32,
    pub(super) model: GptConfig,
    pub(super) optimizer: AdamWConfig,
    pub(super) seed: u64,
    pub(super) max_wait_seconds: f64,
    pub(super) grace_seconds: f64,
    pub(super) checkpoint_every: u64,
    pub(super) audit_every: u64,
    pub(super) faults: Vec<String>,
}

impl Plan {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display())).or_input()?;
        serde_json::from_str(&text).with_context(|| format!("{} is not a plan of this version", path.display())).or_input()
    }

    pub(super) fn specs(&self) -> Result<Vec<SchemeSpec>, Failure> {
        let spec = |text: &String| -> Result<SchemeSpec, Failure> {
            let spec: SchemeSpec = text.parse().or_input()?;
            let scheme = spec.scheme(self.workers, self.micro_batches, 0..self.steps);
            let delay = match &scheme {
                Ok(scheme) => scheme.facts().delay,
                Err(_) => self.natural(&spec)?.delay,
            };
            if delay > 0 {
                let problem = "completes a job rounds after its first, which training cannot use yet; `codedgrad simulate` can";
                return Err(Failure::Input(anyhow!("{text} {problem}")));
            }
            if let Err(error) = scheme {
                let needed = self.natural(&spec)?.units;
                let context = format!("{text} with {} workers needs --micro-batches {needed} or more", self.workers);
                return Err(Failure::Input(anyhow::Error::new(error).context(context)));
            }
            Ok(spec)
        };
        self.schemes.iter().map(spec).collect()
    }

    /// The facts of a scheme that cuts batches as it likes best.
    fn natural(&self, spec: &SchemeSpec) -> Result<SchemeFacts, Failure> {
        let horizon = Horizon { workers: self.workers, units: None, jobs: Job(0)..Job(0), accept: Accept::Lookahead };
        Ok(spec.over(horizon).or_input()?.facts().clone())
    }

    pub(super) fn delays(&self) -> Result<Delays, Failure> {
        match &self.delays {
            None => Ok(Delays::None),
            Some(text) => Delays::for_rounds(text, self.workers, self.seed, self.steps as usize).or_input(),
        }
    }

    pub(super) fn tokens(&self) -> Result<Tokens, Failure> {
        tokens(self.corpus.as_deref(), self.tokenizer.as_deref())
    }

    pub(super) fn batches(&self, tokens: Tokens) -> Result<Batches, Failure> {
        let batches = Batches::new(tokens, self.model.context, self.seed).or_input()?;
        let (rows, batch) = (batches.sizes().0 / (self.model.context + 1), self.micro_batch_rows * self.micro_batches as usize);
        if rows < batch {
            return Err(Failure::Input(anyhow!(
                "the corpus has {rows} windows of {} tokens for training, fewer than one batch of {batch}",
                self.model.context + 1
            )));
        }
        Ok(batches)
    }

    pub(super) fn local_run(&self, scheme: &SchemeSpec) -> Result<LocalRun, Failure> {
        let faults = self
            .faults
            .iter()
            .map(|text| text.parse::<Fault>().map_err(|error| Failure::Input(anyhow!(error))))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(stray) = faults.iter().find(|fault| fault.worker.index() >= self.workers) {
            return Err(Failure::Input(anyhow!("--fault names {}, but workers are 0 to {}", stray.worker, self.workers - 1)));
        }
        Ok(LocalRun {
            scheme: scheme.clone(),
            workers: self.workers,
            unit_samples: self.micro_batch_rows,
            units: self.micro_batches,
            model: self.model,
            optimizer: self.optimizer,
            max_wait_seconds: self.max_wait_seconds,
            grace_seconds: self.grace_seconds,
            faults,
        })
    }
}

/// The tokens of a corpus: the embedded one if none is named, bytes if no tokenizer is.
pub(super) fn tokens(corpus: Option<&Path>, tokenizer: Option<&Path>) -> Result<Tokens, Failure> {
    let corpus = match corpus {
        None => Corpus::embedded(),
        Some(path) => Corpus::read(path).or_input()?,
    };
    match tokenizer {
        None => Ok(corpus.byte_tokens()),
        Some(path) => tokens_by(&corpus, path),
    }
}

#[cfg(feature = "tokenizers")]
fn tokens_by(corpus: &Corpus, path: &Path) -> Result<Tokens, Failure> {
    corpus.tokens_by(path).or_input()
}

#[cfg(not(feature = "tokenizers"))]
fn tokens_by(_: &Corpus, _: &Path) -> Result<Tokens, Failure> {
    Err(Failure::Input(anyhow!("--tokenizer needs a program built with --features tokenizers; without it, tokens are bytes")))
}
