//! Berrut approximated coded computing (BACC), secured by DCT codes (SBACC): codes for any function
//! of the data, not only for sums.
//!
//! # Construction
//! `K` data blocks are values at points `alpha_j` of a curve `u` in [-1, 1]; worker `i` gets the
//! value at its own point, `u(z_i)`, and applies a function `f` to it. The outputs are values of
//! the smooth `h = f o u`, from which the `h(alpha_j) = f(X_j)` are interpolated, no matter who is
//! missing. Encoder and decoder are small `f64` matrices.
//!
//! # Guarantee
//! Approximate, with error bounds for known derivatives ([`mesh_bound`], [`straggler_bound`]);
//! exact where a worker's point is a data point, and for polynomials of degree `D` with the
//! Lagrange encoder and [`Interpolant::LeastSquares`] of dimension `D (K-1) + 1`. With points of
//! the first kind the outputs are a noisy DCT codeword, in which wrong outputs are located and
//! erased.
//!
//! # Cost
//! Encoding N K multiply-adds per element, decoding K |F|, the sum of all outputs |F|; the locators
//! cost O(n^3) beyond one pass over the outputs for their inner products.
//!
//! # Numerics
//! Rows of all matrices sum to 1. Berrut's signs alternate by position among the survivors: by
//! their own numbers most straggler sets leave a pole in [-1, 1]. The spline amplifies noise least.
//!
//! # Source
//! Jahani-Nezhad, Maddah-Ali, "Berrut Approximated Coded Computing", TPAMI, arXiv 2009.08327;
//! Borah, Harshan, "Securing Berrut's approximated coded computing by DCT codes", arXiv 2507.01330;
//! both known from their abstracts. PAPERS.md tells what is derived here.
//!
//! | file | what |
//! |---|---|
//! | `points`, `interpolate`, `code` | points, interpolants as matrices, the code |
//! | `bounds` | error bounds |
//! | `dct`, `locator` | the transform, the papers' locators |
//! | `search`, `prior` | least trimmed squares, the smoothness prior, re-admission |
//! | `secure` | which locator runs, refusals, the verdict |
//! | `arrays` | encoding and decoding of ndarray arrays: the only place in `codes` that sees an array |
//! | `mixture` | the codes as schemes of training |
//! | `trial` | functions, data and attacks on which all this is measured |

mod arrays;
mod bounds;
mod code;
mod dct;
mod error;
mod interpolate;
mod jacobi;
mod locator;
mod mixture;
mod points;
mod prior;
mod received;
mod search;
mod secure;
pub mod trial;

pub use arrays::{BerrutDecoder, BerrutReport, DecodedOutputs};
pub use bounds::{Derivatives, mesh_bound, straggler_bound};
pub use code::{BerrutCode, Encoder};
pub use dct::Dct;
pub use error::BerrutError;
pub use interpolate::{Interpolant, floater_hormann_weights};
pub use locator::{Form, dct_locate, extended_syndromes};
pub use mixture::{Mixture, MixtureParameters};
pub use points::{Nodes, Points, data_points};
pub use prior::{Tolerance, TrimmedFit, residuals_by_exponent, robust_locate, trimmed_locate};
pub use received::{Gram, ReceivedOutputs};
pub use secure::{ByzantineDefence, Evidence, Locator, Verdict};
