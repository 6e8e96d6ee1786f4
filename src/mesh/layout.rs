//! The sizes of a layout, and the groups that follow from them.

use super::MeshError;
use crate::ids::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Ranks that a layout may have.
const RANKS_MAX: u32 = 1 << 20;

/// How many ranks share what: the sizes that Megatron-LM and torchtitan are started with.
///
/// ```
/// use codedgrad::mesh::{Layout, Mesh};
/// let mesh = Mesh::new(Layout { world: 64, tp: 2, cp: 2, ep: 4, ..Layout::default() })?;
/// assert_eq!((mesh.dp(), mesh.edp()), (16, 8));
/// # Ok::<(), codedgrad::mesh::MeshError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Layout {
    /// All ranks.
    pub world: u32,
    /// Ranks that share each matrix of the dense layers.
    pub tp: u32,
    /// Ranks that share each sequence.
    pub cp: u32,
    /// Stages of the pipeline.
    pub pp: u32,
    /// Ranks that share each matrix of an expert; as many as `tp` if not given.
    pub etp: Option<u32>,
    /// Ranks that share the experts among themselves.
    pub ep: u32,
    /// Which axis of the layout is the fastest as ranks count up.
    pub order: AxisOrder,
}

impl Default for Layout {
    /// One rank that shares nothing.
    fn default() -> Self {
        Self { world: 1, tp: 1, cp: 1, pp: 1, etp: None, ep: 1, order: AxisOrder::default() }
    }
}

/// The order of the axes, fastest first, as Megatron-LM writes it.
///
/// ```
/// use codedgrad::mesh::AxisOrder;
/// assert_eq!("tp-cp-ep-pp-dp".parse(), Ok(AxisOrder::DataLast));
/// let error = "dp-tp".parse::<AxisOrder>().unwrap_err();
/// assert_eq!(error, "\"dp-tp\" is no order of axes; it is tp-cp-ep-dp-pp or tp-cp-ep-pp-dp");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AxisOrder {
    /// `tp-cp-ep-dp-pp`: the stages of a pipeline are far apart.
    #[default]
    #[serde(rename = "tp-cp-ep-dp-pp")]
    PipelineLast,
    /// `tp-cp-ep-pp-dp`: the replicas are far apart.
    #[serde(rename = "tp-cp-ep-pp-dp")]
    DataLast,
}

impl AxisOrder {
    /// Its text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PipelineLast => "tp-cp-ep-dp-pp",
            Self::DataLast => "tp-cp-ep-pp-dp",
        }
    }

    /// The axes, fastest first.
    pub(super) fn axes(self) -> [Axis; 5] {
        use Axis::{Context, Data, Expert, Pipeline, Tensor};
        match self {
            Self::PipelineLast => [Tensor, Context, Expert, Data, Pipeline],
            Self::DataLast => [Tensor, Context, Expert, Pipeline, Data],
        }
    }
}

impl fmt::Display for AxisOrder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for AxisOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let orders = [Self::PipelineLast, Self::DataLast];
        let known = orders.into_iter().find(|order| order.name() == text);
        known.ok_or_else(|| {
            let [first, second] = orders;
            format!("{text:?} is no order of axes; it is {first} or {second}")
        })
    }
}

/// Which layers of a model a group is for: folding gives the two kinds groups of their own over the
/// same ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layers {
    /// Attention, norms, routers, embeddings: all but the experts.
    Dense,
    /// The experts.
    Expert,
}

/// What the ranks of a group divide among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Matrices: `tp`, of the experts `etp`.
    Tensor,
    /// Sequences: `cp`; the experts see tokens, and have none.
    Context,
    /// Experts: `ep`; the dense layers have none.
    Expert,
    /// Samples: `dp`, of the experts `edp`.
    Data,
    /// Layers: `pp`.
    Pipeline,
}

impl Layout {
    /// The layout with `etp` filled in, if there is one.
    pub(super) fn checked(self) -> Result<Self, MeshError> {
        let etp = self.etp.unwrap_or(self.tp);
        let sizes = [
            ("world", self.world),
            ("tp", self.tp),
            ("cp", self.cp),
            ("pp", self.pp),
            ("etp", etp),
            ("ep", self.ep),
        ];
        for (name, size) in sizes {
            if size == 0 {
                return Err(MeshError::Zero { name });
            }
            if size > RANKS_MAX {
                return Err(MeshError::TooMany { name, size, most: RANKS_MAX });
            }
        }
        let layout = Self { etp: Some(etp), ..self };
        layout.check_multiples()?;
        layout.check_pipelines()?;
        Ok(layout)
    }

    fn check_multiples(&self) -> Result<(), MeshError> {
        let product = |sizes: [u32; 3]| sizes.map(u64::from).iter().product::<u64>();
        let dense = product([self.tp, self.cp, self.pp]);
        let expert = product([self.experts_tp(), self.ep, self.pp]);
        for (product, value) in [("tp x cp x pp", dense), ("etp x ep x pp", expert)] {
            if !u64::from(self.world).is_multiple_of(value) {
                let both = lcm(dense, expert);
                let (below, above) = beside(self.world, both, RANKS_MAX);
                return Err(MeshError::NotAMultiple {
                    world: self.world,
                    product,
                    value,
                    below,
                    above,
                });
            }
        }
        Ok(())
    }

    /// Both kinds of layers must cut the ranks into the same pipelines. They do where stages are
    /// the slowest axis, where there is one stage, and where both have equally many replicas.
    fn check_pipelines(&self) -> Result<(), MeshError> {
        let [dense, expert] =
            [Layers::Dense, Layers::Expert].map(|layers| self.size(layers, Axis::Data));
        if self.order == AxisOrder::PipelineLast || self.pp == 1 || dense == expert {
            return Ok(());
        }
        let of = |layers| self.groups(layers, &[Axis::Pipeline]);
        let mut pairs = of(Layers::Dense).into_iter().zip(of(Layers::Expert));
        match pairs.find(|(dense, expert)| dense != expert) {
            Some((dense, expert)) => {
                Err(MeshError::PipelinesDiffer { order: self.order, dense, expert })
            }
            None => Ok(()),
        }
    }

    /// `etp`, given or not.
    pub(super) fn experts_tp(&self) -> u32 {
        self.etp.unwrap_or(self.tp)
    }

    /// How many ranks an axis has. The layout must be checked.
    pub(super) fn size(&self, layers: Layers, axis: Axis) -> u32 {
        let per_stage = self.world / self.pp;
        match (axis, layers) {
            (Axis::Pipeline, _) => self.pp,
            (Axis::Tensor, Layers::Dense) => self.tp,
            (Axis::Context, Layers::Dense) => self.cp,
            (Axis::Data, Layers::Dense) => per_stage / self.tp / self.cp,
            (Axis::Tensor, Layers::Expert) => self.experts_tp(),
            (Axis::Expert, Layers::Expert) => self.ep,
            (Axis::Data, Layers::Expert) => per_stage / self.experts_tp() / self.ep,
            (Axis::Expert, Layers::Dense) | (Axis::Context, Layers::Expert) => 1,
        }
    }

    /// See [`Mesh::groups`](super::Mesh::groups).
    pub(super) fn groups(&self, layers: Layers, axes: &[Axis]) -> Vec<Vec<Rank>> {
        // How far each axis moves a rank's group; those within groups move it nowhere.
        let mut count = 1;
        let strides = self.order.axes().map(|axis| {
            let size = self.size(layers, axis);
            let stride = if axes.contains(&axis) { 0 } else { count };
            count *= if axes.contains(&axis) { 1 } else { size };
            (size, stride)
        });
        let mut groups = vec![Vec::with_capacity((self.world / count) as usize); count as usize];
        for rank in 0..self.world {
            let mut rest = rank;
            let mut group = 0;
            for (size, stride) in strides {
                group += rest % size * stride;
                rest /= size;
            }
            groups[group as usize].push(Rank(rank));
        }
        groups
    }
}

/// The least common multiple; the largest number there is where it cannot be counted.
pub(super) fn lcm(a: u64, b: u64) -> u64 {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).saturating_mul(b)
}

/// The multiples of a number on either side of another, from 1 to the most there may be.
pub(super) fn beside(number: u32, of: u64, most: u32) -> (Option<u32>, Option<u32>) {
    let within = |multiple: u64| {
        u32::try_from(multiple).ok().filter(|multiple| (1..=most).contains(multiple))
    };
    let below = u64::from(number) / of * of;
    (within(below), within(below.saturating_add(of)))
}
