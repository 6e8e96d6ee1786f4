//! Which locator runs, when it must refuse, and what is reported of it.

use super::code::BerrutCode;
use super::error::BerrutError;
use super::locator::{Form, dct_locate};
use super::prior::{Tolerance, TrimmedFit, of_dimension, robust_locate, trimmed_locate};
use super::received::{Gram, ReceivedOutputs};
use crate::ids::Worker;

/// Accusing one worker more must lower the residual so many times to be suspicious of a code of
/// fixed dimension.
const SUSPICIOUS_DROP: f64 = 30.0;
/// Relative residual that rounding of the outputs leaves on a codeword.
const CODEWORD: f64 = 1e-12;

/// How Byzantine workers are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Locator {
    /// [`robust_locate`], for any function: the default.
    Robust(Tolerance),
    /// [`trimmed_locate`], for outputs near a code of this dimension and a known number of wrong
    /// workers.
    Trimmed {
        /// `m`.
        dimension: usize,
    },
    /// [`dct_locate`], likewise.
    Dct {
        /// `m`.
        dimension: usize,
        /// Which form.
        form: Form,
    },
}

impl Default for Locator {
    fn default() -> Self {
        Self::Robust(Tolerance::default())
    }
}

/// What is done against Byzantine workers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ByzantineDefence {
    /// Most workers that are looked for, `A`; the papers' locators accuse exactly so many.
    pub byzantine: usize,
    /// How.
    pub locator: Locator,
    /// Whether trimming goes on where fewer than `1.5 K` outputs beyond `2A` are left.
    pub force: bool,
}

/// What a locator found.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Who is wrong and how well the rest fits.
    pub trimmed: TrimmedFit,
    /// How many Byzantine workers more could still be located.
    pub capacity: usize,
    /// Whether more seem wrong than were looked for.
    pub suspect: bool,
}

/// What a locator looks at: the DCT ones at outputs, the others at inner products.
#[derive(Clone, Debug)]
pub enum Evidence {
    /// Inner products, exact or of sketches.
    Products(Gram),
    /// Outputs or sketches of them.
    Outputs(ReceivedOutputs),
}

impl ByzantineDefence {
    /// The dimension of the code for functions that are no polynomials: `2K`, less if
    /// `survivors - 2A` is, and not below `K`.
    ///
    /// ```
    /// use codedgrad::codes::berrut::ByzantineDefence;
    /// assert_eq!(ByzantineDefence::usual_dimension(4, 16, 2), 8);
    /// assert_eq!(ByzantineDefence::usual_dimension(4, 10, 2), 6);
    /// ```
    #[must_use]
    pub fn usual_dimension(blocks: usize, survivors: usize, wrong: usize) -> usize {
        (2 * blocks).min(survivors.saturating_sub(2 * wrong)).max(blocks)
    }

    /// How many Byzantine workers can be told from honest ones among so many survivors, or why not
    /// as many as asked for.
    ///
    /// # Formula
    /// ```text
    /// Dct:                2A + s <= N - m
    /// Robust, Trimmed:    n - 2A >= ceil(1.5 K)    unless A = 0
    /// ```
    /// where `n = N - s` survive. The second is a rule from measurements that `force` overrides.
    ///
    /// # Errors
    /// [`BerrutError::Radius`], [`BerrutError::Redundancy`] or [`BerrutError::NothingLeft`] with
    /// the numbers, and [`BerrutError::NotACodeword`] for a code on points of the second kind.
    ///
    /// ```
    /// use codedgrad::codes::berrut::{BerrutCode, ByzantineDefence, Encoder, Points};
    /// let code = BerrutCode::new(4, 16, Points::FirstKind, Encoder::Spline)?;
    /// let security = ByzantineDefence { byzantine: 2, ..ByzantineDefence::default() };
    /// assert_eq!(security.capacity(&code, 14)?, 4);
    /// assert!(security.capacity(&code, 9).unwrap_err().to_string().contains("A=2"));
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    pub fn capacity(&self, code: &BerrutCode, survivors: usize) -> Result<usize, BerrutError> {
        if code.points() != super::Points::FirstKind {
            return Err(BerrutError::NotACodeword);
        }
        let workers = code.workers();
        let blocks = code.blocks();
        let wrong = self.byzantine;
        let stragglers = workers - survivors;
        if let Locator::Dct { dimension, .. } = self.locator {
            if 2 * wrong + stragglers + dimension > workers {
                return Err(BerrutError::Radius { wrong, stragglers, workers, dimension });
            }
            return Ok((workers - dimension - stragglers) / 2);
        }
        let needed = (3 * blocks).div_ceil(2);
        if wrong > 0 && 2 * wrong + needed > survivors && !self.force {
            return Err(BerrutError::Redundancy { wrong, survivors, blocks, needed });
        }
        let left =
            if let Locator::Trimmed { dimension } = self.locator { dimension + 1 } else { 1 };
        if wrong + left > survivors {
            return Err(BerrutError::NothingLeft { wrong, survivors, needed: left });
        }
        Ok(survivors.saturating_sub(needed) / 2)
    }

    /// Looks for Byzantine workers, and for signs of more than were looked for: location repeated
    /// with `A + 1`, where so many could be located, keeps `A + 1` out (for codes of fixed
    /// dimension: makes the residual 30 times smaller).
    ///
    /// # Errors
    /// As [`ByzantineDefence::capacity`].
    ///
    /// ```
    /// use codedgrad::codes::berrut::{
    ///     BerrutCode, ByzantineDefence, Encoder, Evidence, Points, ReceivedOutputs,
    /// };
    /// use codedgrad::ids::Worker;
    /// let code = BerrutCode::new(2, 12, Points::FirstKind, Encoder::Spline)?;
    /// let workers: Vec<Worker> = Worker::all(12).collect();
    /// let mut outputs: Vec<[f64; 1]> = code.worker_points().iter().map(|z| [z.exp()]).collect();
    /// (outputs[2][0], outputs[9][0]) = (50.0, -50.0);
    /// let outputs: Vec<&[f64]> = outputs.iter().map(|y| &y[..]).collect();
    /// let evidence = Evidence::Products(ReceivedOutputs::new(&code, &workers, &outputs)?.gram());
    /// let against = |byzantine| ByzantineDefence { byzantine, ..ByzantineDefence::default() };
    /// let verdict = against(2).judge(&code, &evidence)?;
    /// assert!(!verdict.suspect && verdict.trimmed.workers == [Worker(2), Worker(9)]);
    /// assert!(against(1).judge(&code, &evidence)?.suspect);
    /// # Ok::<(), codedgrad::codes::berrut::BerrutError>(())
    /// ```
    pub fn judge(&self, code: &BerrutCode, evidence: &Evidence) -> Result<Verdict, BerrutError> {
        let survivors = match evidence {
            Evidence::Products(gram) => gram.at.count(),
            Evidence::Outputs(received) => received.at.count(),
        };
        let capacity = self.capacity(code, survivors)?;
        let trimmed = self.located(evidence, self.byzantine)?;
        let more = self.byzantine + 1;
        let suspect = more <= capacity && {
            let again = self.located(evidence, more)?;
            match self.locator {
                Locator::Robust(_) => again.workers.len() == more,
                _ => {
                    trimmed.residual > SUSPICIOUS_DROP * again.residual
                        && trimmed.residual > CODEWORD * squares(evidence, &trimmed.workers)
                }
            }
        };
        Ok(Verdict { capacity: capacity - trimmed.workers.len().min(capacity), trimmed, suspect })
    }

    fn located(&self, evidence: &Evidence, wrong: usize) -> Result<TrimmedFit, BerrutError> {
        let gram = || match evidence {
            Evidence::Products(gram) => gram.clone(),
            Evidence::Outputs(received) => received.gram(),
        };
        match (self.locator, evidence) {
            (Locator::Dct { dimension, form }, Evidence::Outputs(received)) => {
                let found = dct_locate(received, dimension, wrong, form)?;
                let positions: Vec<usize> = (0..received.at.count())
                    .filter(|i| found.contains(&received.at.list[*i]))
                    .collect();
                Ok(of_dimension(&gram(), dimension, &positions))
            }
            (Locator::Dct { dimension, .. } | Locator::Trimmed { dimension }, _) => {
                trimmed_locate(&gram(), dimension, wrong)
            }
            (Locator::Robust(tolerance), _) => robust_locate(&gram(), wrong, tolerance),
        }
    }
}

/// The squared norm of all outputs but these workers'.
fn squares(evidence: &Evidence, without: &[Worker]) -> f64 {
    let gram = match evidence {
        Evidence::Products(gram) => gram.clone(),
        Evidence::Outputs(received) => received.gram(),
    };
    let kept = (0..gram.at.count()).filter(|i| !without.contains(&gram.at.list[*i]));
    kept.map(|i| gram.entries[(i, i)]).sum()
}
