//! Functions, data and attacks on which the codes are measured: 8 x 8 blocks, seeds for everything
//! that is drawn.

use crate::ids::Worker;
use ndarray::Array2;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_distr::{Distribution, StandardNormal};

/// Rows and columns of a data block.
const SIDE: usize = 8;
/// Width of the small network.
const HIDDEN: usize = 16;

/// What workers compute of a block `X`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `X`
    Identity,
    /// `X^2`, element by element.
    Square,
    /// `1 / (1 + exp(-X))`, element by element.
    Sigmoid,
    /// `X sin X`, element by element.
    XSinX,
    /// `X^T X`
    Gram,
    /// `tanh(relu(X W1) W2)`, a network of widths 8, 16, 8 with weights from the seed.
    Mlp,
}

impl Function {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Identity, Self::Square, Self::Sigmoid, Self::XSinX, Self::Gram, Self::Mlp];

    /// Its degree, if it is a polynomial.
    ///
    /// ```
    /// use codedgrad::codes::berrut::trial::Function;
    /// assert_eq!((Function::Gram.degree(), Function::Mlp.degree()), (Some(2), None));
    /// ```
    #[must_use]
    pub fn degree(self) -> Option<usize> {
        match self {
            Self::Identity => Some(1),
            Self::Square | Self::Gram => Some(2),
            Self::Sigmoid | Self::XSinX | Self::Mlp => None,
        }
    }
}

/// How Byzantine workers are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Corruption {
    /// Independent Gaussian errors.
    Gaussian,
    /// All add the same Gaussian vector: errors of rank 1, the hardest to locate.
    Colluding,
    /// All send minus their output; the size counts for nothing.
    SignFlip,
}

/// One function over one draw of data.
///
/// ```
/// use codedgrad::codes::berrut::trial::{Function, Trial, relative_error};
/// let trial = Trial::new(Function::Square, 3, 7);
/// let truth = trial.truth();
/// assert_eq!((truth.len(), truth[0].dim()), (3, (8, 8)));
/// assert_eq!(relative_error(&truth, &truth), 0.0);
/// ```
#[derive(Clone, Debug)]
pub struct Trial {
    function: Function,
    blocks: Vec<Array2<f64>>,
    first: Array2<f64>,
    second: Array2<f64>,
    attack: ChaCha8Rng,
}

fn normal(rng: &mut ChaCha8Rng, rows: usize, columns: usize) -> Array2<f64> {
    Array2::from_shape_simple_fn((rows, columns), || StandardNormal.sample(rng))
}

impl Trial {
    /// Draws `blocks` independent standard normal 8 x 8 blocks, the network's weights (He's
    /// variance `2/8`, then `1/16`) and what attacks need, each from its own stream of the
    /// seed.
    ///
    /// ```
    /// use codedgrad::codes::berrut::trial::{Function, Trial};
    /// assert_eq!(Trial::new(Function::Mlp, 2, 7).blocks().len(), 2);
    /// ```
    #[must_use]
    pub fn new(function: Function, blocks: usize, seed: u64) -> Self {
        let stream = |number: u64| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(number);
            rng
        };
        let (mut data, mut weights) = (stream(0), stream(1));
        Self {
            function,
            blocks: (0..blocks).map(|_| normal(&mut data, SIDE, SIDE)).collect(),
            first: normal(&mut weights, SIDE, HIDDEN) * (2.0 / SIDE as f64).sqrt(),
            second: normal(&mut weights, HIDDEN, SIDE) / (HIDDEN as f64).sqrt(),
            attack: stream(2),
        }
    }

    /// The data blocks.
    ///
    /// ```
    /// use codedgrad::codes::berrut::trial::{Function, Trial};
    /// assert_eq!(Trial::new(Function::Gram, 2, 7).blocks()[0].dim(), (8, 8));
    /// ```
    #[must_use]
    pub fn blocks(&self) -> &[Array2<f64>] {
        &self.blocks
    }

    /// The function of one share or block.
    ///
    /// ```
    /// use codedgrad::codes::berrut::trial::{Function, Trial};
    /// let trial = Trial::new(Function::Identity, 1, 7);
    /// assert_eq!(trial.apply(&trial.blocks()[0]), trial.blocks()[0]);
    /// ```
    #[must_use]
    pub fn apply(&self, x: &Array2<f64>) -> Array2<f64> {
        match self.function {
            Function::Identity => x.clone(),
            Function::Square => x * x,
            Function::Sigmoid => x.mapv(|x| 1.0 / (1.0 + (-x).exp())),
            Function::XSinX => x.mapv(|x| x * x.sin()),
            Function::Gram => x.t().dot(x),
            Function::Mlp => {
                x.dot(&self.first).mapv(|x| x.max(0.0)).dot(&self.second).mapv(f64::tanh)
            }
        }
    }

    /// The function of every data block: what a decode should give.
    ///
    /// ```
    /// use codedgrad::codes::berrut::trial::{Function, Trial};
    /// assert!(
    ///     Trial::new(Function::Sigmoid, 1, 7).truth()[0].iter().all(|y| *y > 0.0 && *y < 1.0)
    /// );
    /// ```
    #[must_use]
    pub fn truth(&self) -> Vec<Array2<f64>> {
        self.blocks.iter().map(|block| self.apply(block)).collect()
    }

    /// Makes the outputs of `wrong` workers wrong by errors of `rms` times the rms of all
    /// `outputs`, one per worker.
    ///
    /// ```
    /// use codedgrad::codes::berrut::trial::{Corruption, Function, Trial};
    /// use codedgrad::ids::Worker;
    /// let mut trial = Trial::new(Function::Identity, 2, 7);
    /// let honest = trial.truth();
    /// let mut outputs = honest.clone();
    /// trial.corrupt(&mut outputs, &[Worker(1)], Corruption::SignFlip, 1.0);
    /// assert!(outputs[0] == honest[0] && outputs[1] == -&honest[1]);
    /// ```
    pub fn corrupt(
        &mut self,
        outputs: &mut [Array2<f64>],
        wrong: &[Worker],
        attack: Corruption,
        rms: f64,
    ) {
        let squares: f64 = outputs.iter().flatten().map(|y| y * y).sum();
        let elements: usize = outputs.iter().map(Array2::len).sum();
        let size = rms * (squares / elements as f64).sqrt();
        let same = normal(&mut self.attack, SIDE, SIDE);
        for worker in wrong {
            let output = &mut outputs[worker.index()];
            match attack {
                Corruption::Gaussian => *output += &(normal(&mut self.attack, SIDE, SIDE) * size),
                Corruption::Colluding => *output += &(&same * size),
                Corruption::SignFlip => output.mapv_inplace(|y| -y),
            }
        }
    }
}

/// The Frobenius norm of the difference over that of the truth, over all arrays together.
///
/// ```
/// use codedgrad::codes::berrut::trial::relative_error;
/// use ndarray::array;
/// assert_eq!(relative_error(&[array![[3.0, 5.0]]], &[array![[3.0, 4.0]]]), 0.2);
/// ```
#[must_use]
pub fn relative_error(found: &[Array2<f64>], truth: &[Array2<f64>]) -> f64 {
    let squares = |arrays: &mut dyn Iterator<Item = f64>| arrays.map(|x| x * x).sum::<f64>();
    let difference = squares(
        &mut found.iter().zip(truth).flat_map(|(a, b)| a.iter().zip(b).map(|(a, b)| a - b)),
    );
    (difference / squares(&mut truth.iter().flatten().copied())).sqrt()
}
