//! A causal transformer built from plain operations.
//!
//! candle's fused CPU kernels for normalisation, softmax and rotary embedding pass no gradient and
//! say nothing about it, so none of them is used here.

use super::Precision;
use candle_core::{D, DType, Device, Result, Shape, Tensor, Var};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::f64::consts::TAU;
use thiserror::Error;

const NORM_EPSILON: f64 = 1e-5;
const ROTARY_BASE: f64 = 10_000.0;
const INIT_DEVIATION: f64 = 0.02;
/// Most of each number of a shape, and of parameters: beyond any machine this model is for.
const SIZE_MAX: usize = 1 << 20;
const PARAMETERS_MAX: u128 = 1 << 32;
/// The matrix of embedded tokens.
pub(super) const EMBEDDING: &str = "embedding";

/// The shape of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GptConfig {
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Tokens in a window.
    pub context: usize,
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads per block.
    pub heads: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Whether the head shares the embedding's matrix.
    pub tied: bool,
}

/// Shapes that make no model.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GptConfigError {
    /// Something is 0.
    #[error("{what} must be at least 1")]
    Zero {
        /// Which number.
        what: &'static str,
    },
    /// Something is beyond every machine.
    #[error("{what} of {number}: the bundled model takes at most {most}")]
    Large {
        /// Which number.
        what: &'static str,
        /// What it is.
        number: u128,
        /// What it may be.
        most: u128,
    },
    /// Heads of odd or broken width.
    #[error("width {width} does not give {heads} heads of an even width each; the nearest that \
        does is {}", nearest(*width, *heads))]
    Heads {
        /// Width of the residual stream.
        width: usize,
        /// Heads asked for.
        heads: usize,
    },
}

fn nearest(width: usize, heads: usize) -> usize {
    let step = 2 * heads;
    ((width + step / 2) / step).max(1) * step
}

/// One parameter's place in the flat vector.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slot {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) offset: usize,
    deviation: f64,
}

impl Slot {
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len()
    }

    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

impl GptConfig {
    /// Width of the gated layer: a multiple of 8 near 8/3 of the residual stream.
    fn hidden(&self) -> usize {
        (self.width * 8 / 3).next_multiple_of(8)
    }

    /// Whether the shape makes a model.
    ///
    /// # Errors
    /// [`GptConfigError`] naming the number that does not fit.
    pub fn check(&self) -> std::result::Result<(), GptConfigError> {
        let numbers = [
            (self.vocabulary, "the vocabulary"),
            (self.context, "context"),
            (self.layers, "layers"),
            (self.heads, "heads"),
            (self.width, "width"),
        ];
        if let Some((_, what)) = numbers.into_iter().find(|(number, _)| *number == 0) {
            return Err(GptConfigError::Zero { what });
        }
        if let Some((number, what)) = numbers.into_iter().find(|(number, _)| *number > SIZE_MAX) {
            let (number, most) = (number as u128, SIZE_MAX as u128);
            return Err(GptConfigError::Large { what, number, most });
        }
        if !self.width.is_multiple_of(2 * self.heads) {
            return Err(GptConfigError::Heads { width: self.width, heads: self.heads });
        }
        // Sizes are bounded above, so that none of this overflows.
        let [vocabulary, layers, width] =
            [self.vocabulary, self.layers, self.width].map(|number| number as u128);
        let embeddings = vocabulary * width * if self.tied { 1 } else { 2 };
        let parameters = embeddings + layers * width * (4 * width + 3 * self.hidden() as u128);
        if parameters > PARAMETERS_MAX {
            let (number, most) = (parameters, PARAMETERS_MAX);
            return Err(GptConfigError::Large { what: "a number of parameters", number, most });
        }
        Ok(())
    }

    /// All parameters in order of their names.
    pub(super) fn slots(&self) -> Vec<Slot> {
        let residual = INIT_DEVIATION / (2.0 * self.layers as f64).sqrt();
        let (width, hidden) = (self.width, self.hidden());
        let mut shapes: BTreeMap<String, (Vec<usize>, f64)> = BTreeMap::new();
        shapes.insert(EMBEDDING.into(), (vec![self.vocabulary, width], INIT_DEVIATION));
        shapes.insert("norm".into(), (vec![width], 0.0));
        if !self.tied {
            shapes.insert("head".into(), (vec![width, self.vocabulary], INIT_DEVIATION));
        }
        for layer in 0..self.layers {
            let mut put = |name: &str, shape: Vec<usize>, deviation: f64| {
                shapes.insert(format!("block.{layer:03}.{name}"), (shape, deviation))
            };
            put("attention.norm", vec![width], 0.0);
            put("attention.qkv", vec![width, 3 * width], INIT_DEVIATION);
            put("attention.out", vec![width, width], residual);
            put("mlp.norm", vec![width], 0.0);
            put("mlp.gate", vec![width, hidden], INIT_DEVIATION);
            put("mlp.up", vec![width, hidden], INIT_DEVIATION);
            put("mlp.down", vec![hidden, width], residual);
        }
        let mut offset = 0;
        let slot = |(name, (shape, deviation)): (String, (Vec<usize>, f64))| {
            let slot = Slot { name, shape, offset, deviation };
            offset += slot.len();
            slot
        };
        shapes.into_iter().map(slot).collect()
    }

    /// Names and shapes of all parameters, in the order of the flat vector.
    #[must_use]
    pub fn layout(&self) -> Vec<(String, Vec<usize>)> {
        self.slots().into_iter().map(|slot| (slot.name, slot.shape)).collect()
    }

    /// Number of parameters.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.slots().iter().map(Slot::len).sum()
    }

    /// Floating point operations of a token's forward and backward pass, as model FLOPs utilisation
    /// counts them: recomputation, redundancy and all that is elementwise are left out.
    ///
    /// # Formula
    /// ```text
    /// F = 6 N + 12 L W T
    /// ```
    /// where `N` is the number of entries of all matrices that multiply activations (the head's,
    /// but not a separate embedding's), `L` the number of blocks, `W` the width and `T` the
    /// context: causal attention is counted in full.
    ///
    /// # Source
    /// Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B.
    ///
    /// ```
    /// use codedgrad_lab::trainer::GptConfig;
    /// let model =
    ///     GptConfig { vocabulary: 256, context: 64, layers: 1, heads: 2, width: 8, tied: true };
    /// let matrices = 256 * 8 + 4 * 8 * 8 + 3 * 8 * 24;
    /// assert_eq!(model.flops_per_token(), (6 * matrices + 12 * 8 * 64) as f64);
    /// ```
    #[must_use]
    pub fn flops_per_token(&self) -> f64 {
        let multiplies =
            |slot: &Slot| slot.shape.len() == 2 && (self.tied || slot.name != "embedding");
        let entries: usize =
            self.slots().iter().filter(|slot| multiplies(slot)).map(Slot::len).sum();
        (6 * entries + 12 * self.layers * self.width * self.context) as f64
    }

    /// Freshly drawn parameters: normal matrices, norms of 1.
    #[must_use]
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut uniform = || ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        let mut flat = Vec::with_capacity(self.parameters());
        for slot in self.slots() {
            for _ in 0..slot.len() {
                let normal = if slot.deviation == 0.0 {
                    1.0
                } else {
                    slot.deviation * (-2.0 * uniform().ln()).sqrt() * (TAU * uniform()).cos()
                };
                flat.push(normal as f32);
            }
        }
        flat
    }
}

/// The tokens `from ..` of each window.
fn part(windows: &[&[u32]], from: usize, time: usize) -> Vec<u32> {
    windows.iter().flat_map(|row| row[from..from + time].iter().copied()).collect()
}

/// The model: named variables and the constants of its positions.
#[derive(Debug)]
pub(super) struct Gpt {
    config: GptConfig,
    variables: BTreeMap<String, Var>,
    cosine: Tensor,
    sine: Tensor,
    mask: Tensor,
    /// The type of factors and products of matrices.
    product: DType,
}

impl Gpt {
    pub(super) fn new(config: GptConfig, precision: Precision, device: &Device) -> Result<Self> {
        let mut variables = BTreeMap::new();
        for slot in config.slots() {
            variables.insert(slot.name, Var::zeros(Shape::from(slot.shape), DType::F32, device)?);
        }
        let (context, half) = (config.context, config.width / config.heads / 2);
        let angle =
            |at: usize| (at / half) as f64 / ROTARY_BASE.powf((at % half) as f64 / half as f64);
        let table = |f: fn(f64) -> f64| {
            (0..context * half).map(|at| f(angle(at)) as f32).collect::<Vec<f32>>()
        };
        let hide = |at: usize| if at % context > at / context { f32::NEG_INFINITY } else { 0.0 };
        let mask: Vec<f32> = (0..context * context).map(hide).collect();
        let product = precision.dtype();
        Ok(Self {
            config,
            variables,
            cosine: Tensor::from_vec(table(f64::cos), (context, half), device)?
                .to_dtype(product)?,
            sine: Tensor::from_vec(table(f64::sin), (context, half), device)?.to_dtype(product)?,
            mask: Tensor::from_vec(mask, (context, context), device)?,
            product,
        })
    }

    pub(super) fn variable(&self, name: &str) -> &Var {
        &self.variables[name]
    }

    /// The embedded tokens of windows, `[rows x time x width]`.
    fn embedded(&self, windows: &[&[u32]], device: &Device) -> Result<Tensor> {
        let (rows, time) = (windows.len(), self.config.context);
        let tokens = Tensor::from_vec(part(windows, 0, time), rows * time, device)?;
        self.variable(EMBEDDING).embedding(&tokens)?.reshape((rows, time, self.config.width))
    }

    /// Log-probabilities `[rows x time x vocabulary]` of the successor of each embedded token
    /// `[rows x time x width]`.
    fn log_probabilities(&self, embedded: &Tensor) -> Result<Tensor> {
        let mut x = embedded.clone();
        for layer in 0..self.config.layers {
            let block = |name: &str| format!("block.{layer:03}.{name}");
            x = (&x
                + self
                    .attention(&self.norm(&x, &block("attention.norm"))?, &block)?
                    .to_dtype(DType::F32)?)?;
            x = (&x
                + self.mlp(&self.norm(&x, &block("mlp.norm"))?, &block)?.to_dtype(DType::F32)?)?;
        }
        let x = self.norm(&x, "norm")?;
        let logits = if self.config.tied {
            let (rows, time, width) = x.dims3()?;
            let flat = x.reshape((rows * time, width))?.matmul(&self.factor(EMBEDDING)?.t()?)?;
            flat.reshape((rows, time, self.config.vocabulary))?
        } else {
            self.linear(&x, "head")?
        };
        candle_nn::ops::log_softmax(&logits.to_dtype(DType::F32)?, D::Minus1)
    }

    /// Summed cross entropy of windows of `context + 1` tokens.
    pub(super) fn loss_sum(&self, windows: &[&[u32]], device: &Device) -> Result<Tensor> {
        let log_probabilities = self.log_probabilities(&self.embedded(windows, device)?)?;
        self.cross_entropy(&log_probabilities, windows, device)
    }

    fn cross_entropy(
        &self,
        log_probabilities: &Tensor,
        windows: &[&[u32]],
        device: &Device,
    ) -> Result<Tensor> {
        let (rows, time) = (windows.len(), self.config.context);
        let targets = Tensor::from_vec(part(windows, 1, time), (rows, time, 1), device)?;
        log_probabilities.gather(&targets, D::Minus1)?.sum_all()?.neg()
    }

    /// The same at mixtures of windows, lane by lane: embedded tokens and one-hot targets are both
    /// mixed with the same coefficients. Gives back the mixed tokens, of which the loss is a
    /// function apart from the embedding.
    pub(super) fn mixture_loss_sum(
        &self,
        blocks: &[(f64, Vec<&[u32]>)],
        device: &Device,
    ) -> Result<(Var, Tensor)> {
        let sum = |terms: Vec<Tensor>| {
            terms
                .into_iter()
                .map(Ok)
                .reduce(|a, b| a? + b?)
                .unwrap_or_else(|| Tensor::zeros((), DType::F32, device))
        };
        let scaled = |(coefficient, windows): &(f64, Vec<&[u32]>)| {
            self.embedded(windows, device)?.detach() * *coefficient
        };
        let mixed = Var::from_tensor(&sum(blocks.iter().map(scaled).collect::<Result<_>>()?)?)?;
        let log_probabilities = self.log_probabilities(mixed.as_tensor())?;
        let loss = |(coefficient, windows): &(f64, Vec<&[u32]>)| {
            self.cross_entropy(&log_probabilities, windows, device)? * *coefficient
        };
        let loss = sum(blocks.iter().map(loss).collect::<Result<_>>()?)?;
        Ok((mixed, loss))
    }

    /// A parameter as it is multiplied.
    fn factor(&self, name: &str) -> Result<Tensor> {
        self.variable(name).to_dtype(self.product)
    }

    fn linear(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let (rows, time, width) = x.dims3()?;
        let matrix = self.factor(name)?;
        x.reshape((rows * time, width))?.matmul(&matrix)?.reshape((rows, time, matrix.dim(1)?))
    }

    fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + NORM_EPSILON)?.sqrt()?;
        x.broadcast_div(&scale)?.broadcast_mul(self.variable(name))?.to_dtype(self.product)
    }

    fn attention(&self, x: &Tensor, block: &impl Fn(&str) -> String) -> Result<Tensor> {
        let (rows, time, width) = x.dims3()?;
        let (heads, head) = (self.config.heads, width / self.config.heads);
        let qkv = self.linear(x, &block("attention.qkv"))?.reshape((rows, time, 3, heads, head))?;
        let pick =
            |which: usize| qkv.narrow(2, which, 1)?.squeeze(2)?.transpose(1, 2)?.contiguous();
        let query = self.rotate(&pick(0)?)?;
        let key = self.rotate(&pick(1)?)?;
        let value = pick(2)?;
        let scores = (query.matmul(&key.t()?)?.to_dtype(DType::F32)? * (head as f64).powf(-0.5))?;
        let mask = self.mask.narrow(0, 0, time)?.narrow(1, 0, time)?;
        let attended = candle_nn::ops::softmax(&scores.broadcast_add(&mask)?, D::Minus1)?
            .to_dtype(self.product)?
            .matmul(&value)?;
        self.linear(
            &attended.transpose(1, 2)?.reshape((rows, time, width))?,
            &block("attention.out"),
        )
    }

    /// Rotary positions on `[rows x heads x time x head]`, halves rotated against each other.
    fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        let (_, _, time, head) = x.dims4()?;
        let (cosine, sine) = (self.cosine.narrow(0, 0, time)?, self.sine.narrow(0, 0, time)?);
        let (left, right) =
            (x.narrow(D::Minus1, 0, head / 2)?, x.narrow(D::Minus1, head / 2, head / 2)?);
        let real = (left.broadcast_mul(&cosine)? - right.broadcast_mul(&sine)?)?;
        let imaginary = (left.broadcast_mul(&sine)? + right.broadcast_mul(&cosine)?)?;
        Tensor::cat(&[real, imaginary], D::Minus1)
    }

    fn mlp(&self, x: &Tensor, block: &impl Fn(&str) -> String) -> Result<Tensor> {
        let gated =
            (self.linear(x, &block("mlp.gate"))?.silu()? * self.linear(x, &block("mlp.up"))?)?;
        self.linear(&gated, &block("mlp.down"))
    }
}
