//! Checkpoints and models as safetensors files.
//!
//! A checkpoint is written beside the one before, which is kept until the next: whatever happens to
//! the newer, or to the host while it is written, there is one to go on from. Digests in the
//! metadata tell whether a file is as it was written.

use crate::folder::RunFolder;
use crate::output::alert;
use crate::{Failure, OrInput, told};
use anyhow::{Context, anyhow, bail};
use codedgrad_trainer::{GptConfig, Replica, ReplicaState};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use std::fs;
use std::io;
use std::path::Path;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

const CHECKPOINT: &str = "checkpoint.safetensors";
/// The one before it.
const BEFORE: &str = "checkpoint.before.safetensors";
/// What was found in its place when it could not be read.
const DAMAGED: &str = "checkpoint.damaged.safetensors";
/// Key of the file's metadata under which its [`Place`] stands.
const PLACE: &str = "place";
/// Key of the xxh3-64 of its tensors' bytes in the order of the file, hexadecimal.
const DIGEST: &str = "digest";
/// Key of the same of the text of its place.
const PLACE_DIGEST: &str = "place_digest";
const VECTORS: [&str; 3] = ["parameters", "first_moment", "second_moment"];

/// Where a run stands: which of its schemes, which step comes next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) run: usize,
    pub(crate) next_step: u64,
}

/// Name of a vector of one of the models.
fn vector_name(name: &str, model: u64) -> String {
    if model == 0 { name.into() } else { format!("{name}.{model}") }
}

/// Writes the states of all models; the last whole checkpoint stays until the new one is on disk,
/// and after that until the next.
pub(crate) fn save(
    folder: &RunFolder,
    place: Place,
    states: &[ReplicaState],
) -> anyhow::Result<()> {
    folder.write_keeping(CHECKPOINT, BEFORE, &file_of(place, states)?)
}

/// Writes the states of all models under another name.
pub(crate) fn save_as(
    folder: &RunFolder,
    name: &str,
    place: Place,
    states: &[ReplicaState],
) -> anyhow::Result<()> {
    folder.write_whole(name, &file_of(place, states)?)
}

/// The bytes of the file. The library's metadata have no order, so that two runs alike would differ
/// in them: the header is made here.
fn file_of(place: Place, states: &[ReplicaState]) -> anyhow::Result<Vec<u8>> {
    let vectors = (0..).zip(states).flat_map(|(model, state)| {
        let vectors = [&state.parameters, &state.first, &state.second];
        VECTORS
            .into_iter()
            .zip(vectors)
            .map(move |(name, vector)| (vector_name(name, model), vector))
    });
    let (mut header, mut digest, mut end) = (Map::new(), Xxh3Default::new(), 0);
    let mut numbers: Vec<&[u8]> = Vec::new();
    for (name, vector) in vectors {
        let (start, bytes) = (end, bytemuck::cast_slice(vector));
        end += bytes.len();
        digest.update(bytes);
        numbers.push(bytes);
        header.insert(
            name,
            json!({"dtype": "F32", "shape": [vector.len()], "data_offsets": [start, end]}),
        );
    }
    let place = serde_json::to_string(&place)?;
    let place_digest = hexadecimal(xxh3_64(place.as_bytes()));
    let metadata =
        json!({DIGEST: hexadecimal(digest.digest()), PLACE_DIGEST: place_digest, PLACE: place});
    header.insert("__metadata__".into(), metadata);
    let mut header = serde_json::to_vec(&header)?;
    // The format has numbers begin at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    let length = (header.len() as u64).to_le_bytes();
    Ok([&[&length[..], &header], &numbers[..]].concat().concat())
}

fn hexadecimal(digest: u64) -> String {
    format!("{digest:016x}")
}

/// What a run goes on from.
#[derive(Debug, PartialEq)]
pub(crate) struct Loaded {
    pub(crate) place: Place,
    pub(crate) states: Vec<ReplicaState>,
    /// Whether it is the checkpoint before the last, which cannot be read.
    pub(crate) is_before: bool,
}

/// Reads the last checkpoint, or, and says so, the one before it where that is missing or damaged;
/// none if the run was cut off before its first.
pub(crate) fn load(
    folder: &RunFolder,
    model: &GptConfig,
    models: u64,
) -> Result<Option<Loaded>, Failure> {
    let read = |name| {
        let path = folder.file(name);
        let found = match fs::read(&path) {
            Ok(bytes) => opened(&bytes)
                .and_then(|(place, tensors)| Ok((place, states_of(&tensors, model, models)?))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (path, None),
            Err(error) => Err(error.into()),
        };
        (path, Some(found))
    };
    let (path, current) = read(CHECKPOINT);
    let why = match current {
        Some(Ok((place, states))) => return Ok(Some(Loaded { place, states, is_before: false })),
        Some(Err(error)) => Some(error),
        None => None,
    };
    let (path, (before_path, before)) = (path.display(), read(BEFORE));
    let before_path = before_path.display();
    match (why, before) {
        (None, None) => Ok(None),
        (why, Some(Ok((place, states)))) => {
            let why = why.map_or("it is missing".into(), |error| told(&error));
            alert!(
                "warning: checkpoint {path}: {why}; going on from step {} of {before_path}",
                place.next_step
            );
            Ok(Some(Loaded { place, states, is_before: true }))
        }
        (Some(error), None) => Err(Failure::Input(error.context(format!("checkpoint {path}")))),
        (why, Some(Err(error))) => {
            let why = why.map_or("it is missing".into(), |error| told(&error));
            Err(Failure::Input(anyhow!(
                "checkpoint {path}: {why}; and the one before it, {before_path}: {}",
                told(&error)
            )))
        }
    }
}

/// Makes the checkpoint before the last the last; what was in its place is put aside, so that it
/// never takes the place of a good one.
pub(crate) fn put_in_place(folder: &RunFolder) -> anyhow::Result<()> {
    let rename = |from, to| fs::rename(folder.file(from), folder.file(to));
    let put = || {
        if folder.file(CHECKPOINT).exists() {
            rename(CHECKPOINT, DAMAGED)?;
        }
        rename(BEFORE, CHECKPOINT)?;
        folder.sync()
    };
    put().with_context(|| format!("cannot rename {}", folder.file(BEFORE).display()))
}

/// Where a run would go on that is resumed now.
pub(crate) fn last(folder: &RunFolder) -> Option<Place> {
    let place = |name| Some(opened(&fs::read(folder.file(name)).ok()?).ok()?.0);
    place(CHECKPOINT).or_else(|| place(BEFORE))
}

/// Reads what [`save`] or [`save_as`] wrote.
pub(crate) fn load_from(
    path: &Path,
    model: &GptConfig,
    models: u64,
) -> Result<(Place, Vec<ReplicaState>), Failure> {
    let read = || -> anyhow::Result<(Place, Vec<ReplicaState>)> {
        let bytes = fs::read(path)?;
        let (place, tensors) = opened(&bytes)?;
        Ok((place, states_of(&tensors, model, models)?))
    };
    read().with_context(|| format!("checkpoint {}", path.display())).or_input()
}

/// The parts of a file, if they are as they were written.
fn opened(bytes: &[u8]) -> anyhow::Result<(Place, SafeTensors<'_>)> {
    let (length, header) = SafeTensors::read_metadata(bytes).context("it is cut or altered")?;
    let said = |key| header.metadata().as_ref().and_then(|metadata| metadata.get(key));
    let place = said(PLACE).ok_or_else(|| anyhow!("it does not say which step it is of"))?;
    let numbers = &bytes[size_of::<u64>() + length..];
    // Files of earlier versions have no digests.
    for (key, bytes, what) in
        [(DIGEST, numbers, "numbers"), (PLACE_DIGEST, place.as_bytes(), "place")]
    {
        let found = hexadecimal(xxh3_64(bytes));
        if let Some(digest) = said(key).filter(|digest| **digest != found) {
            bail!(
                "it is altered: the digest of its {what} is {found}, not {digest:?} as when it was \
                 written"
            );
        }
    }
    Ok((serde_json::from_str(place)?, SafeTensors::deserialize(bytes)?))
}

fn states_of(
    tensors: &SafeTensors<'_>,
    model: &GptConfig,
    models: u64,
) -> anyhow::Result<Vec<ReplicaState>> {
    let state = |number| {
        let [parameters, first, second] =
            VECTORS.map(|name| vector(tensors, &vector_name(name, number)));
        let state = ReplicaState { parameters: parameters?, first: first?, second: second? };
        if state.parameters.len() != model.parameters() {
            bail!(
                "it has {} parameters, the plan's model {}",
                state.parameters.len(),
                model.parameters()
            );
        }
        Ok(state)
    };
    (0..models).map(state).collect()
}

/// Writes a model with its configuration into a folder of its own.
pub(crate) fn save_model(
    folder: &RunFolder,
    name: &str,
    model: &GptConfig,
    replica: &Replica,
) -> anyhow::Result<()> {
    let parameters = replica.values()?;
    let mut rest = &parameters[..];
    let tensor = |(name, shape): (String, Vec<usize>)| {
        let values = rest
            .split_off(..shape.iter().product())
            .context("more parameters than the model has")?;
        Ok((name, view(&shape, values)?))
    };
    let views = model.layout().into_iter().map(tensor).collect::<anyhow::Result<Vec<_>>>()?;
    folder
        .write_whole(&format!("{name}/model.safetensors"), &safetensors::serialize(views, None)?)?;
    folder.write_json(&format!("{name}/config.json"), model)
}

/// Reads a model that [`save_model`] wrote: its configuration and its flat parameters.
pub(crate) fn load_model(path: &Path) -> Result<(GptConfig, Vec<f32>), Failure> {
    let read = || -> anyhow::Result<(GptConfig, Vec<f32>)> {
        let config: GptConfig =
            serde_json::from_slice(&fs::read(path.join("config.json")).context("config.json")?)
                .context("config.json")?;
        config.check()?;
        let bytes = fs::read(path.join("model.safetensors")).context("model.safetensors")?;
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
    Ok(tensor
        .data()
        .chunks_exact(4)
        .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .collect())
}
