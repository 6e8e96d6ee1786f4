//! One coded computation with stragglers and Byzantine workers, made and decoded.

use codedgrad::codes::berrut::trial::{Corruption, Trial, relative_error};
use codedgrad::codes::berrut::{
    BerrutCode, BerrutDecoder, BerrutError, ByzantineDefence, DecodedOutputs, Interpolant,
};
use codedgrad::ids::{Worker, WorkerSet};
use ndarray::{Array2, Ix2};

/// One computation: who is late, who lies and by how much.
pub(super) struct Scene<'a> {
    pub(super) code: &'a BerrutCode,
    pub(super) trial: Trial,
    pub(super) late: &'a WorkerSet,
    pub(super) wrong: &'a WorkerSet,
    pub(super) rms: f64,
}

impl Scene<'_> {
    /// What all workers answer.
    pub(super) fn outputs(&mut self) -> Result<Vec<Array2<f64>>, BerrutError> {
        let blocks: Vec<_> = self.trial.blocks().iter().map(|block| block.view()).collect();
        let mut outputs: Vec<_> =
            self.code.encode(&blocks)?.iter().map(|share| self.trial.apply(share)).collect();
        let wrong: Vec<Worker> = self.wrong.iter().collect();
        self.trial.corrupt(&mut outputs, &wrong, Corruption::Gaussian, self.rms);
        Ok(outputs)
    }

    /// The decode of these answers but `without`, and its relative error.
    pub(super) fn decoded(
        &self,
        outputs: &[Array2<f64>],
        without: &WorkerSet,
        by: Interpolant,
        security: Option<ByzantineDefence>,
        seed: u64,
    ) -> Result<(f64, DecodedOutputs<f64, Ix2>), BerrutError> {
        let mut decoder: BerrutDecoder<'_, f64, Ix2> = BerrutDecoder::new(self.code, by);
        if let Some(security) = security {
            decoder = decoder.secured(security);
        }
        for worker in Worker::all(self.code.workers())
            .filter(|w| !self.late.contains(*w) && !without.contains(*w))
        {
            decoder.arrive(worker, outputs[worker.index()].clone())?;
        }
        let decoded = decoder.decode(seed)?;
        Ok((relative_error(&decoded.outputs, &self.trial.truth()), decoded))
    }
}
