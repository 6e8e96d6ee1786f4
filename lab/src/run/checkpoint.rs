//! Checkpoints and models as safetensors files.
//!
//! A checkpoint is written beside the one before, which is kept until the next: whatever happens to
//! the newer, or to the host while it is written, there is one to go on from. Digests in the
//! metadata tell whether a file is as it was written. A [`Writer`] does that beside the training.
//! Where schemes take turns, a checkpoint holds
//! the states of all their runs, else those of the one that is under way.

mod writer;

pub(crate) use writer::{SavedCheckpoint, Writer};

use crate::trainer::{GptConfig, Replica, ReplicaState};
use anyhow::{Context, anyhow, bail};
use codedgrad::files::{self, BoundedReader};
use codedgrad_shell::failure::{Failure, OrInput, told};
use codedgrad_shell::folder::{JSON_BYTES_MAX, RunFolder, sync, write_keeping, write_whole};
use codedgrad_shell::output::alert;
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

const CHECKPOINT: &str = "checkpoint.safetensors";
/// The one before it.
const BEFORE: &str = "checkpoint.before.safetensors";
/// What was found in its place when it could not be read.
const DAMAGED: &str = "checkpoint.damaged.safetensors";
/// No header of the format is longer.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Key of the file's metadata under which its [`Place`] stands.
const PLACE: &str = "place";
/// Key of the xxh3-64 of its tensors' bytes in the order of the file, hexadecimal.
const DIGEST: &str = "digest";
/// Key of the same of the text of its place.
const PLACE_DIGEST: &str = "place_digest";
/// Key of the digest of the plan that it is of.
const PLAN_DIGEST: &str = "plan_digest";
const VECTORS: [&str; 3] = ["parameters", "first_moment", "second_moment"];

/// Where a plan's runs stand: which of its schemes is under way, which step of it comes next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) run: usize,
    pub(crate) next_step: u64,
    /// Where schemes take turns: the steps that each of their runs has made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) made: Vec<u64>,
}

impl Place {
    /// In the middle of a run; those before it have ended, those after it have not begun.
    pub(crate) fn of(run: usize, next_step: u64) -> Self {
        Self { run, next_step, made: Vec::new() }
    }

    /// In a run's turn, after the steps that each of the runs has made.
    pub(crate) fn in_turn(run: usize, made: Vec<u64>) -> Self {
        Self { run, next_step: made[run], made }
    }

    /// The steps that a run has made, of so many.
    pub(crate) fn made_by(&self, run: usize, all_steps: u64) -> u64 {
        match run.cmp(&self.run) {
            _ if !self.made.is_empty() => self.made.get(run).copied().unwrap_or(0),
            Ordering::Less => all_steps,
            Ordering::Equal => self.next_step,
            Ordering::Greater => 0,
        }
    }

    /// The runs whose states are kept.
    fn kept(&self) -> Vec<usize> {
        if self.made.is_empty() {
            return vec![self.run];
        }
        (0..self.made.len()).filter(|run| self.made[*run] > 0).collect()
    }

    /// Name of a vector of one of a run's models.
    fn vector_name(&self, name: &str, run: usize, model: u64) -> String {
        let name = if self.made.is_empty() { name.into() } else { format!("run{run}.{name}") };
        if model == 0 { name } else { format!("{name}.{model}") }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.made[..] {
            [] => write!(f, "step {}", self.next_step),
            made => {
                let made: Vec<String> = made.iter().map(u64::to_string).collect();
                write!(f, "step {} of the runs", made.join(", "))
            }
        }
    }
}

/// The states of all models of a run, by the run's number.
pub(crate) type States = BTreeMap<usize, Vec<ReplicaState>>;
/// The same, borrowed from wherever they are.
pub(crate) type StatesOf<'a> = [(usize, &'a [ReplicaState])];

/// Writes the checkpoint of a worker that saves what is trained, before a step; `digest` is of what
/// that is.
pub(crate) fn save_at(
    folder: &Path,
    next_step: u64,
    digest: &str,
    states: &[ReplicaState],
) -> anyhow::Result<()> {
    let states = [(0, states)];
    let (header, numbers) = file_of(&Place::of(0, next_step), Some(digest), &states)?;
    let parts = [&[&header[..]], &numbers[..]].concat();
    write_keeping(&folder.join(CHECKPOINT), &folder.join(BEFORE), &parts)
}

/// The beginning of the file, and the bytes of the numbers that follow. The library's metadata have
/// no order, so that two runs alike would differ
/// in them: the header is made here.
fn file_of<'a>(
    place: &Place,
    plan: Option<&str>,
    states: &StatesOf<'a>,
) -> anyhow::Result<(Vec<u8>, Vec<&'a [u8]>)> {
    let models = states.iter().flat_map(|(run, states)| {
        (0..).zip(states.iter()).map(move |(model, state)| (*run, model, state))
    });
    let vectors = models.flat_map(|(run, model, state)| {
        let vectors = [&state.parameters, &state.first, &state.second];
        VECTORS
            .into_iter()
            .zip(vectors)
            .map(move |(name, vector)| (place.vector_name(name, run, model), vector))
    });
    let mut header = Map::new();
    let mut digest = Xxh3Default::new();
    let mut end = 0;
    let mut numbers = Vec::new();
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
    let place = serde_json::to_string(place)?;
    let place_digest = hexadecimal(xxh3_64(place.as_bytes()));
    let mut metadata =
        json!({DIGEST: hexadecimal(digest.digest()), PLACE_DIGEST: place_digest, PLACE: place});
    if let Some(plan) = plan {
        metadata[PLAN_DIGEST] = plan.into();
    }
    header.insert("__metadata__".into(), metadata);
    let mut header = serde_json::to_vec(&header)?;
    // The format has numbers begin at a multiple of 8 bytes.
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    let length = (header.len() as u64).to_le_bytes();
    Ok(([&length[..], &header].concat(), numbers))
}

fn hexadecimal(digest: u64) -> String {
    format!("{digest:016x}")
}

/// What a run goes on from.
#[derive(Debug, PartialEq)]
pub(crate) struct LoadedCheckpoint {
    pub(crate) place: Place,
    pub(crate) states: States,
    /// The digest of the plan that it is of; files of earlier versions have none.
    pub(crate) plan: Option<String>,
    /// Whether it is the checkpoint before the last, which cannot be read.
    pub(crate) is_before: bool,
}

/// Reads the last checkpoint, or, and says so, the one before it where that is missing or damaged;
/// none if the run was cut off before its first.
pub(crate) fn load(
    folder: &Path,
    model: &GptConfig,
    models: u64,
) -> Result<Option<LoadedCheckpoint>, Failure> {
    let read = |name| {
        let path = folder.join(name);
        let found = match contents(&path) {
            Ok(bytes) => opened(&bytes).and_then(|CheckpointParts { place, plan, tensors }| {
                let states = states_of(&place, &tensors, model, models)?;
                Ok(LoadedCheckpoint { place, states, plan, is_before: name == BEFORE })
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (path, None),
            Err(error) => Err(error.into()),
        };
        (path, Some(found))
    };
    let (path, current) = read(CHECKPOINT);
    let why = match current {
        Some(Ok(loaded)) => return Ok(Some(loaded)),
        Some(Err(error)) => Some(error),
        None => None,
    };
    let (path, (before_path, before)) = (path.display(), read(BEFORE));
    let before_path = before_path.display();
    match (why, before) {
        (None, None) => Ok(None),
        (why, Some(Ok(loaded))) => {
            let why = why.map_or("it is missing".into(), |error| told(&error));
            let place = &loaded.place;
            alert!("warning: checkpoint {path}: {why}; going on from {place} of {before_path}");
            Ok(Some(loaded))
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
pub(crate) fn put_in_place(folder: &Path) -> anyhow::Result<()> {
    let rename = |from, to| fs::rename(folder.join(from), folder.join(to));
    let put = || {
        if folder.join(CHECKPOINT).exists() {
            rename(CHECKPOINT, DAMAGED)?;
        }
        rename(BEFORE, CHECKPOINT)?;
        sync(folder)
    };
    put().with_context(|| format!("cannot rename {}", folder.join(BEFORE).display()))
}

/// Where a run would go on that is resumed now.
pub(crate) fn last(folder: &RunFolder) -> Option<Place> {
    let place = |name| Some(opened(&contents(&folder.file(name)).ok()?).ok()?.place);
    place(CHECKPOINT).or_else(|| place(BEFORE))
}

/// A file of tensors, as far as its header says that it goes and a byte more: by that it is known
/// not to be one.
fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = BoundedReader::open(path, u64::MAX)?;
    let all = file.metadata()?.len();
    let mut bytes = Vec::new();
    (&mut file).take(size_of::<u64>() as u64).read_to_end(&mut bytes)?;
    let length = bytes.as_slice().try_into().map_or(0, u64::from_le_bytes);
    (&mut file).take(length.min(HEADER_BYTES_MAX)).read_to_end(&mut bytes)?;
    let header = bytes.get(size_of::<u64>()..).unwrap_or_default();
    let header = serde_json::from_slice::<Metadata>(header);
    let rest = header.map_or(0, |header| header.data_len() as u64).saturating_add(1).min(all);
    bytes.reserve(rest as usize);
    file.take(rest).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The parts of a file.
struct CheckpointParts<'a> {
    place: Place,
    /// As [`LoadedCheckpoint::plan`].
    plan: Option<String>,
    tensors: SafeTensors<'a>,
}

/// The parts of a file, if they are as they were written.
fn opened(bytes: &[u8]) -> anyhow::Result<CheckpointParts<'_>> {
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
    Ok(CheckpointParts {
        place: serde_json::from_str(place)?,
        plan: said(PLAN_DIGEST).cloned(),
        tensors: SafeTensors::deserialize(bytes)?,
    })
}

/// The states of all runs that a file keeps.
fn states_of(
    place: &Place,
    tensors: &SafeTensors<'_>,
    model: &GptConfig,
    models: u64,
) -> anyhow::Result<States> {
    let of_run = |run| Ok((run, states_of_run((place, run), tensors, model, models)?));
    place.kept().into_iter().map(of_run).collect()
}

fn states_of_run(
    (place, run): (&Place, usize),
    tensors: &SafeTensors<'_>,
    model: &GptConfig,
    models: u64,
) -> anyhow::Result<Vec<ReplicaState>> {
    let state = |number| {
        let [parameters, first, second] =
            VECTORS.map(|name| vector(tensors, &place.vector_name(name, run, number)));
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
    folder: &Path,
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
    write_whole(&folder.join("model.safetensors"), &safetensors::serialize(views, None)?)?;
    let config = serde_json::to_string_pretty(model)? + "\n";
    write_whole(&folder.join("config.json"), config.as_bytes())
}

/// Reads a model that [`save_model`] wrote: its configuration and its flat parameters.
pub(crate) fn load_model(path: &Path) -> Result<(GptConfig, Vec<f32>), Failure> {
    let read = || -> anyhow::Result<(GptConfig, Vec<f32>)> {
        let config = files::read(&path.join("config.json"), JSON_BYTES_MAX);
        let config: GptConfig =
            serde_json::from_slice(&config.context("config.json")?).context("config.json")?;
        config.check()?;
        let bytes = contents(&path.join("model.safetensors")).context("model.safetensors")?;
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
    read()
        .with_context(|| match models_in(path) {
            Some(models) => format!("{}: {models}", path.display()),
            None => format!("model {}", path.display()),
        })
        .or_input()
}

/// Models that a run saved, in words with which a sentence goes on; nothing if there are none.
fn models_in(path: &Path) -> Option<String> {
    let folders = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let models = folders.filter(|folder| folder.join("model.safetensors").exists());
    let mut names: Vec<_> = models.map(|model| model.display().to_string()).collect();
    names.sort_unstable();
    (!names.is_empty()).then(|| format!("this is a run, whose models are {}", names.join(", ")))
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
