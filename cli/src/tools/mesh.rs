//! `codedgrad mesh`: what a layout of tensor, context, pipeline and expert parallelism leaves to
//! code over, and what each folding of it would.

mod cells;
mod figures;
mod python;
mod words;

use clap::Args;
use codedgrad::ids::{Rank, Seat};
use codedgrad::mesh::{AxisOrder, Class, Layout, Mesh};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::layout::help;
use codedgrad_shell::output::Output;
use codedgrad_shell::units::count;
use figures::{Folding, LateShares, Redundancy};
use python::Script;
use serde::Serialize;
use std::path::PathBuf;

/// Most ranks, stages or experts.
const COUNT_MAX: u64 = 1 << 20;

#[derive(Debug, Args)]
#[command(
    after_help = help("\
Ranks that share a tensor, context, pipeline or expert group wait for each other in every forward
and backward, so that none of them is late alone: together they are a cell. A cell is one worker
for a code. Folding cuts attention (tp, cp) and experts (etp, ep) independently over the same
ranks; a cell then has pp x lcm(tp x cp, etp x ep) of them.

Output:  how many workers are left, how often one is late, what redundancy costs and from when on
         it is faster; then who sums gradients with whom, and every folding with its workers. Late
         ranks are taken to be independent of each other. Last: the mesh of one worker's ranks for
         codedgrad.torch, and how they are started.
Delays:  --delays takes a CSV file without header, a line per step, a number of seconds per RANK,
         and --out gets one with a number per worker: that of its latest rank.
JSON:    {layout, dp, edp, cell_size, workers, cells, classes, exchange_off_node, late,
         redundancy, foldings, advice, python}; cells has the rank of each worker and seat. A
         gradient is summed within a cell over each list of `seats`, then of `then`; across cells
         over the ranks of one seat, with the code. docs/mesh.md tells more.

Examples:
  codedgrad mesh --world 64 --tp 2 --cp 2 --pp 2 --etp 1 --ep 8
  codedgrad mesh --world 1024 --tp 2 --pp 4 --etp 1 --ep 8 --experts 64 --late-rank 0.0005
  codedgrad mesh --world 16 --tp 2 --ep 4 --json
  codedgrad mesh --world 8 --ep 2 --delays examples/traces/stragglers.csv --out cells.csv")
)]
pub(crate) struct MeshArgs {
    /// All ranks
    #[arg(long, value_name = "RANKS", value_parser = counted())]
    world: u32,
    /// Ranks that share each matrix of the dense layers
    #[arg(long, value_name = "RANKS", default_value_t = 1, value_parser = counted())]
    tp: u32,
    /// Ranks that share each sequence
    #[arg(long, value_name = "RANKS", default_value_t = 1, value_parser = counted())]
    cp: u32,
    /// Stages of the pipeline
    #[arg(long, value_name = "STAGES", default_value_t = 1, value_parser = counted())]
    pp: u32,
    /// Ranks that share each matrix of an expert [default: as --tp]
    #[arg(long, value_name = "RANKS", value_parser = counted())]
    etp: Option<u32>,
    /// Ranks that share the experts among themselves
    #[arg(long, value_name = "RANKS", default_value_t = 1, value_parser = counted())]
    ep: u32,
    /// Order of the axes, the fastest first: tp-cp-ep-dp-pp or tp-cp-ep-pp-dp
    #[arg(long, default_value_t)]
    order: AxisOrder,
    /// Experts of a layer: foldings are tried whose ep divides them [default: powers of two]
    #[arg(long, value_name = "E", value_parser = counted())]
    experts: Option<u32>,
    /// Consecutive ranks that are one node
    #[arg(long, value_name = "RANKS", default_value_t = 8, value_parser = counted())]
    node: u32,
    /// Share of the steps in which a rank is late
    #[arg(
        long, value_name = "SHARE", default_value_t = 0.001, value_parser = share
    )]
    late_rank: f64,
    /// Delays of every rank: a CSV file, or - for standard input
    #[arg(long, value_name = "FILE", requires = "out")]
    delays: Option<PathBuf>,
    /// File for the delays of every worker, as `codedgrad plan` and `simulate` take them
    #[arg(long, value_name = "FILE", requires = "delays")]
    out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A number of ranks, stages or experts.
fn counted() -> impl Fn(&str) -> Result<u32, String> + Clone {
    count(1..=COUNT_MAX)
}

/// A share of all steps.
fn share(text: &str) -> Result<f64, String> {
    let share = text.trim().parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
    share
        .ok_or_else(|| format!("{text:?} is no share of the steps: a number from 0 to 1 is needed"))
}

/// All that is told of a layout.
#[derive(Debug, Serialize)]
struct Answer {
    layout: Layout,
    dp: u32,
    edp: u32,
    cell_size: usize,
    workers: usize,
    cells: Vec<Vec<Rank>>,
    classes: Vec<ShownClass>,
    exchange_off_node: f64,
    late: LateShares,
    redundancy: Vec<Redundancy>,
    foldings: Vec<Folding>,
    advice: String,
    python: Script,
    /// The command that plans with the delays of the workers, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<String>,
}

/// How the gradients of one class of parameters are summed.
#[derive(Debug, Serialize)]
struct ShownClass {
    class: &'static str,
    group_size: usize,
    in_cell: usize,
    groups: usize,
    /// Megatron's, of a loss that is a mean.
    scale: (u64, u64),
    seats: Vec<Vec<Seat>>,
    then: Vec<Vec<Seat>>,
}

impl ShownClass {
    fn of(mesh: &Mesh, class: Class) -> Self {
        let seats = mesh.seats(class);
        let in_cell = seats.first().map_or(0, Vec::len);
        Self {
            class: match class {
                Class::Dense => "dense",
                Class::Replicated => "replicated",
                Class::Tied => "tied",
                Class::Expert => "expert",
            },
            group_size: in_cell * mesh.workers(),
            in_cell,
            groups: seats.len(),
            scale: mesh.mean_scale(),
            seats,
            then: mesh.seats_then(class),
        }
    }
}

impl Answer {
    fn new(mesh: &Mesh, args: &MeshArgs) -> Self {
        let late = LateShares::of(mesh, args.late_rank);
        let mut answer = Self {
            layout: *mesh.layout(),
            dp: mesh.dp(),
            edp: mesh.edp(),
            cell_size: mesh.cell_size(),
            workers: mesh.workers(),
            cells: mesh.cells(),
            classes: mesh.classes().into_iter().map(|class| ShownClass::of(mesh, class)).collect(),
            exchange_off_node: figures::exchange_off_node(mesh, args.node),
            redundancy: figures::redundancies(mesh.workers(), &late),
            late,
            foldings: figures::foldings(mesh, args.experts, args.node, args.late_rank),
            advice: String::new(),
            python: Script::of(mesh, args.node),
            plan: None,
        };
        answer.advice = words::advice(&answer);
        answer
    }
}

pub(crate) fn run(args: &MeshArgs, output: &mut Output<'_>) -> Result<(), Failure> {
    let MeshArgs { world, tp, cp, pp, etp, ep, order, .. } = *args;
    let mesh = Mesh::new(Layout { world, tp, cp, pp, etp, ep, order }).or_input()?;
    if let Some(experts) = args.experts {
        mesh.local_experts(Rank(0), experts).or_input()?;
    }
    let mut answer = Answer::new(&mesh, args);
    if let (Some(delays), Some(out)) = (&args.delays, &args.out) {
        cells::write(&mesh, delays, out, output)?;
        answer.plan = cells::plan(out, mesh.workers());
    }
    if args.json {
        return writeln!(output.out, "{}", serde_json::to_string(&answer).or_work()?).or_work();
    }
    output.out.write_all(words::all(&answer, output.width()).as_bytes()).or_work()
}
