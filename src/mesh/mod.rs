//! Who is late together, and who exchanges what, where training is parallel in more ways than over
//! samples.
//!
//! Megatron-LM and torchtitan cut a mixture-of-experts model by five axes: matrices (`tp`),
//! sequences (`cp`), experts (`ep`), layers (`pp`) and samples (`dp`). With *folding* the dense
//! layers and the experts are cut independently, over the same ranks. A [`Mesh`] tells what is left
//! of such a layout for a code, in integers; it computes and sends nothing.
//!
//! # Cells
//! Ranks of one tensor, context, expert or pipeline group wait for each other inside forward and
//! backward, so none of them is ever late alone. What is connected by such groups is a *cell*. A
//! cell waits for others only at the end of a step, for gradients. Every other module calls it a
//! [`Worker`], and the shares of a batch are dealt to cells.
//!
//! # Formula
//! ```text
//! l = lcm(tp cp, etp ep)    cell size = pp l    workers = world / (pp l)
//! rank(cell c, stage p, place q) = p world/pp + c l + q     (order tp-cp-ep-dp-pp)
//!                                = c pp l + p l + q         (order tp-cp-ep-pp-dp)
//! seat = p l + q
//! ```
//! where `0 <= p < pp`, `0 <= q < l`, and seats number the ranks of a cell. Each group whose ranks
//! hold the same parameters takes the same seats in every cell: those with one `q mod tp` for dense
//! parameters, with one `q mod (etp ep)` for the experts'.
//!
//! # How gradients are reduced
//! Within each cell a [`Class`] of parameters is summed over [`Partners::inside`], then over
//! [`Partners::then`], where there is one. The code takes the place of what is left, the sum over
//! [`Partners::across`]: each seat encodes with the coefficients of its cell and is decoded with
//! the weights of whole cells. A cell can as well collect its gradients into one vector first and
//! have one aggregator, as `examples/folded_moe.rs` does.
//!
//! # What an integration must keep to
//! - Scale the loss before backward: by its coefficient over the tokens of the whole batch. Then
//!   the gradients of all classes are plain sums with one scale, 1. A job that keeps Megatron's
//!   mean scales every class by [`Mesh::mean_scale`], `1 / (dp cp)`, the experts' too: the gradient
//!   of an expert already holds the tokens of all ranks that sent it some, so that `1 / edp` would
//!   be wrong.
//! - Route, and drop beyond a capacity, within each part of a batch on its own
//!   ([`Part`](crate::ids::Part)), never within several merged: which token is dropped depends on
//!   which others are there, and two workers that compute the same part must have the same result.
//! - No collective across cells inside forward or backward: no auxiliary loss over all ranks, no
//!   parameters gathered from all (FSDP, ZeRO-3). It would make all cells one. Optimizer states cut
//!   over ranks (ZeRO-1) do no harm.
//! - Tokens per expert, for balancing, go into the tail of a result: decoded weights of 0 and 1
//!   leave them exact.
//!
//! # Source
//! Liu et al., "MoE Parallel Folding", 2025 (arXiv 2504.14960); the order of groups is that of
//! Megatron-LM.

mod error;
mod layout;

pub use error::MeshError;
pub use layout::{Axis, AxisOrder, Layers, Layout};

use crate::ids::{Rank, Seat, Worker};
use layout::{beside, lcm};
use std::ops::Range;

/// Parameters whose gradients are reduced alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Those of the dense layers that are cut over the tensor group: attention, the dense MLPs.
    Dense,
    /// Those of the dense layers that every rank of the tensor group has whole and sees a part of
    /// the sequence for: norms and routers under sequence parallelism.
    Replicated,
    /// An embedding that the first and the last stage of a pipeline share.
    Tied,
    /// The experts'.
    Expert,
}

/// Which ranks a rank's gradient of one class is summed with. Each list is ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partners {
    /// First: those of its own cell, itself among them.
    pub inside: Vec<Rank>,
    /// Second: those in its own cell with the other part of the same parameters' gradient. Empty
    /// where none has it.
    pub then: Vec<Rank>,
    /// Last: those with its seat in every cell, itself among them. What is coded.
    pub across: Vec<Rank>,
}

/// A layout that exists, with its cells.
///
/// ```
/// use codedgrad::ids::{Rank, Seat, Worker};
/// use codedgrad::mesh::{Class, Layout, Mesh};
/// // Attention over two ranks, eight experts over four: cells of four ranks.
/// let mesh = Mesh::new(Layout { world: 16, cp: 2, ep: 4, ..Layout::default() })?;
/// assert_eq!((mesh.workers(), mesh.cell_size()), (4, 4));
/// assert_eq!((mesh.worker(Rank(6)), mesh.seat(Rank(6))), (Worker(1), Seat(2)));
/// // Rank 6 sums attention with its whole cell, and has its experts for itself there.
/// assert_eq!(mesh.partners(Class::Dense, Rank(6)).inside, [4, 5, 6, 7].map(Rank));
/// assert_eq!(mesh.partners(Class::Expert, Rank(6)).inside, [Rank(6)]);
/// assert_eq!(mesh.partners(Class::Expert, Rank(6)).across, [2, 6, 10, 14].map(Rank));
/// assert_eq!(mesh.local_experts(Rank(6), 8)?, 4..6);
/// # Ok::<(), codedgrad::mesh::MeshError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    layout: Layout,
    /// Ranks of a cell in one stage: `l`.
    block: u32,
    /// Ranks of a cell.
    cell: u32,
}

impl Mesh {
    /// The mesh of a layout.
    ///
    /// # Errors
    /// [`MeshError`] where the sizes do not fit each other, with those that would.
    ///
    /// ```
    /// use codedgrad::mesh::{Layout, Mesh};
    /// let layout = Layout { world: 100, tp: 2, pp: 8, ..Layout::default() };
    /// let error = Mesh::new(layout).unwrap_err();
    /// let said = "a world of 100 ranks is not a multiple of tp x cp x pp = 16; the nearest that \
    ///             fit are 96 and 112";
    /// assert_eq!(error.to_string(), said);
    /// ```
    pub fn new(layout: Layout) -> Result<Self, MeshError> {
        let layout = layout.checked()?;
        let [dense, expert] =
            [[layout.tp, layout.cp], [layout.experts_tp(), layout.ep]].map(|[a, b]| a * b);
        // Both divide the ranks of a stage, so does this.
        let block = lcm(dense.into(), expert.into()) as u32;
        Ok(Self { layout, block, cell: layout.pp * block })
    }

    /// The layout, with `etp` filled in.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Ranks that hold the same dense parameters for different sequences: `world / (tp cp pp)`.
    #[must_use]
    pub fn dp(&self) -> u32 {
        self.layout.size(Layers::Dense, Axis::Data)
    }

    /// Ranks that hold the same experts: `world / (etp ep pp)`.
    #[must_use]
    pub fn edp(&self) -> u32 {
        self.layout.size(Layers::Expert, Axis::Data)
    }

    /// The groups of ranks that differ in nothing but these axes, in the order in which Megatron-LM
    /// makes them.
    ///
    /// # Formula
    /// ```text
    /// coordinate of a rank: for each axis, fastest first: c = rank mod size, rank = rank div size
    /// ```
    /// where ranks with equal coordinates of all other axes are one group; groups are sorted by
    /// those, the slowest axis counting most, and ranks within them ascend.
    ///
    /// ```
    /// use codedgrad::ids::Rank;
    /// use codedgrad::mesh::{Axis, Layers, Layout, Mesh};
    /// let mesh = Mesh::new(Layout { world: 8, tp: 2, pp: 2, ..Layout::default() })?;
    /// let replicas = mesh.groups(Layers::Dense, &[Axis::Data]);
    /// assert_eq!(replicas, [[0, 2], [1, 3], [4, 6], [5, 7]].map(|group| group.map(Rank)));
    /// # Ok::<(), codedgrad::mesh::MeshError>(())
    /// ```
    #[must_use]
    pub fn groups(&self, layers: Layers, axes: &[Axis]) -> Vec<Vec<Rank>> {
        self.layout.groups(layers, axes)
    }

    /// Cells: how many workers are left to code over.
    #[must_use]
    pub fn workers(&self) -> usize {
        (self.layout.world / self.cell) as usize
    }

    /// Ranks of each cell, which wait for each other.
    #[must_use]
    pub fn cell_size(&self) -> usize {
        self.cell as usize
    }

    /// How many ranks of one cell lie along an axis: of replicas those in the cell, of any other
    /// axis all.
    ///
    /// ```
    /// use codedgrad::mesh::{Axis, Layers, Layout, Mesh};
    /// let layout = Layout { world: 16, tp: 2, etp: Some(1), ep: 4, ..Layout::default() };
    /// let mesh = Mesh::new(layout)?;
    /// assert_eq!((mesh.in_cell(Layers::Dense, Axis::Data), mesh.dp()), (2, 8));
    /// assert_eq!((mesh.in_cell(Layers::Expert, Axis::Expert), mesh.cell_size()), (4, 4));
    /// # Ok::<(), codedgrad::mesh::MeshError>(())
    /// ```
    #[must_use]
    pub fn in_cell(&self, layers: Layers, axis: Axis) -> u32 {
        let size = self.layout.size(layers, axis);
        if axis == Axis::Data { size / (self.layout.world / self.cell) } else { size }
    }

    /// The ranks of every cell by their seats, as a table `[workers x cell size]`.
    #[must_use]
    pub fn cells(&self) -> Vec<Vec<Rank>> {
        let ranks = |worker| (0..self.cell).map(|seat| self.rank(worker, Seat(seat))).collect();
        Worker::all(self.workers()).map(ranks).collect()
    }

    /// The worker that a rank is a part of. Cells are numbered by their lowest rank.
    ///
    /// # Panics
    /// When there is no such rank.
    #[must_use]
    pub fn worker(&self, rank: Rank) -> Worker {
        self.check(rank);
        match self.layout.order {
            AxisOrder::PipelineLast => Worker(rank.0 % self.stage() / self.block),
            AxisOrder::DataLast => Worker(rank.0 / self.cell),
        }
    }

    /// The seat of a rank in its cell.
    ///
    /// # Panics
    /// When there is no such rank.
    #[must_use]
    pub fn seat(&self, rank: Rank) -> Seat {
        self.check(rank);
        match self.layout.order {
            AxisOrder::PipelineLast => {
                Seat(rank.0 / self.stage() * self.block + rank.0 % self.block)
            }
            AxisOrder::DataLast => Seat(rank.0 % self.cell),
        }
    }

    /// The rank at a seat of a worker.
    ///
    /// # Panics
    /// When there is no such worker or seat.
    #[must_use]
    pub fn rank(&self, worker: Worker, seat: Seat) -> Rank {
        assert!(worker.index() < self.workers(), "{worker} of {} workers", self.workers());
        assert!(seat.0 < self.cell, "{seat} of cells of {} ranks", self.cell);
        match self.layout.order {
            AxisOrder::PipelineLast => {
                let stage = seat.0 / self.block * self.stage();
                Rank(stage + worker.0 * self.block + seat.0 % self.block)
            }
            AxisOrder::DataLast => Rank(worker.0 * self.cell + seat.0),
        }
    }

    /// The classes of parameters that this layout tells apart: replicated ones where `tp` is above
    /// 1, a tied embedding where `pp` is.
    #[must_use]
    pub fn classes(&self) -> Vec<Class> {
        let there_is = |class: &Class| match class {
            Class::Dense | Class::Expert => true,
            Class::Replicated => self.layout.tp > 1,
            Class::Tied => self.layout.pp > 1,
        };
        let classes = [Class::Dense, Class::Replicated, Class::Tied, Class::Expert];
        classes.into_iter().filter(there_is).collect()
    }

    /// All lists of seats that a class is first summed over, the same in every cell: those of
    /// [`Partners::inside`].
    ///
    /// ```
    /// use codedgrad::ids::Seat;
    /// use codedgrad::mesh::{Class, Layout, Mesh};
    /// let mesh = Mesh::new(Layout { world: 16, tp: 2, ep: 2, ..Layout::default() })?;
    /// assert_eq!(mesh.seats(Class::Dense), [[0, 2].map(Seat), [1, 3].map(Seat)]);
    /// assert_eq!(mesh.seats_then(Class::Replicated), [[0, 1].map(Seat), [2, 3].map(Seat)]);
    /// assert_eq!(mesh.seats(Class::Expert), [0, 1, 2, 3].map(|seat| [Seat(seat)]));
    /// # Ok::<(), codedgrad::mesh::MeshError>(())
    /// ```
    #[must_use]
    pub fn seats(&self, class: Class) -> Vec<Vec<Seat>> {
        let apart = self.apart(class);
        let of = |stage: u32| {
            let first = stage * self.block;
            let list =
                move |place: u32| (first + place..first + self.block).step_by(apart as usize);
            (0..apart).map(move |place| list(place).map(Seat).collect())
        };
        (0..self.layout.pp).filter(|stage| self.has(class, *stage)).flat_map(of).collect()
    }

    /// All lists of seats that a class is summed over after that: those of [`Partners::then`].
    #[must_use]
    pub fn seats_then(&self, class: Class) -> Vec<Vec<Seat>> {
        let Layout { tp, pp, .. } = self.layout;
        let last = (pp - 1) * self.block;
        match class {
            Class::Replicated if tp > 1 => {
                let firsts = (0..self.cell).step_by(tp as usize);
                firsts.map(|first| (first..first + tp).map(Seat).collect()).collect()
            }
            Class::Tied if pp > 1 => {
                (0..self.block).map(|place| vec![Seat(place), Seat(last + place)]).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whom a rank's gradient of some class is summed with. A rank of a stage between the first and
    /// the last has no tied embedding: its lists are empty.
    ///
    /// # Panics
    /// When there is no such rank.
    ///
    /// ```
    /// use codedgrad::ids::Rank;
    /// use codedgrad::mesh::{Class, Layout, Mesh};
    /// let mesh = Mesh::new(Layout { world: 16, tp: 2, pp: 2, ep: 4, ..Layout::default() })?;
    /// let norms = mesh.partners(Class::Replicated, Rank(1));
    /// assert_eq!(norms.inside, [1, 3, 5, 7].map(Rank));
    /// assert_eq!(norms.then, [Rank(0), Rank(1)]);
    /// let embedding = mesh.partners(Class::Tied, Rank(1));
    /// assert_eq!(embedding.then, [Rank(1), Rank(9)]);
    /// # Ok::<(), codedgrad::mesh::MeshError>(())
    /// ```
    #[must_use]
    pub fn partners(&self, class: Class, rank: Rank) -> Partners {
        let (worker, seat) = (self.worker(rank), self.seat(rank));
        let (stage, place) = (seat.0 / self.block, seat.0 % self.block);
        if !self.has(class, stage) {
            return Partners::default();
        }
        let at = |stage: u32, place: u32| self.rank(worker, Seat(stage * self.block + place));
        let apart = self.apart(class);
        let Layout { tp, pp, .. } = self.layout;
        let first = place / tp * tp;
        Partners {
            inside: (place % apart..self.block)
                .step_by(apart as usize)
                .map(|place| at(stage, place))
                .collect(),
            then: match class {
                Class::Replicated if tp > 1 => {
                    (first..first + tp).map(|place| at(stage, place)).collect()
                }
                Class::Tied if pp > 1 => vec![at(0, place), at(pp - 1, place)],
                _ => Vec::new(),
            },
            across: Worker::all(self.workers()).map(|worker| self.rank(worker, seat)).collect(),
        }
    }

    /// How far apart in a stage's seats those are that hold the same parameters of a class.
    fn apart(&self, class: Class) -> u32 {
        match class {
            Class::Expert => self.layout.experts_tp() * self.layout.ep,
            Class::Dense | Class::Replicated | Class::Tied => self.layout.tp,
        }
    }

    /// Whether a stage has parameters of a class.
    fn has(&self, class: Class, stage: u32) -> bool {
        class != Class::Tied || stage == 0 || stage + 1 == self.layout.pp
    }

    /// What Megatron-LM scales every gradient by, as numerator and denominator, where its loss is a
    /// mean: `1 / (dp cp)` for all classes. Where the loss is scaled before backward it is 1.
    ///
    /// ```
    /// use codedgrad::mesh::{Layout, Mesh};
    /// let layout = Layout { world: 16, tp: 2, etp: Some(1), ep: 8, ..Layout::default() };
    /// let mesh = Mesh::new(layout)?;
    /// assert_eq!((mesh.mean_scale(), mesh.edp()), ((1, 8), 2));
    /// # Ok::<(), codedgrad::mesh::MeshError>(())
    /// ```
    #[must_use]
    pub fn mean_scale(&self) -> (u64, u64) {
        (1, u64::from(self.dp()) * u64::from(self.layout.cp))
    }

    /// Which of a layer's experts a rank holds: every rank of an expert group has as many, in
    /// blocks.
    ///
    /// # Errors
    /// [`MeshError::UnevenExperts`] or [`MeshError::Zero`] where not every rank can have as many.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn local_experts(&self, rank: Rank, experts: u32) -> Result<Range<u32>, MeshError> {
        self.check(rank);
        let ep = self.layout.ep;
        if experts == 0 {
            return Err(MeshError::Zero { name: "experts" });
        }
        if !experts.is_multiple_of(ep) {
            let (below, above) = beside(experts, ep.into(), u32::MAX);
            return Err(MeshError::UnevenExperts { experts, ep, below, above });
        }
        let each = experts / ep;
        let first = rank.0 / self.layout.experts_tp() % ep * each;
        Ok(first..first + each)
    }

    /// Ranks of each stage.
    fn stage(&self) -> u32 {
        self.layout.world / self.layout.pp
    }

    fn check(&self, rank: Rank) {
        assert!(rank.0 < self.layout.world, "{rank} of {} ranks", self.layout.world);
    }
}
