//! Dumps of PyTorch's Flight Recorder as they are read: what a rank's collectives were, and how far
//! it came.

use super::pickle::{Pickle, is_pickle};
use crate::tools::times::names;
use anyhow::{Context, Result, anyhow, ensure};
use codedgrad_shell::failure::{Failure, OrInput};
use codedgrad_shell::input::Input;
use codedgrad_shell::output::{Output, plain};
use codedgrad_shell::units::several;
use serde::de::{DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Deserializer, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// What stands at the beginning of a dump as JSON, and of no profiler's trace: those have
/// `pg_config`, too.
const MARKS: [&[u8]; 3] = [b"\"collective_seq_id\"", b"\"pg_status\"", b"\"nccl_comm_state\""];
/// So much of a file tells whether it is a dump.
const BEGINNING: usize = 1 << 16;
/// No dump is larger: an entry takes some hundred bytes.
const DUMP_BYTES_MAX: u64 = 64 << 20;
/// No job has more ranks.
const RANKS_MOST: u64 = 1 << 20;
/// What PyTorch's own files have in their names.
const OF_PYTORCH: [&str; 4] = ["-packages/torch/", "/torch/distributed/", "/torch/nn/", "/torch/_"];

/// A group's name and its description.
pub(super) type GroupName = (Rc<str>, Rc<str>);

/// A collective as a rank called it. Ranks share it where they called the same at the same line.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Call {
    /// Without the backend: `all_reduce`.
    pub(super) name: String,
    /// Sizes and types of the tensors, as text.
    pub(super) input: String,
    pub(super) output: String,
    /// The line of the script that called it, if the dump has frames.
    pub(super) place: Option<String>,
}

/// A rank's entry of a collective. Operations that are coalesced share its number.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) calls: Vec<Rc<Call>>,
    /// Nanoseconds of the rank's clock at which it entered.
    pub(super) created: Option<i64>,
    /// When it was found to be completed.
    pub(super) ended: Option<i64>,
    pub(super) is_completed: bool,
}

/// A rank's dump.
#[derive(Debug, Default)]
pub(super) struct Dump {
    pub(super) rank: u64,
    pub(super) path: PathBuf,
    pub(super) version: String,
    /// Entries of each group, by their numbers.
    pub(super) groups: BTreeMap<GroupName, BTreeMap<u64, Entry>>,
    /// Ranks of groups by their names, as far as the backend tells.
    pub(super) members: BTreeMap<String, BTreeSet<u64>>,
    /// Whether the file ends before the dump does.
    pub(super) is_cut: bool,
    /// Whether the recorder had room for so few entries that the first ones are gone.
    pub(super) has_lost: bool,
    /// Entries that were read.
    entries: usize,
}

/// What all dumps of a job share: most collectives are called often.
#[derive(Default)]
struct Shared {
    calls: BTreeSet<Rc<Call>>,
    names: BTreeSet<Rc<str>>,
}

/// The parts of a dump beside its entries.
#[derive(Default)]
struct Head {
    version: Value,
    config: Value,
    status: Value,
}

/// Whether a file begins as a dump does. A pipe is not looked at: it can be read once.
pub(crate) fn is_dump(path: &Path) -> bool {
    let input = path.is_file().then(|| Input::open(path).ok()).flatten();
    let start = input.and_then(|input| input.with_start(BEGINNING).ok()).map(|(start, _)| start);
    start.is_some_and(|start| {
        let marked = |mark: &&[u8]| start.windows(mark.len()).any(|part| part == *mark);
        is_pickle(&start) || start.trim_ascii_start().starts_with(b"{") && MARKS.iter().any(marked)
    })
}

/// The rank in a file's name: behind the last `rank`, or else the last number.
fn rank_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let told = names::rank(Path::new(name)).or_else(|| {
        let end = name.rfind(|letter: char| letter.is_ascii_digit())? + 1;
        let before = name[..end].rfind(|letter: char| !letter.is_ascii_digit());
        Some(name[before.map_or(0, |at| at + 1)..end].to_owned())
    });
    told?.parse().ok().filter(|rank| *rank < RANKS_MOST)
}

/// The dumps of a job's ranks, in their order. Where a rank has a pickle and JSON, the pickle
/// counts: it has frames.
pub(super) fn all(files: &[PathBuf], output: &mut Output<'_>) -> Result<Vec<Dump>, Failure> {
    let mut shared = Shared::default();
    let mut dumps: BTreeMap<u64, (bool, Dump)> = BTreeMap::new();
    for path in files {
        let name = path.display();
        let rank = rank_of(path).with_context(|| {
            format!("{name}: its name has no rank; expected one such as nccl_trace_rank_3")
        });
        let rank = rank.or_input()?;
        let (is_pickle, dump) = read(path, rank, &mut shared)
            .with_context(|| format!("{name}: this is no dump of Flight Recorder"))
            .or_input()?;
        if dump.is_cut {
            output.note(format_args!(
                "warning: {name}: the file was cut off after {}; what came behind is not seen",
                several(dump.entries, "collective")
            ));
        }
        match dumps.get(&rank) {
            Some((other_is, other)) if *other_is == is_pickle => {
                return Err(Failure::Input(anyhow!(
                    "{} and {name} are both of rank {rank}: give one dump of each rank",
                    other.path.display()
                )));
            }
            Some((true, _)) => {}
            _ => drop(dumps.insert(rank, (is_pickle, dump))),
        }
    }
    Ok(dumps.into_values().map(|(_, dump)| dump).collect())
}

/// A dump, and whether it is a pickle.
fn read(path: &Path, rank: u64, shared: &mut Shared) -> Result<(bool, Dump)> {
    let (start, all) = Input::open(path)?.with_start(BEGINNING)?;
    let mut bytes = Vec::new();
    all.take(DUMP_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    ensure!(
        bytes.len() as u64 <= DUMP_BYTES_MAX,
        "it has more than {} MiB, the most that may be read here",
        DUMP_BYTES_MAX >> 20
    );
    let mut entries = Entries { shared, read: Vec::new(), has_lost: None };
    let (head, is_cut) = match is_pickle(&start) {
        true => of_pickle(&bytes, &mut entries)?,
        false => of_json(&bytes, &mut entries)?,
    };
    let read = entries.read;
    ensure!(
        is_cut || !head.version.is_null() || !read.is_empty(),
        "it has neither a version nor entries"
    );
    let mut dump = Dump {
        rank,
        path: path.to_owned(),
        is_cut,
        has_lost: entries.has_lost == Some(true),
        entries: read.len(),
        ..head.dump()
    };
    let ended = head.completed();
    for ReadEntry { group, own_group, number, call, created, ended: at, is_completed } in read {
        // Gloo's entries stay `scheduled`; how many are completed stands beside them.
        let is_completed = is_completed || ended.get(&own_group).is_some_and(|it| number <= *it);
        let group = dump.groups.entry(group).or_default();
        let entry = Entry { calls: Vec::new(), created, ended: at, is_completed };
        let entry = group.entry(number).or_insert(entry);
        entry.calls.push(call);
        // Coalesced operations end together.
        entry.ended = entry.ended.max(at);
        entry.is_completed |= is_completed;
    }
    Ok((is_pickle(&start), dump))
}

fn of_pickle(bytes: &[u8], entries: &mut Entries<'_>) -> Result<(Head, bool)> {
    let mut pickle = Pickle::read(bytes)?;
    for item in pickle.list(pickle.get("entries")) {
        let value = pickle.value(item)?;
        entries.push(&value);
    }
    let mut part = |key| pickle.get(key).map_or(Ok(Value::Null), |item| pickle.value(item));
    let head =
        Head { version: part("version")?, config: part("pg_config")?, status: part("pg_status")? };
    Ok((head, pickle.is_cut))
}

fn of_json(bytes: &[u8], entries: &mut Entries<'_>) -> Result<(Head, bool)> {
    let mut head = Head::default();
    let mut text = Deserializer::from_slice(bytes);
    match text.deserialize_map(IntoParts(&mut head, entries)).and_then(|()| text.end()) {
        Ok(()) => Ok((head, false)),
        Err(error) if error.is_eof() => Ok((head, true)),
        Err(error) => Err(error.into()),
    }
}

/// An entry as it is read.
struct ReadEntry {
    group: GroupName,
    /// What the rank itself calls the group.
    own_group: String,
    number: u64,
    call: Rc<Call>,
    created: Option<i64>,
    ended: Option<i64>,
    is_completed: bool,
}

/// Takes in entries of either form.
struct Entries<'a> {
    shared: &'a mut Shared,
    read: Vec<ReadEntry>,
    /// Whether the first entry is none of the first ones recorded.
    has_lost: Option<bool>,
}

impl Entries<'_> {
    /// Fields that another version lacks are left open; without a number it is no collective.
    fn push(&mut self, entry: &Value) {
        self.has_lost.get_or_insert(entry["record_id"].as_u64() > Some(0));
        let text = |value: &Value| plain(value.as_str().unwrap_or_default());
        let moment = |key: &str| entry[key].as_i64().filter(|time| *time > 0);
        let number = entry["collective_seq_id"].as_u64().or_else(|| entry["seq_id"].as_u64());
        let name = text(&entry["profiling_name"]);
        let (Some(number), false) = (number, name.is_empty()) else { return };
        // Between two ranks alone, and counted on their own.
        if entry["is_p2p"].as_bool() == Some(true) {
            return;
        }
        let group = &entry["process_group"];
        let own_group = match &entry["pg_id"] {
            Value::String(name) => plain(name),
            Value::Null => "without a name".into(),
            number => number.to_string(),
        };
        let name_of_group = group[0].as_str().map_or_else(|| own_group.clone(), plain);
        let group = (self.shared.name(name_of_group), self.shared.name(text(&group[1])));
        let short = name.rsplit_once(':').map_or(&*name, |(_, name)| name).to_owned();
        let call = self.shared.call(Call {
            name: short,
            input: tensors(&entry["input_sizes"], &entry["input_dtypes"]),
            output: tensors(&entry["output_sizes"], &entry["output_dtypes"]),
            place: place(&entry["frames"]),
        });
        let is_completed = entry["state"].as_str() == Some("completed");
        let (created, ended) = (moment("time_created_ns"), moment("time_discovered_completed_ns"));
        self.read.push(ReadEntry { group, own_group, number, call, created, ended, is_completed });
    }
}

impl Shared {
    fn name(&mut self, name: String) -> Rc<str> {
        let name: Rc<str> = name.into();
        if let Some(known) = self.names.get(&name) {
            return Rc::clone(known);
        }
        self.names.insert(Rc::clone(&name));
        name
    }

    fn call(&mut self, call: Call) -> Rc<Call> {
        if let Some(known) = self.calls.get(&call) {
            return Rc::clone(known);
        }
        let call = Rc::new(call);
        self.calls.insert(Rc::clone(&call));
        call
    }
}

/// Tensors as text: `[8, 4] Float`.
fn tensors(sizes: &Value, types: &Value) -> String {
    let sizes = sizes.as_array().map_or(&[][..], Vec::as_slice).iter().enumerate();
    let each = sizes.map(|(place, size)| {
        let size = size.to_string().replace(',', ", ");
        types[place].as_str().map_or(size.clone(), |it| format!("{size} {}", plain(it)))
    });
    each.collect::<Vec<_>>().join(" and ")
}

/// The innermost frame that is not PyTorch's own.
fn place(frames: &Value) -> Option<String> {
    let frames = frames.as_array()?;
    let is_own = |frame: &&Value| {
        let file = frame["filename"].as_str().unwrap_or_default();
        file.ends_with(".py") && !OF_PYTORCH.iter().any(|part| file.contains(part))
    };
    let frame = frames.iter().find(is_own).or(frames.first())?;
    let file = plain(frame["filename"].as_str()?);
    let name = plain(frame["name"].as_str().unwrap_or_default());
    Some(format!("{file}:{} {name}", frame["line"]).trim_end().to_owned())
}

impl Head {
    /// A dump without entries.
    fn dump(&self) -> Dump {
        let mut dump =
            Dump { version: plain(self.version.as_str().unwrap_or("?")), ..Dump::default() };
        for (key, group) in self.config.as_object().into_iter().flatten() {
            let name = plain(group["name"].as_str().unwrap_or(key));
            dump.members.entry(name).or_default().extend(ranks(&group["ranks"]));
        }
        dump
    }

    /// The last collective that was completed of each group, by the rank's own number of it.
    fn completed(&self) -> HashMap<String, u64> {
        let groups = self.status.as_object().into_iter().flatten();
        let last = |status: &Value| {
            let last = &status["last_completed_collective"];
            last.as_u64().or_else(|| last.as_str()?.parse().ok())
        };
        groups.filter_map(|(group, status)| Some((plain(group), last(status)?))).collect()
    }
}

/// Ranks in a list, or in a text such as `[0, 1, 2, 3]`.
fn ranks(value: &Value) -> Vec<u64> {
    let numbers: Vec<u64> = match value {
        Value::String(text) => {
            let parts = text.split(|letter: char| !letter.is_ascii_digit());
            parts.filter_map(|part| part.parse().ok()).collect()
        }
        list => list.as_array().into_iter().flatten().filter_map(Value::as_u64).collect(),
    };
    numbers.into_iter().filter(|rank| *rank < RANKS_MOST).collect()
}

/// Reads a dump's JSON part by part, so that of a cut file the parts before the cut are there.
struct IntoParts<'a, 'b>(&'a mut Head, &'a mut Entries<'b>);

impl<'de> Visitor<'de> for IntoParts<'_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a dump of Flight Recorder")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match &*key {
                "entries" => map.next_value_seed(IntoEntries(&mut *self.1))?,
                "version" => self.0.version = map.next_value()?,
                "pg_config" => self.0.config = map.next_value()?,
                "pg_status" => self.0.status = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

struct IntoEntries<'a, 'b>(&'a mut Entries<'b>);

impl<'de> Visitor<'de> for IntoEntries<'_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(entry) = list.next_element::<Value>()? {
            self.0.push(&entry);
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for IntoEntries<'_, '_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}
