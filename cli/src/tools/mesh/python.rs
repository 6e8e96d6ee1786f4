//! A worker's ranks in the words of `codedgrad.torch`: what its `mesh=` and `data=` are given.

use codedgrad::mesh::{Axis, Layers, Layout, Mesh};
use codedgrad_shell::itself;
use serde::Serialize;
use std::fmt;

/// What a script is told, or why the package cannot take the layout.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Script {
    Taken(WorkerMesh),
    Refused { refused: String },
}

/// The ranks of one worker, as PyTorch's `init_device_mesh` makes them.
#[derive(Debug, Default, Serialize)]
pub(super) struct DeviceMesh {
    names: Vec<&'static str>,
    sizes: Vec<u32>,
}

/// What `join` and `prepare` take, and the command that starts the ranks.
#[derive(Debug, Serialize)]
pub(super) struct WorkerMesh {
    #[serde(flatten)]
    mesh: DeviceMesh,
    /// Dimensions over which samples are cut.
    data: Vec<&'static str>,
    /// The experts' own mesh, where they are not cut over dimensions of the other one.
    experts: Option<DeviceMesh>,
    launch: String,
}

impl Script {
    /// `node`: how many consecutive ranks are one host.
    pub(super) fn of(mesh: &Mesh, node: u32) -> Self {
        match refused(mesh, node) {
            Some(refused) => Self::Refused { refused },
            None => Self::Taken(WorkerMesh::of(mesh)),
        }
    }
}

/// Why `codedgrad.torch` does not take a layout.
fn refused(mesh: &Mesh, node: u32) -> Option<String> {
    let Layout { tp, cp, pp, .. } = *mesh.layout();
    let (cell, experts) = (mesh.cell_size(), expert_ranks(mesh));
    if pp > 1 {
        Some(format!("it has no pipeline parallelism, and pp is {pp}"))
    } else if cp > 1 {
        Some(format!("it has no context parallelism, and cp is {cp}"))
    } else if cell > node as usize {
        Some(format!("a worker's ranks are on one host, and a cell has {cell} of nodes of {node}"))
    } else if !experts.is_multiple_of(tp) {
        Some(format!("groups of {experts} that have all experts are no whole groups of tp = {tp}"))
    } else {
        None
    }
}

/// Ranks that have all experts between them.
fn expert_ranks(mesh: &Mesh) -> u32 {
    let along = |axis| mesh.in_cell(Layers::Expert, axis);
    along(Axis::Tensor) * along(Axis::Expert)
}

impl WorkerMesh {
    fn of(mesh: &Mesh) -> Self {
        let Layout { tp, ep, etp, .. } = *mesh.layout();
        let (of_worker, data, experts) = match (mesh.cell_size(), tp) {
            (1, _) => (DeviceMesh::default(), Vec::new(), None),
            // All ranks have other samples, and the experts' dimensions have all ranks.
            (_, 1) => {
                let experts = DeviceMesh::of_experts(mesh);
                let data = experts.names.clone();
                (experts, data, None)
            }
            _ => {
                let sizes = vec![mesh.in_cell(Layers::Dense, Axis::Data), tp];
                let alike = ep == 1 && etp == Some(tp);
                let experts = (!alike).then(|| DeviceMesh::of_experts(mesh));
                (DeviceMesh { names: vec!["dp", "tp"], sizes }, vec!["dp"], experts)
            }
        };
        let (name, workers) = (itself::name(), mesh.workers());
        let started = match mesh.cell_size() {
            1 => "train.py".into(),
            ranks => format!("torchrun --standalone --nproc-per-node {ranks} train.py"),
        };
        let launch = format!("{name} run -n {workers} {started}");
        Self { mesh: of_worker, data, experts, launch }
    }

    /// The lines of a script, and the command.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.mesh.names.is_empty() {
            lines.push(format!("mesh = {}", self.mesh));
        }
        lines.extend(self.experts.as_ref().map(|experts| format!("experts = {experts}")));
        if let [first, rest @ ..] = &self.data[..] {
            let data =
                if rest.is_empty() { quoted(first) } else { tuple(&self.data, |n| quoted(n)) };
            lines.push(format!("run = codedgrad.torch.join(.., mesh=mesh, data={data})"));
        }
        lines.push(self.launch.clone());
        lines
    }
}

impl DeviceMesh {
    /// Over which experts are cut: `ep` always, by whose name the package knows them.
    fn of_experts(mesh: &Mesh) -> Self {
        let axes = [("ep", Axis::Expert), ("etp", Axis::Tensor)];
        let sized = axes.map(|(name, axis)| (name, mesh.in_cell(Layers::Expert, axis)));
        let kept = sized.into_iter().filter(|(name, size)| *size > 1 || *name == "ep");
        let (names, sizes) = kept.unzip();
        Self { names, sizes }
    }
}

impl fmt::Display for DeviceMesh {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sizes, names) =
            (tuple(&self.sizes, u32::to_string), tuple(&self.names, |n| quoted(n)));
        write!(out, "init_device_mesh(\"cuda\", {sizes}, mesh_dim_names={names})")
    }
}

/// As Python writes a text.
fn quoted(name: &str) -> String {
    format!("\"{name}\"")
}

/// As Python writes a tuple.
fn tuple<T>(items: &[T], shown: impl Fn(&T) -> String) -> String {
    let inside = items.iter().map(shown).collect::<Vec<_>>().join(", ");
    let comma = if items.len() == 1 { "," } else { "" };
    format!("({inside}{comma})")
}
