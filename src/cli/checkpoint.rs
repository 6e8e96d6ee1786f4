//! Checkpoints and models as safetensors files.

use super::folder::RunFolder;
use super::{Failure, OrInput};
use crate::train::candle::{GptConfig, Replica, ReplicaState};
use anyhow::{Context, anyhow, bail};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

pub(super) const CHECKPOINT: &str = "checkpoint.safetensors";
/// Key of the file's metadata under which its [`Place`] stands.
const PLACE: &str = "place";
const VECTORS: [&str; 3] = ["parameters", "first_moment", "second_moment"];

/// Where a run stands: which of its schemes, which step comes next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) run: usize,
    pub(super) next_step: u64,
}

/// Name of a vector of one of the models.
fn vector_name(name: &str, model: u64) -> String {
    if model == 0 { name.into() } else { format!("{name}.{model}") }
}

/// Writes the states of all models; the last whole checkpoint stays until the new one is on disk.
pub(super) fn save(folder: &RunFolder, place: Place, states: &[ReplicaState]) -> anyhow::Result<()> {
    save_as(folder, CHECKPOINT, place, states)
}

/// Writes the states of all models under another name.
pub(super) fn save_as(folder: &RunFolder, name: &str, place: Place, states: &[ReplicaState]) -> anyhow::Result<()> {
    let vectors = (0..).zip(states).flat_map(|(model, state)| {
        let vectors = [&state.parameters, &state.first, &state.second];
        VECTORS.into_iter().zip(vectors).map(move |(name, vector)| (vector_name(name, model), vector))
    });
    let views = vectors.map(|(name, vector)| Ok((name, view(&[vector.len()], vector)?))).collect::<anyhow::Result<Vec<_>>>()?;
    let place = HashMap::from([(PLACE.to_owned(), serde_json::to_string(&place)?)]);
    folder.write_whole(name, &safetensors::serialize(views, Some(place))?)
}

/// Reads the last checkpoint; none if the run was cut off before its first.
pub(super) fn load(folder: &RunFolder, model: &GptConfig, models: u64) -> Result<Option<(Place, Vec<ReplicaState>)>, Failure> {
    let path = folder.file(CHECKPOINT);
    if path.exists() { load_from(&path, model, models).map(Some) } else { Ok(None) }
}

/// Reads what [`save`] or [`save_as`] wrote.
pub(super) fn load_from(path: &Path, model: &GptConfig, models: u64) -> Result<(Place, Vec<ReplicaState>), Failure> {
    let read = || -> anyhow::Result<(Place, Vec<ReplicaState>)> {
        let bytes = std::fs::read(path)?;
        let (_, header) = SafeTensors::read_metadata(&bytes)?;
        let metadata = header.metadata().as_ref().and_then(|metadata| metadata.get(PLACE));
        let place: Place = serde_json::from_str(metadata.ok_or_else(|| anyhow!("it does not say which step it is of"))?)?;
        let tensors = SafeTensors::deserialize(&bytes)?;
        let state = |number| {
            let [parameters, first, second] = VECTORS.map(|name| vector(&tensors, &vector_name(name, number)));
            let state = ReplicaState { parameters: parameters?, first: first?, second: second? };
            if state.parameters.len() != model.parameters() {
                bail!("it has {} parameters, the plan's model {}", state.parameters.len(), model.parameters());
            }
            Ok(state)
        };
        Ok((place, (0..models).map(state).collect::<anyhow::Result<Vec<_>>>()?))
    };
    read().with_context(|| format!("checkpoint {}", path.display())).or_input()
}

/// Writes a model with its configuration into a folder of its own.
pub(super) fn save_model(folder: &RunFolder, name: &str, model: &GptConfig, replica: &Replica) -> anyhow::Result<()> {
    let parameters = replica.values()?;
    let mut rest = &parameters[..];
    let tensor = |(name, shape): (String, Vec<usize>)| {
        let values = rest.split_off(..shape.iter().product()).context("more parameters than the model has")?;
        Ok((name, view(&shape, values)?))
    };
    let views = model.layout().into_iter().map(tensor).collect::<anyhow::Result<Vec<_>>>()?;
    folder.write_whole(&format!("{name}/model.safetensors"), &safetensors::serialize(views, None)?)?;
    folder.write_json(&format!("{name}/config.json"), model)
}

/// Reads a model that [`save_model`] wrote: its configuration and its flat parameters.
pub(super) fn load_model(path: &Path) -> Result<(GptConfig, Vec<f32>), Failure> {
    let read = || -> anyhow::Result<(GptConfig, Vec<f32>)> {
        let config: GptConfig =
            serde_json::from_slice(&std::fs::read(path.join("config.json")).context("config.json")?).context("config.json")?;
        config.check()?;
        let bytes = std::fs::read(path.join("model.safetensors")).context("model.safetensors")?;
        let tensors = SafeTensors::deserialize(&bytes).context("model.safetensors")?;
        let mut flat = Vec::with_capacity(config.parameters());
        for (name, shape) in config.layout() {
            let found = tensors.tensor(&name).with_context(|| format!("no tensor {name:?}"))?;
            if found.shape() != shape {
                bail!("tensor {name:?} has shape {:?}, its config wants {shape:?}", found.shape());
            }
            flat.extend(vector(&tensors, &name)?);
        }
        Ok((config, flat))
    };
    read().with_context(|| format!("model {}", path.display())).or_input()
}

fn view<'a>(shape: &[usize], values: &'a [f32]) -> anyhow::Result<TensorView<'a>> {
    Ok(TensorView::new(Dtype::F32, shape.to_vec(), bytemuck::cast_slice(values))?)
}

fn vector(tensors: &SafeTensors<'_>, name: &str) -> anyhow::Result<Vec<f32>> {
    let tensor = tensors.tensor(name).with_context(|| format!("no tensor {name:?}"))?;
    if tensor.dtype() != Dtype::F32 {
        bail!("tensor {name:?} is {:?}, not F32", tensor.dtype());
    }
    Ok(tensor.data().chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect())
}
