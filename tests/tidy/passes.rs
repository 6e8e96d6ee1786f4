//! What touches whole gradients counts it, by `codedgrad::passes`.

use super::{root, rust_files, shipped};
use codedgrad::passes::PassPlace;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// What reads or writes many numbers at once, and does not count that itself as `add_into` does.
const TOUCHES: [&str; 11] = [
    "copy_from_slice(",
    "extend_from_slice(",
    "_f32_slice(",
    ".to_vec()",
    ".fill(",
    ".iter_mut().for_each(|x| *x",
    ".update(",
    "digest_of_bits(",
    "piecewise(",
    "read_exact(",
    "xxh3_64(",
];

/// How often files on the way of a gradient touch many numbers; the places that they count, and
/// what else they touch. Who adds to a file counts it, or says here why it is no pass.
const FILES: [(&str, usize, &str); 30] = [
    ("python/src/states.rs", 1, "states"),
    ("python/src/mailbox.rs", 1, "what ranks say"),
    ("python/src/numbers.rs", 10, "Gather Parameters Scatter"),
    ("python/src/worker.rs", 1, "scalars"),
    ("src/gpu/cpu.rs", 6, "Add Digest Scan Sum; digests of digests, `piecewise` for others"),
    ("src/gpu/cuda.rs", 1, "a buffer once, when it is made"),
    ("src/gpu/cuda/image.rs", 3, "a kernel's image"),
    ("src/gpu/cuda/staging.rs", 3, "Gather Scatter"),
    ("src/gpu/gradient.rs", 1, "Gather Scatter"),
    ("src/gpu/real.rs", 2, "Judge; arrays of f64, which are no gradients"),
    ("src/gpu/vector.rs", 3, "Clear Scale; messages of debug builds"),
    ("src/sums/exchange/assembly.rs", 4, "Copy Digest; digests of digests"),
    ("src/sums/exchange/block.rs", 6, "Copy; for states, `copy_to`"),
    ("src/sums/exchange/node.rs", 2, "Copy; digests of chunks"),
    ("src/sums/exchange/part.rs", 4, "`Block::fill`; a sum that is not finite"),
    ("src/sums/exchange/plan.rs", 1, "a number per chunk"),
    ("src/sums/exchange/reassembly.rs", 1, "a number per chunk"),
    ("src/sums/steps.rs", 1, "terms"),
    ("src/train/aggregator/work.rs", 2, "Announce Hash"),
    ("src/train/auto/chooser.rs", 1, "times"),
    ("src/train/coordinator/judging.rs", 2, "Judge; scalars"),
    ("src/train/coordinator/record.rs", 1, "times"),
    ("src/train/optimizer.rs", 1, "the trainer's own memory"),
    ("src/transport/nccl/collective.rs", 1, "numbers of nodes"),
    ("src/transport/state.rs", 4, "states"),
    ("src/transport/tcp/coordinator.rs", 1, "units"),
    ("src/transport/tcp/pipe.rs", 10, "Digest FrameIn FrameOut; headers, messages, `Block::fill`"),
    ("src/transport/tcp/security/exchange.rs", 1, "a handshake"),
    ("src/transport/tcp/server.rs", 3, "Scale; terms"),
    ("src/transport/wire/mod.rs", 15, "headers, and frames that are not of `tcp`"),
];

#[test]
fn every_pass_over_a_gradient_is_counted() {
    let mut listed: BTreeMap<_, _> =
        FILES.iter().map(|(file, touches, what)| (*file, (*touches, *what))).collect();
    let mut seen = BTreeSet::new();
    let folders = ["src/train", "src/sums", "src/transport", "src/gpu", "python/src"];
    for (path, text) in folders.into_iter().flat_map(rust_files) {
        let code = shipped(&text);
        let file = path.to_str().unwrap();
        let (most, what) = listed.remove(file).unwrap_or_default();
        let touches: usize = TOUCHES.iter().map(|touch| code.matches(touch).count()).sum();
        assert_eq!(touches, most, "{file}: times that it touches many numbers");
        let names =
            code.split("PassPlace::").skip(1).filter_map(|rest| rest.split(['(', ',']).next());
        let counted: BTreeSet<&str> = names.collect();
        let words = what.split([' ', ';']).filter(|word| word.starts_with(char::is_uppercase));
        assert_eq!(counted, words.collect(), "{file}: the places that it counts");
        seen.extend(counted.into_iter().map(str::to_owned));
    }
    assert!(listed.is_empty(), "no such files: {listed:?}");
    let all: BTreeSet<String> = PassPlace::ALL.iter().map(|place| format!("{place:?}")).collect();
    assert_eq!(seen, all, "every place is counted somewhere");
    let code = shipped(&fs::read_to_string(root().join("src/passes.rs")).unwrap());
    let variants = code.split("pub enum PassPlace {").nth(1).unwrap().split('}').next().unwrap();
    assert_eq!(
        variants.matches(',').count(),
        PassPlace::ALL.len(),
        "`PassPlace::ALL` has all places"
    );
}
