//! Groups and cells of layouts, against their definition, and codes over the cells.

use codedgrad::codes::{Choice, GradientCode, SchemeSpec, decode};
use codedgrad::ids::{Rank, Seat, Worker, WorkerSet};
use codedgrad::mesh::{Axis, AxisOrder, Class, Layers, Layout, Mesh, MeshError};
use std::collections::{BTreeMap, BTreeSet};

/// Sizes that are tried of tp, cp, etp and ep.
const SIZES: [u32; 6] = [1, 2, 3, 4, 6, 8];
/// The gradient of a code of random coefficients may be off by this, relative to its largest entry.
const CYCLIC_ERROR: f64 = 1e-10;

fn ranks<const N: usize>(lists: &[[u32; N]]) -> Vec<Vec<Rank>> {
    lists.iter().map(|list| list.map(Rank).into()).collect()
}

fn mesh(text: &str) -> Mesh {
    Mesh::new(layout(text)).unwrap()
}

/// A layout from a text such as `16 tp2 pp4`, the world first.
fn layout(text: &str) -> Layout {
    let mut words = text.split(' ');
    let world = words.next().unwrap().parse().unwrap();
    let mut layout = Layout { world, ..Layout::default() };
    for word in words {
        let (name, size) = word.split_at(word.find(|c: char| c.is_ascii_digit()).unwrap());
        let size = size.parse().unwrap();
        match name {
            "tp" => layout.tp = size,
            "cp" => layout.cp = size,
            "pp" => layout.pp = size,
            "etp" => layout.etp = Some(size),
            "ep" => layout.ep = size,
            _ => panic!("{word} is no size"),
        }
    }
    layout
}

// The definition, as plainly as it can be written.

const AXES: [Axis; 5] = [Axis::Tensor, Axis::Context, Axis::Expert, Axis::Data, Axis::Pipeline];

/// The axes with their sizes, fastest first.
fn sizes(layout: &Layout, layers: Layers) -> [(Axis, u32); 5] {
    let Layout { world, tp, cp, pp, ep, .. } = *layout;
    let etp = layout.etp.unwrap_or(tp);
    let sizes = match layers {
        Layers::Dense => [tp, cp, 1, world / (tp * cp * pp), pp],
        Layers::Expert => [etp, 1, ep, world / (etp * ep * pp), pp],
    };
    let [tensor, context, expert, data, pipeline] = [0, 1, 2, 3, 4].map(|at| (AXES[at], sizes[at]));
    match layout.order {
        AxisOrder::PipelineLast => [tensor, context, expert, data, pipeline],
        AxisOrder::DataLast => [tensor, context, expert, pipeline, data],
    }
}

fn coordinates(layout: &Layout, layers: Layers, mut rank: u32) -> [(Axis, u32); 5] {
    sizes(layout, layers).map(|(axis, size)| {
        let coordinate = rank % size;
        rank /= size;
        (axis, coordinate)
    })
}

fn defined(layout: &Layout, layers: Layers, axes: &[Axis]) -> Vec<Vec<Rank>> {
    // The coordinates of the other axes, the slowest first, as digits of one number.
    let key = |rank: u32| {
        let digits = coordinates(layout, layers, rank);
        digits.into_iter().rev().fold(0u64, |key, (axis, coordinate)| {
            key << 8 | u64::from(if axes.contains(&axis) { 0 } else { coordinate })
        })
    };
    let mut ranks: Vec<_> = (0..layout.world).map(|rank| (key(rank), Rank(rank))).collect();
    ranks.sort_unstable();
    let groups = ranks.chunk_by(|(a, _), (b, _)| a == b);
    groups.map(|group| group.iter().map(|(_, rank)| *rank).collect()).collect()
}

/// The connected components of all groups that wait inside forward and backward, by union-find.
fn components(layout: &Layout) -> Vec<Vec<Rank>> {
    fn root(parents: &mut [usize], mut at: usize) -> usize {
        while parents[at] != at {
            parents[at] = parents[parents[at]];
            at = parents[at];
        }
        at
    }
    let mut parents: Vec<usize> = (0..layout.world as usize).collect();
    for (layers, axis) in [
        (Layers::Dense, Axis::Tensor),
        (Layers::Dense, Axis::Context),
        (Layers::Dense, Axis::Pipeline),
        (Layers::Expert, Axis::Tensor),
        (Layers::Expert, Axis::Expert),
        (Layers::Expert, Axis::Pipeline),
    ] {
        for group in defined(layout, layers, &[axis]) {
            for pair in group.windows(2) {
                let [a, b] = [pair[0], pair[1]].map(|rank| root(&mut parents, rank.index()));
                // The lower one stays the root: components come out by their lowest rank.
                parents[a.max(b)] = a.min(b);
            }
        }
    }
    let mut cells = BTreeMap::<usize, Vec<Rank>>::new();
    for rank in 0..layout.world {
        cells.entry(root(&mut parents, rank as usize)).or_default().push(Rank(rank));
    }
    cells.into_values().collect()
}

/// What was found over a domain of layouts.
#[derive(Debug, Default, PartialEq)]
struct Found {
    layouts: usize,
    valid: usize,
    /// Valid ones with as many cells as there are replicas of whichever layers have fewer.
    fewest: usize,
}

/// Tries every layout of up to so many ranks whose sizes divide them.
fn try_all(worlds: u32) -> Found {
    let mut found = Found::default();
    for order in [AxisOrder::PipelineLast, AxisOrder::DataLast] {
        for (tp, cp) in SIZES.into_iter().flat_map(|tp| SIZES.map(|cp| (tp, cp))) {
            for (etp, ep) in SIZES.into_iter().flat_map(|etp| SIZES.map(|ep| (etp, ep))) {
                for (pp, world) in (1..=4).flat_map(|pp| (1..=worlds).map(move |world| (pp, world)))
                {
                    if world % (tp * cp * pp) == 0 && world % (etp * ep * pp) == 0 {
                        let etp = Some(etp);
                        try_one(Layout { world, tp, cp, pp, etp, ep, order }, &mut found);
                    }
                }
            }
        }
    }
    found
}

fn try_one(layout: Layout, found: &mut Found) {
    found.layouts += 1;
    let [dense, expert] =
        [Layers::Dense, Layers::Expert].map(|layers| defined(&layout, layers, &[Axis::Pipeline]));
    let mesh = match Mesh::new(layout) {
        Ok(mesh) => mesh,
        Err(error) => {
            let pair = dense.into_iter().zip(expert).find(|(dense, expert)| dense != expert);
            let (dense, expert) = pair.expect("nothing is wrong with it");
            let order = layout.order;
            return assert_eq!(error, MeshError::PipelinesDiffer { order, dense, expert });
        }
    };
    found.valid += 1;
    assert_eq!(dense, expert, "{layout:?}");
    for (layers, axes) in [
        (Layers::Dense, &[Axis::Tensor][..]),
        (Layers::Dense, &[Axis::Context]),
        (Layers::Dense, &[Axis::Data]),
        (Layers::Dense, &[Axis::Pipeline]),
        (Layers::Dense, &[Axis::Tensor, Axis::Pipeline]),
        (Layers::Expert, &[Axis::Tensor]),
        (Layers::Expert, &[Axis::Expert]),
        (Layers::Expert, &[Axis::Tensor, Axis::Expert]),
    ] {
        assert_eq!(mesh.groups(layers, axes), defined(&layout, layers, axes), "{layout:?}");
    }

    let cells = components(&layout);
    assert_eq!(mesh.cells(), cells, "{layout:?}");
    assert_eq!((mesh.workers(), mesh.cell_size()), (cells.len(), cells[0].len()));
    assert_eq!(cells.len() * cells[0].len(), layout.world as usize);
    found.fewest += usize::from(mesh.workers() == mesh.dp().min(mesh.edp()) as usize);
    for (worker, cell) in Worker::all(cells.len()).zip(&cells) {
        for (seat, rank) in (0..).map(Seat).zip(cell) {
            assert_eq!((mesh.worker(*rank), mesh.seat(*rank)), (worker, seat), "{layout:?}");
            assert_eq!(mesh.rank(worker, seat), *rank);
        }
    }
    for (class, layers, axes) in [
        (Class::Dense, Layers::Dense, &[Axis::Data, Axis::Context][..]),
        (Class::Expert, Layers::Expert, &[Axis::Data]),
    ] {
        for group in defined(&layout, layers, axes) {
            takes_the_same_seats(&mesh, class, &group);
        }
    }
}

/// A group that holds the same parameters has the same seats in every cell, and `partners` tells
/// them.
fn takes_the_same_seats(mesh: &Mesh, class: Class, group: &[Rank]) {
    let mut seats = vec![Vec::new(); mesh.workers()];
    for rank in group {
        seats[mesh.worker(*rank).index()].push(mesh.seat(*rank));
    }
    assert!(seats.windows(2).all(|pair| pair[0] == pair[1]), "{:?}: {group:?}", mesh.layout());
    assert!(mesh.seats(class).contains(&seats[0]));
    let partners = mesh.partners(class, group[0]);
    let inside: Vec<Rank> = seats[0].iter().map(|seat| mesh.rank(Worker(0), *seat)).collect();
    assert_eq!((partners.inside, partners.then), (inside, vec![]));
    let across = Worker::all(mesh.workers()).map(|worker| mesh.rank(worker, seats[0][0]));
    assert!(partners.across.into_iter().eq(across));
}

#[test]
fn layouts_of_96_ranks_are_as_defined() {
    let found = try_all(96);
    assert_eq!((found.layouts, found.valid), (27_496, 22_224));
}

#[test]
#[ignore = "8 s: cargo test --release -p codedgrad --no-default-features --test local mesh -- --ignored"]
fn layouts_of_192_ranks_are_as_defined() {
    assert_eq!(try_all(192), Found { layouts: 57_788, valid: 46_096, fewest: 38_888 });
}

#[test]
fn groups_come_in_the_order_of_megatron() {
    let mesh = mesh("16 tp2 pp4");
    let data = ranks(&[[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]);
    assert_eq!(mesh.groups(Layers::Dense, &[Axis::Data]), data);
    let pipelines = ranks(&[[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]);
    assert_eq!(mesh.groups(Layers::Dense, &[Axis::Pipeline]), pipelines);
    // ETP is TP unless it is given.
    assert_eq!(mesh.layout().etp, Some(2));
    assert_eq!(mesh.cells(), ranks(&[[0, 1, 4, 5, 8, 9, 12, 13], [2, 3, 6, 7, 10, 11, 14, 15]]));
}

#[test]
fn classes_are_summed_over_their_own_ranks() {
    // Two stages of 32 ranks, in cells of 8 per stage.
    let mesh = mesh("64 tp2 cp2 pp2 etp1 ep8");
    let rank = Rank(32 + 8 + 3);
    assert_eq!((mesh.worker(rank), mesh.seat(rank)), (Worker(1), Seat(8 + 3)));
    let partners = |class| mesh.partners(class, rank);
    let stage = 32 + 8;
    let odd = [1, 3, 5, 7].map(|place| Rank(stage + place));
    for class in [Class::Dense, Class::Replicated, Class::Tied] {
        assert_eq!(partners(class).inside, odd);
        assert_eq!(partners(class).across, [35, 43, 51, 59].map(Rank));
    }
    assert_eq!(partners(Class::Expert).inside, [rank]);
    assert_eq!(partners(Class::Replicated).then, [Rank(stage + 2), Rank(stage + 3)]);
    assert_eq!(partners(Class::Tied).then, [Rank(8 + 3), rank]);
    assert!(partners(Class::Dense).then.is_empty() && partners(Class::Expert).then.is_empty());
    // Second sums are those of a tensor group, and of the ends of a pipeline.
    let tensor = mesh.groups(Layers::Dense, &[Axis::Tensor]);
    assert!(tensor.contains(&partners(Class::Replicated).then));
    let pipelines = mesh.groups(Layers::Dense, &[Axis::Pipeline]);
    assert!(pipelines.contains(&partners(Class::Tied).then));
}

/// The lists of all seats are those of each rank.
#[test]
fn seats_are_those_of_partners() {
    for text in ["64 tp2 cp2 pp2 etp1 ep8", "72 tp2 cp3 pp3 etp1 ep4", "8", "48 tp4 pp3 etp2 ep2"] {
        let mesh = mesh(text);
        let seats_of = |ranks: Vec<Rank>| ranks.into_iter().map(|rank| mesh.seat(rank)).collect();
        for class in [Class::Dense, Class::Replicated, Class::Tied, Class::Expert] {
            let partners: Vec<_> = (0..mesh.cell_size() as u32)
                .map(|seat| mesh.partners(class, mesh.rank(Worker(0), Seat(seat))))
                .collect();
            let lists = |of: fn(&codedgrad::mesh::Partners) -> &Vec<Rank>| -> BTreeSet<Vec<Seat>> {
                let lists = partners.iter().map(of).filter(|ranks| !ranks.is_empty());
                lists.map(|ranks| seats_of(ranks.clone())).collect()
            };
            let [inside, then] = [mesh.seats(class), mesh.seats_then(class)]
                .map(|lists| (lists.len(), lists.into_iter().collect::<BTreeSet<_>>()));
            assert_eq!(
                (inside.0, &inside.1),
                (inside.1.len(), &lists(|partners| &partners.inside))
            );
            assert_eq!((then.0, &then.1), (then.1.len(), &lists(|partners| &partners.then)));
        }
    }
    assert_eq!(mesh("8").classes(), [Class::Dense, Class::Expert]);
    assert_eq!(mesh("8 tp2").classes(), [Class::Dense, Class::Replicated, Class::Expert]);
    assert_eq!(mesh("8 pp2").classes(), [Class::Dense, Class::Tied, Class::Expert]);
}

#[test]
fn stages_in_the_middle_have_no_tied_embedding() {
    let mesh = mesh("24 tp2 pp3");
    for rank in (0..24).map(Rank) {
        let tied = mesh.partners(Class::Tied, rank);
        let stage = rank.0 / 8;
        assert_eq!(tied.across.is_empty(), stage == 1, "{rank}");
        assert_eq!(tied.then.len(), if stage == 1 { 0 } else { 2 });
    }
    // With one stage there is nothing to tie, with one rank of a tensor group nothing to add.
    let flat = self::mesh("8 cp2");
    assert!(
        [Class::Tied, Class::Replicated].map(|class| flat.partners(class, Rank(3)).then.len())
            == [0; 2]
    );
}

#[test]
fn experts_are_dealt_in_blocks() {
    let mesh = mesh("32 tp2 pp2 etp2 ep4");
    for rank in 0..32 {
        let [.., (axis, block), _, _] = coordinates(mesh.layout(), Layers::Expert, rank);
        assert_eq!(axis, Axis::Expert);
        assert_eq!(mesh.local_experts(Rank(rank), 8), Ok(2 * block..2 * block + 2));
    }
    let message = |experts| mesh.local_experts(Rank(0), experts).unwrap_err().to_string();
    let said = "9 experts cannot be divided evenly by ep = 4; the nearest that fit are 8 and 12";
    assert_eq!(message(9), said);
    assert!(message(3).ends_with("the nearest that fits is 4"));
    assert!(message(u32::MAX).ends_with("the nearest that fits is 4294967292"));
    assert_eq!(message(0), "experts is 0: 1 or more is needed");
}

#[test]
fn sizes_that_do_not_fit_name_those_that_would() {
    let message = |text: &str| Mesh::new(layout(text)).unwrap_err().to_string();
    for (text, said) in [
        ("100 tp2 pp8", "not a multiple of tp x cp x pp = 16; the nearest that fit are 96 and 112"),
        ("8 ep3", "not a multiple of etp x ep x pp = 3; the nearest that fit are 6 and 9"),
        // Both products count for what would be right.
        ("4 tp6 etp1 ep4", "tp x cp x pp = 6; the nearest that fits is 12"),
        ("8 tp1048575 cp1048576", "1099510579200; no supported number fits"),
        ("8 tp1048575 cp1048576 pp1048574", "no supported number fits"),
        ("0", "world is 0"),
        ("8 etp0", "etp is 0"),
        ("1048577", "world is 1048577: at most 1048576 is supported"),
        ("8 ep1048577", "ep is 1048577: at most 1048576"),
    ] {
        assert!(message(text).contains(said), "{text}: {}", message(text));
    }
    let layout = Layout { order: AxisOrder::DataLast, ..layout("16 tp2 pp2 etp1 ep8") };
    let differ = Mesh::new(layout).unwrap_err();
    let [dense, expert] = [[0, 2], [0, 8]].map(|pair| pair.map(Rank).to_vec());
    assert_eq!(differ, MeshError::PipelinesDiffer { order: AxisOrder::DataLast, dense, expert });
    assert!(differ.to_string().contains("ranks [0, 2] and the experts one through ranks [0, 8]"));
}

#[test]
fn the_nearest_worlds_are_the_nearest() {
    for (world, text) in (1..40).flat_map(|world| {
        ["tp2 pp2 etp1 ep3", "tp3 etp2", "cp4 ep6", "tp5 cp7"].map(|sizes| (world, sizes))
    }) {
        let of = |world: u32| layout(&format!("{world} {text}"));
        let fits = |world: &u32| Mesh::new(of(*world)).is_ok();
        if let Err(error) = Mesh::new(of(world)) {
            let MeshError::NotAMultiple { below, above, .. } = error else { panic!("{error}") };
            assert_eq!(below, (1..world).rev().find(fits), "{world} {text}");
            assert_eq!(above, (world..1000).find(fits), "{world} {text}");
        }
    }
}

/// An expert's gradient holds the tokens of every rank that sent it some: it is scaled by how many
/// ranks the loss is a mean over, not by how many hold the expert.
#[test]
fn experts_have_the_scale_of_the_loss() {
    let mesh = mesh("16 tp2 etp1 ep8");
    let gradient_of_tokens = |rank: &Rank| f64::from(1u32 << rank.0);
    let all: f64 = (0..16).map(Rank).map(|rank| gradient_of_tokens(&rank)).sum();
    // The ranks of a tensor group have one loss between them; Megatron takes the mean of those.
    let losses = mesh.groups(Layers::Dense, &[Axis::Tensor]).len() as f64;
    let blocks = mesh.groups(Layers::Expert, &[Axis::Tensor, Axis::Expert]);
    let of_expert = |rank: &Rank| -> f64 {
        let block = blocks.iter().find(|block| block.contains(rank)).unwrap();
        block.iter().map(gradient_of_tokens).sum()
    };
    let (one, count) = mesh.mean_scale();
    let scale = one as f64 / count as f64;
    for replicas in mesh.groups(Layers::Expert, &[Axis::Data]) {
        let sum: f64 = replicas.iter().map(of_expert).sum();
        assert_eq!(sum * scale, all / losses);
        assert_eq!(1.0 / replicas.len() as f64 / scale, 4.0);
    }
}

// Codes over cells.

/// A gradient of one part of the batch at one seat: numbers that differ everywhere.
fn gradient(class: Class, share: usize, seat: Seat) -> f64 {
    let place = (share * 257 + seat.index() * 31 + class as usize * 7) as f64;
    (place * 0.618).sin() + 1e-3 * place.cos()
}

/// What one seat of one worker hands to the code: coefficients times sums within the cell.
fn message(mesh: &Mesh, code: &dyn GradientCode, class: Class, rank: Rank) -> f64 {
    let shares = code.row(mesh.worker(rank));
    let inside = mesh.partners(class, rank).inside;
    let summed = |share: usize| -> f64 {
        inside.iter().map(|rank| gradient(class, share, mesh.seat(*rank))).sum()
    };
    shares.iter().map(|(share, coefficient)| coefficient * summed(share.index())).sum()
}

#[test]
fn codes_over_cells_give_every_rank_the_whole_sum() {
    for (text, workers, [dense, expert]) in [
        ("64 tp2 cp2 pp2 etp1 ep4", 8, [(16, 2), (8, 1)]),
        ("64 tp2 cp2 pp2 etp1 ep8", 4, [(16, 4), (4, 1)]),
    ] {
        let mesh = mesh(text);
        assert_eq!(mesh.workers(), workers);
        for (class, layers, axes, (group, in_cell)) in [
            (Class::Dense, Layers::Dense, &[Axis::Data, Axis::Context][..], dense),
            (Class::Expert, Layers::Expert, &[Axis::Data], expert),
        ] {
            for replicas in mesh.groups(layers, axes) {
                let partners = mesh.partners(class, replicas[0]);
                assert_eq!((replicas.len(), partners.inside.len()), (group, in_cell));
                assert_eq!(partners.across.len() * in_cell, group);
                // The ranks of one seat in all cells, and those that are summed with each.
                let reached: BTreeSet<Rank> = partners
                    .across
                    .iter()
                    .flat_map(|rank| mesh.partners(class, *rank).inside)
                    .collect();
                assert!(reached.iter().eq(replicas.iter()));
                for scheme in ["groups:s=1", "groups:s=2", "cyclic:s=1", "cyclic:s=2"] {
                    decodes(&mesh, scheme, class, &partners.across);
                }
            }
        }
    }
}

/// Whoever is late, the ranks of a seat decode the sum over the whole batch.
fn decodes(mesh: &Mesh, scheme: &str, class: Class, across: &[Rank]) {
    let workers = mesh.workers();
    let code = scheme.parse::<SchemeSpec>().unwrap().code(workers).unwrap();
    let messages: Vec<f64> =
        across.iter().map(|rank| message(mesh, &*code, class, *rank)).collect();
    let decoded = |late: &[Worker]| -> f64 {
        let survivors = WorkerSet::of(workers, late.iter().copied()).complement();
        let (weights, report) = decode(&*code, &survivors, Choice::Fewest);
        assert!(report.decodable, "{scheme} without {late:?}");
        // Results that are not used are not there: they are not added as zeros.
        let terms = weights.iter().zip(&messages).filter(|(weight, _)| **weight != 0.0);
        terms.map(|(weight, message)| weight * message).sum()
    };
    let (shares, rank) = (code.facts().shares(), across[0]);
    let inside = mesh.partners(class, rank).inside;
    let whole: f64 = (0..shares)
        .map(|share| -> f64 {
            inside.iter().map(|rank| gradient(class, share, mesh.seat(*rank))).sum()
        })
        .sum();
    let none_late = decoded(&[]);
    let tolerance = code.facts().tolerance;
    let pairs = Worker::all(workers)
        .flat_map(|a| Worker::all(workers).filter(move |b| a <= *b).map(move |b| [a, b]));
    let mut tried = 0;
    for pair in pairs {
        let late = if pair[0] == pair[1] { &pair[..1] } else { &pair[..] };
        if late.len() > tolerance {
            continue;
        }
        tried += 1;
        let found = decoded(late);
        if scheme.starts_with("groups") {
            assert_eq!(found.to_bits(), none_late.to_bits(), "{scheme} without {late:?}");
            assert_eq!(found.to_bits(), whole.to_bits(), "{scheme} without {late:?}");
        }
        let scale = messages.iter().fold(1.0f64, |most, message| most.max(message.abs()));
        assert!(
            (found - whole).abs() <= CYCLIC_ERROR * scale,
            "{scheme} without {late:?}: {found} {whole}"
        );
    }
    let singles = if tolerance >= 1 { workers } else { 0 };
    let doubles = if tolerance >= 2 { workers * (workers - 1) / 2 } else { 0 };
    assert_eq!(tried, singles + doubles, "{scheme}");
}

#[test]
fn layouts_are_read_and_written() {
    let layout = Layout { order: AxisOrder::DataLast, ..layout("16 tp2 pp2") };
    let text = serde_json::to_string(&layout).unwrap();
    let said = r#"{"world":16,"tp":2,"cp":1,"pp":2,"etp":null,"ep":1,"order":"tp-cp-ep-pp-dp"}"#;
    assert_eq!(text, said);
    assert_eq!(serde_json::from_str::<Layout>(&text).unwrap(), layout);
    let short: Layout = serde_json::from_str(r#"{"world":16,"tp":2,"pp":2}"#).unwrap();
    assert_eq!(short, Layout { order: AxisOrder::PipelineLast, ..layout });
}
