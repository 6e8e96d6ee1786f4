//! Plain data of Python's pickles, as PyTorch writes them: dicts, lists, tuples, texts, numbers.
//!
//! The crate `serde-pickle` resolves opcodes that build objects, expands what is repeated, and
//! gives nothing of a file that is cut. Here such opcodes are refused, what is repeated is a
//! reference, and a cut file gives what stands before the cut.

use anyhow::{Result, anyhow, bail, ensure};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// No dump has more values, lists or dicts: each takes a byte in the file, and 32 in memory.
const VALUES_MOST: usize = 1 << 23;
/// How deep values of a dump may lie in each other; a frame of an entry lies at four.
const DEPTH_MOST: usize = 16;
/// Bytes that the values of a dump may come to where what is repeated is written out.
const BYTES_MOST: usize = 1 << 30;
/// What a value takes, beside its text.
const VALUE_BYTES: usize = 32;

/// Opcodes that import, call or build something: no plain data.
const BUILDING: [(u8, &str); 13] = [
    (b'c', "GLOBAL"),
    (0x93, "STACK_GLOBAL"),
    (b'R', "REDUCE"),
    (b'b', "BUILD"),
    (b'i', "INST"),
    (b'o', "OBJ"),
    (0x81, "NEWOBJ"),
    (0x92, "NEWOBJ_EX"),
    (0x82, "EXT1"),
    (0x83, "EXT2"),
    (0x84, "EXT4"),
    (b'P', "PERSID"),
    (b'Q', "BINPERSID"),
];

/// A value; lists and dicts are numbers of nodes, since several may refer to one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a [u8]),
    Node(usize),
}

/// Items of a list or tuple; of a dict, keys and values in turn.
#[derive(Debug)]
struct Node<'a> {
    is_dict: bool,
    items: Vec<Item<'a>>,
}

/// What a pickle holds, as far as it goes.
#[derive(Debug, Default)]
pub(super) struct Pickle<'a> {
    nodes: Vec<Node<'a>>,
    root: Option<Item<'a>>,
    /// Whether the file ends before the pickle does.
    pub(super) is_cut: bool,
    /// Bytes that were written out so far.
    spent: usize,
}

/// Reads opcode by opcode.
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Item<'a>>,
    /// Where in the stack lists and dicts begin that are still open.
    marks: Vec<usize>,
    memo: HashMap<u32, Item<'a>>,
    nodes: Vec<Node<'a>>,
}

/// Whether a file begins as pickles of protocol 2 or later do.
pub(super) fn is_pickle(start: &[u8]) -> bool {
    matches!(start, [0x80, 2..=5, ..])
}

impl<'a> Pickle<'a> {
    /// Reads a pickle, or what there is of it.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self> {
        let (stack, marks) = (Vec::new(), Vec::new());
        let mut machine =
            Machine { bytes, at: 0, stack, marks, memo: HashMap::new(), nodes: Vec::new() };
        let is_cut = !machine.run()?;
        if is_cut {
            machine.close()?;
        }
        let root = if is_cut { machine.stack.first().copied() } else { machine.stack.pop() };
        Ok(Self { nodes: machine.nodes, root, is_cut, spent: 0 })
    }

    /// The value of a key of the outermost dict.
    pub(super) fn get(&self, key: &str) -> Option<Item<'a>> {
        let Item::Node(node) = self.root? else { return None };
        let node = self.nodes.get(node).filter(|node| node.is_dict)?;
        let mut pairs = node.items.chunks_exact(2);
        pairs.find(|it| matches!(it[0], Item::Text(text) if text == key.as_bytes())).map(|it| it[1])
    }

    /// The items of a list; none of anything else.
    pub(super) fn list(&self, item: Option<Item<'a>>) -> Vec<Item<'a>> {
        match item {
            Some(Item::Node(node)) if !self.nodes[node].is_dict => self.nodes[node].items.clone(),
            _ => Vec::new(),
        }
    }

    /// A value written out, in which nothing is a reference.
    pub(super) fn value(&mut self, item: Item<'a>) -> Result<Value> {
        self.value_at(item, 0)
    }

    fn value_at(&mut self, item: Item<'a>, depth: usize) -> Result<Value> {
        ensure!(depth <= DEPTH_MOST, "its values lie more than {DEPTH_MOST} deep in each other");
        let text = if let Item::Text(text) = item { text.len() } else { 0 };
        self.spent = self.spent.saturating_add(VALUE_BYTES + text);
        ensure!(
            self.spent <= BYTES_MOST,
            "its values come to more than {} MiB where repeated ones are written out",
            BYTES_MOST >> 20
        );
        Ok(match item {
            Item::None => Value::Null,
            Item::Bool(it) => it.into(),
            Item::Int(it) => it.into(),
            Item::Float(it) => it.into(),
            Item::Text(it) => String::from_utf8_lossy(it).into(),
            Item::Node(node) => {
                // By its number: writing out borrows all of it.
                let count = self.nodes[node].items.len();
                let mut list = Vec::new();
                for place in 0..count {
                    list.push(self.value_at(self.nodes[node].items[place], depth + 1)?);
                }
                if !self.nodes[node].is_dict {
                    return Ok(Value::Array(list));
                }
                let mut dict = Map::new();
                let mut list = list.into_iter();
                while let (Some(key), Some(value)) = (list.next(), list.next()) {
                    let key = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
                    dict.insert(key, value);
                }
                Value::Object(dict)
            }
        })
    }
}

impl<'a> Machine<'a> {
    /// The next bytes; none where the file ends before.
    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let count = usize::try_from(count).ok()?;
        let taken = self.bytes.get(self.at..)?.get(..count)?;
        self.at += count;
        Some(taken)
    }

    /// The next bytes as a whole number, the least first.
    fn number(&mut self, bytes: u64) -> Option<u64> {
        let taken = self.take(bytes)?;
        Some(taken.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Whether the pickle has its end.
    fn run(&mut self) -> Result<bool> {
        loop {
            let at = self.at;
            let Some(opcode) = self.number(1) else { return Ok(false) };
            if opcode == u64::from(b'.') {
                ensure!(!self.stack.is_empty(), "byte {at}: it ends without a value");
                return Ok(true);
            }
            // An opcode with half of its argument is none.
            let Some(()) = self.step(opcode as u8, at)? else { return Ok(false) };
            ensure!(
                self.stack.len().max(self.nodes.len()).max(self.memo.len()) <= VALUES_MOST
                    && self.marks.len() <= VALUES_MOST,
                "byte {at}: it has more than {VALUES_MOST} values, lists or dicts"
            );
        }
    }

    /// Does what an opcode says; none where its argument is cut.
    fn step(&mut self, opcode: u8, at: usize) -> Result<Option<()>> {
        let item = match opcode {
            0x80 => return Ok(self.take(1).map(drop)),
            0x95 => return Ok(self.take(8).map(drop)),
            b'(' => {
                self.marks.push(self.stack.len());
                return Ok(Some(()));
            }
            b'q' | b'r' => {
                let place = self.number(if opcode == b'q' { 1 } else { 4 });
                return place.map(|place| self.memorise(place as u32, at)).transpose();
            }
            0x94 => return self.memorise(self.memo.len() as u32, at).map(Some),
            b'h' | b'j' => self.number(if opcode == b'h' { 1 } else { 4 }).map(|place| {
                let kept = self.memo.get(&(place as u32)).copied();
                kept.ok_or_else(|| anyhow!("byte {at}: it refers to value {place}, which is none"))
            }),
            b'N' => Some(Ok(Item::None)),
            0x88 | 0x89 => Some(Ok(Item::Bool(opcode == 0x88))),
            b'K' => self.number(1).map(|it| Ok(Item::Int(it as i64))),
            b'M' => self.number(2).map(|it| Ok(Item::Int(it as i64))),
            b'J' => self.number(4).map(|it| Ok(Item::Int(i64::from(it as u32 as i32)))),
            0x8a => self.long(at).transpose(),
            b'G' => self.number(8).map(|it| Ok(Item::Float(f64::from_bits(it.swap_bytes())))),
            // Texts, and bytes as if they were some.
            0x8c | b'C' => self.text(1),
            b'X' | b'B' => self.text(4),
            0x8d | 0x8e => self.text(8),
            b'}' | b']' | b')' => Some(Ok(self.node(opcode == b'}', Vec::new()))),
            0x85..=0x87 => {
                let items = self.last(usize::from(opcode - 0x84), at)?;
                Some(Ok(self.node(false, items)))
            }
            b't' => {
                let items = self.since_mark(at)?;
                Some(Ok(self.node(false, items)))
            }
            b'a' | b's' | b'e' | b'u' => {
                let items = match opcode {
                    b'a' => self.last(1, at)?,
                    b's' => self.last(2, at)?,
                    _ => self.since_mark(at)?,
                };
                return self.fill(matches!(opcode, b's' | b'u'), items, at).map(Some);
            }
            _ => bail!(refusal(opcode, at)),
        };
        let Some(item) = item.transpose()? else { return Ok(None) };
        self.stack.push(item);
        Ok(Some(()))
    }

    fn text(&mut self, bytes: u64) -> Option<Result<Item<'a>>> {
        let count = self.number(bytes)?;
        self.take(count).map(|text| Ok(Item::Text(text)))
    }

    /// A whole number of up to eight bytes, which has a sign.
    fn long(&mut self, at: usize) -> Result<Option<Item<'a>>> {
        let Some(count) = self.number(1) else { return Ok(None) };
        ensure!(count <= 8, "byte {at}: a whole number of {count} bytes; expected 8 at most");
        let unused = 64 - 8 * count as u32;
        let number = self.number(count);
        Ok(number.map(|it| {
            Item::Int((it.checked_shl(unused).unwrap_or(0) as i64).checked_shr(unused).unwrap_or(0))
        }))
    }

    fn node(&mut self, is_dict: bool, items: Vec<Item<'a>>) -> Item<'a> {
        self.nodes.push(Node { is_dict, items });
        Item::Node(self.nodes.len() - 1)
    }

    fn memorise(&mut self, place: u32, at: usize) -> Result<()> {
        let last = self.stack.last().copied();
        self.memo.insert(place, last.ok_or_else(|| anyhow!("byte {at}: no value to keep"))?);
        Ok(())
    }

    /// Takes so many items from the stack, and none from before the last mark.
    fn last(&mut self, count: usize, at: usize) -> Result<Vec<Item<'a>>> {
        let open = self.stack.len() - self.marks.last().copied().unwrap_or(0);
        ensure!(open >= count, "byte {at}: it needs {count} values where there are {open}");
        Ok(self.stack.split_off(self.stack.len() - count))
    }

    fn since_mark(&mut self, at: usize) -> Result<Vec<Item<'a>>> {
        let mark = self.marks.pop().ok_or_else(|| anyhow!("byte {at}: no list or dict is open"))?;
        Ok(self.stack.split_off(mark))
    }

    /// Puts items into the list or dict that is the last on the stack.
    fn fill(&mut self, is_dict: bool, items: Vec<Item<'a>>, at: usize) -> Result<()> {
        match self.stack.last() {
            Some(Item::Node(node)) if self.nodes[*node].is_dict == is_dict => {
                self.nodes[*node].items.extend(items);
                Ok(())
            }
            _ => bail!("byte {at}: items without a {}", if is_dict { "dict" } else { "list" }),
        }
    }

    /// Closes what a cut left open: the outermost dict and the list in it. An entry of that list
    /// that is itself open would lack what was cut off, and is left out.
    fn close(&mut self) -> Result<()> {
        if let [_, list, entry, ..] = self.marks[..] {
            self.stack.truncate(list.max(entry.saturating_sub(1)));
            self.marks.truncate(2);
        } else if let ([_, list], Some(Item::Node(node))) = (&self.marks[..], self.stack.last())
            && self.stack.len() > *list
            && self.nodes[*node].items.is_empty()
        {
            self.stack.pop();
        }
        while !self.marks.is_empty() {
            let mut items = self.since_mark(self.at)?;
            let Some(Item::Node(node)) = self.stack.last() else { return Ok(()) };
            let node = &mut self.nodes[*node];
            if node.is_dict {
                items.truncate(items.len() / 2 * 2);
            }
            node.items.extend(items);
        }
        Ok(())
    }
}

fn refusal(opcode: u8, at: usize) -> anyhow::Error {
    match BUILDING.iter().find(|(code, _)| *code == opcode) {
        Some((_, name)) => anyhow!(
            "byte {at}: the opcode {name} builds objects, and a dump has plain data alone: this \
             file may run code where Python loads it"
        ),
        None => anyhow!("byte {at}: no dump has the opcode 0x{opcode:02x}"),
    }
}

#[cfg(test)]
mod tests;
