//! The flags of `codedgrad-lab berrut`, and what they ask for of the library.

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use codedgrad::codes::berrut::trial::Function;
use codedgrad::codes::berrut::{
    ByzantineDefence, Encoder, Form, Interpolant, Locator, Points, Tolerance,
};
use codedgrad_shell::failure::Failure;
use codedgrad_shell::layout::help;
use codedgrad_shell::units::{at_least, count, whole};
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FunctionArg {
    X,
    Square,
    Sigmoid,
    Xsinx,
    Gram,
    Mlp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EncoderArg {
    Berrut,
    Spline,
    Lagrange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DecoderArg {
    Berrut,
    Spline,
    Lsq,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LocatorArg {
    Pgz,
    Music,
    Lts,
    Gp,
}

#[derive(Debug, Args)]
#[command(
    long_about = help("Decode any function of coded data, not only sums: Berrut approximated coded \
        computing.\n\n\
        K data blocks are mixed into N shares, one per worker. Each worker applies the function to \
        its share and the K results are interpolated from the answers. With --secure, answers \
        that are wrong are located and left out first. The data are random 8 x 8 blocks, so that \
        the error can be measured."),
    after_help = help("\
Functions:  x, square, sigmoid, xsinx act element by element; gram is X^T X; mlp is tanh(relu(X
            W1) W2).
Encoders:   spline (default), berrut (as the papers), lagrange (polynomials are decoded
            exactly).
Decoders:   spline (default), berrut (as the papers), lsq (the polynomial of degree below
            --dimension; with the Lagrange encoder unless another is asked for).
Locators:   gp (default) suits any function and takes back whom it accused for nothing. pgz and
            music are the papers', lts their robust cousin: they accuse exactly --max-byzantine
            workers and need outputs near polynomials of degree below --dimension (D(K-1)+1
            where that is exact, else 2K).
Lists:      0,2,5-7, ascending, counted from 0. Byzantine workers add Gaussian errors of
            --corruption times the rms of all outputs.

Examples:
  codedgrad-lab berrut --function sigmoid --stragglers 2,9
  codedgrad-lab berrut --function mlp --data-blocks 8 --workers 32 --byzantine 3,17 --secure
  codedgrad-lab berrut --function mlp --byzantine 3,7 --corruption 100             # no defence
  codedgrad-lab berrut --function gram --stragglers 1 --byzantine 4-6 --secure --locator pgz
  codedgrad-lab berrut --function square --sweep --out pictures")
)]
pub(crate) struct BerrutArgs {
    /// What workers compute
    #[arg(long, value_enum, default_value = "mlp")]
    pub(super) function: FunctionArg,
    /// Number of data blocks, K
    #[arg(
        long, value_name = "K", default_value_t = 4,
        value_parser = count::<u32>(1..=1024)
    )]
    pub(super) data_blocks: u32,
    /// Number of workers, N
    #[arg(
        long, value_name = "N", default_value_t = 16,
        value_parser = count::<u32>(1..=1024)
    )]
    pub(super) workers: u32,
    /// Workers that do not answer, such as 2,9-11
    #[arg(long, value_name = "LIST")]
    pub(super) stragglers: Option<String>,
    /// Workers that return wrong results
    #[arg(long, value_name = "LIST")]
    pub(super) byzantine: Option<String>,
    /// Size of Byzantine workers' errors, in units of the outputs' rms
    #[arg(long, value_name = "RMS", default_value_t = 10.0)]
    pub(super) corruption: f64,
    /// Locate Byzantine workers and leave them out; workers then sit at points of the first kind
    #[arg(long)]
    pub(super) secure: bool,
    /// Most Byzantine workers that are looked for; as many as --byzantine lists if not given
    #[arg(long, value_name = "A", value_parser = whole::<u32>, requires = "secure")]
    pub(super) max_byzantine: Option<u32>,
    /// How shares are made of the data
    #[arg(long, value_enum)]
    encoder: Option<EncoderArg>,
    /// How outputs are made of answers
    #[arg(long, value_enum, default_value = "spline")]
    decoder: DecoderArg,
    /// Degrees are below this, for --decoder lsq and --locator pgz, music, lts
    #[arg(long, value_name = "M", value_parser = at_least(1u32))]
    dimension: Option<u32>,
    /// How Byzantine workers are located; gp if not given
    #[arg(long, value_enum, requires = "secure")]
    locator: Option<LocatorArg>,
    /// Look for Byzantine workers even where too few others are left to tell them apart
    #[arg(long, requires = "secure")]
    force: bool,
    /// Draw the error against N, stragglers and attack size: sweep.svg and sweep.csv in a new
    /// folder
    #[arg(long)]
    pub(super) sweep: bool,
    /// Folder for --sweep; a new one under runs/ if not given
    #[arg(long, value_name = "DIR", requires = "sweep")]
    pub(super) out: Option<PathBuf>,
    /// Seed of the data, the network, the errors and the sketches
    #[arg(long, value_name = "S", value_parser = whole::<u64>, default_value_t = 7)]
    pub(super) seed: u64,
    /// Print one JSON object instead of a picture and words
    #[arg(long)]
    pub(super) json: bool,
}

impl BerrutArgs {
    pub(super) fn function(&self) -> Function {
        match self.function {
            FunctionArg::X => Function::Identity,
            FunctionArg::Square => Function::Square,
            FunctionArg::Sigmoid => Function::Sigmoid,
            FunctionArg::Xsinx => Function::XSinX,
            FunctionArg::Gram => Function::Gram,
            FunctionArg::Mlp => Function::Mlp,
        }
    }

    pub(super) fn encoder(&self) -> Encoder {
        match (self.encoder, self.decoder) {
            (Some(EncoderArg::Berrut), _) => Encoder::Berrut,
            (Some(EncoderArg::Lagrange), _) | (None, DecoderArg::Lsq) => Encoder::Lagrange,
            (Some(EncoderArg::Spline), _) | (None, _) => Encoder::Spline,
        }
    }

    /// What encoder and decoder are called.
    pub(super) fn names(&self) -> (&'static str, &'static str) {
        let encoder = match self.encoder() {
            Encoder::Berrut => "berrut",
            Encoder::Spline => "spline",
            Encoder::Lagrange => "lagrange",
        };
        let decoder = match self.decoder {
            DecoderArg::Berrut => "berrut",
            DecoderArg::Spline => "spline",
            DecoderArg::Lsq => "lsq",
        };
        (encoder, decoder)
    }

    pub(super) fn points(&self) -> Points {
        if self.secure { Points::FirstKind } else { Points::SecondKind }
    }

    /// The dimension of fits and codes, for so many survivors of which `wrong` may be wrong.
    fn dimension(&self, survivors: usize, wrong: usize) -> usize {
        let blocks = self.data_blocks as usize;
        let exact = self
            .function()
            .degree()
            .filter(|_| self.encoder() == Encoder::Lagrange)
            .map(|degree| degree * (blocks - 1) + 1);
        let given = self.dimension.map(|dimension| dimension as usize);
        given
            .or(exact)
            .unwrap_or_else(|| ByzantineDefence::usual_dimension(blocks, survivors, wrong))
    }

    pub(super) fn interpolant(&self, survivors: usize, wrong: usize) -> Interpolant {
        match self.decoder {
            DecoderArg::Berrut => Interpolant::Berrut,
            DecoderArg::Spline => Interpolant::SPLINE,
            DecoderArg::Lsq => {
                Interpolant::LeastSquares { dimension: self.dimension(survivors, wrong) }
            }
        }
    }

    pub(super) fn security(&self, survivors: usize, byzantine: usize) -> ByzantineDefence {
        let dimension = self.dimension(survivors, byzantine);
        let locator = match self.locator.unwrap_or(LocatorArg::Gp) {
            LocatorArg::Gp => Locator::Robust(Tolerance::default()),
            LocatorArg::Lts => Locator::Trimmed { dimension },
            LocatorArg::Pgz => Locator::Dct { dimension, form: Form::Polynomial },
            LocatorArg::Music => Locator::Dct { dimension, form: Form::Subspace },
        };
        ByzantineDefence { byzantine, locator, force: self.force }
    }

    pub(super) fn check(&self) -> Result<(), Failure> {
        if self.corruption.is_nan() || self.corruption < 0.0 {
            return Err(Failure::Input(anyhow!(
                "--corruption {}: must be a number of 0 or more",
                self.corruption
            )));
        }
        let fitted = self.decoder == DecoderArg::Lsq
            || self.locator.is_some_and(|locator| locator != LocatorArg::Gp);
        if self.dimension.is_some() && !fitted {
            let why = "it bounds the degree for --decoder lsq and for --locator pgz, music and \
                lts, none of which is asked for";
            return Err(Failure::Input(anyhow!("--dimension without use: {why}")));
        }
        Ok(())
    }
}
