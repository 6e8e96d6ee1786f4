//! Text, tokens and batches.

use codedgrad::files;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

/// Every so-manieth part of the tokens is kept for validation, at the end of the text.
const VALIDATION_FRACTION: usize = 10;
/// A corpus lies in memory, and its tokens take four times as much.
const CORPUS_BYTES_MAX: u64 = 2 << 30;
/// The largest vocabularies that are published take 40 MB.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// Text that cannot be trained on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CorpusError {
    /// A file or folder that cannot be read.
    #[error("cannot read the corpus {}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nothing in it.
    #[error("corpus {} is empty", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// Bytes that are not text where a tokenizer needs text.
    #[error("corpus {}: not UTF-8 at byte {at}; a tokenizer needs text (the byte tokenizer takes \
        any bytes)", path.display())]
    NotText {
        /// Which.
        path: PathBuf,
        /// First bad byte.
        at: usize,
    },
    /// Too short for a single window.
    #[error(
        "the corpus has {tokens} tokens, but {needed} are needed: a training and a validation \
         window of {context} tokens each"
    )]
    TooShort {
        /// Tokens there are.
        tokens: usize,
        /// Tokens needed.
        needed: usize,
        /// Tokens of a window.
        context: usize,
    },
    /// The tokenizer file cannot be used.
    #[error("tokenizer {}: {problem}", path.display())]
    Tokenizer {
        /// Which.
        path: PathBuf,
        /// Why.
        problem: String,
    },
}

/// The bytes of one or more files.
#[derive(Clone, Debug)]
pub struct Corpus {
    /// Where they are from, for messages.
    pub origin: PathBuf,
    /// The bytes, files in order of their paths, with a newline between files.
    pub bytes: Vec<u8>,
}

impl Corpus {
    /// The text that comes with codedgrad: the opening of the Tiny Shakespeare collection, public
    /// domain.
    #[must_use]
    pub fn embedded() -> Self {
        Self {
            origin: "embedded text".into(),
            bytes: include_bytes!("../../assets/shakespeare.txt").to_vec(),
        }
    }

    /// A file, or all files of a folder and its subfolders (hidden ones left out) in order of their
    /// paths.
    ///
    /// # Errors
    /// [`CorpusError`] when something cannot be read or there is not a single byte.
    pub fn read(path: &Path) -> Result<Self, CorpusError> {
        let mut bytes = Vec::new();
        collect(path, &mut bytes)?;
        if bytes.is_empty() {
            return Err(CorpusError::Empty { path: path.into() });
        }
        Ok(Self { origin: path.into(), bytes })
    }

    /// One token per byte.
    #[must_use]
    pub fn byte_tokens(&self) -> Tokens {
        Tokens { tokens: self.bytes.iter().map(|byte| u32::from(*byte)).collect(), vocabulary: 256 }
    }

    /// Tokens of a Hugging Face `tokenizer.json`.
    ///
    /// # Errors
    /// [`CorpusError::NotText`] when the bytes are not UTF-8, [`CorpusError::Tokenizer`] when the
    /// file cannot be used.
    pub fn tokens_by(&self, tokenizer: &Path) -> Result<Tokens, CorpusError> {
        let fail = |problem: String| CorpusError::Tokenizer { path: tokenizer.into(), problem };
        let text = std::str::from_utf8(&self.bytes).map_err(|error| CorpusError::NotText {
            path: self.origin.clone(),
            at: error.valid_up_to(),
        })?;
        let file = files::read_text(tokenizer, TOKENIZER_BYTES_MAX)
            .map_err(|error| fail(error.to_string()))?;
        let tokenizer_file =
            tokenizers::Tokenizer::from_bytes(file).map_err(|error| fail(error.to_string()))?;
        let encoding =
            tokenizer_file.encode(text, false).map_err(|error| fail(error.to_string()))?;
        let vocabulary = tokenizer_file.get_vocab_size(true);
        let tokens = encoding.get_ids().to_vec();
        if let Some(stray) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(fail(format!("token {stray} is outside its vocabulary of {vocabulary}")));
        }
        Ok(Tokens { tokens, vocabulary })
    }
}

fn collect(path: &Path, bytes: &mut Vec<u8>) -> Result<(), CorpusError> {
    let io = |source| CorpusError::Io { path: path.into(), source };
    if fs::metadata(path).map_err(io)?.is_dir() {
        let mut entries = fs::read_dir(path)
            .map_err(io)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(io)?;
        entries.sort();
        let hidden = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
        };
        return entries
            .iter()
            .filter(|entry| !hidden(entry))
            .try_for_each(|entry| collect(entry, bytes));
    }
    if !bytes.is_empty() {
        bytes.push(b'\n');
    }
    // A folder's files together are bounded as one is.
    let most = CORPUS_BYTES_MAX.saturating_sub(bytes.len() as u64);
    bytes.extend(files::read(path, most).map_err(io)?);
    Ok(())
}

/// A tokenized text.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// The tokens in order.
    pub tokens: Vec<u32>,
    /// Number of different tokens.
    pub vocabulary: usize,
}

impl Tokens {
    /// A digest of them, by which two hosts can tell whether they have the same text.
    #[must_use]
    pub fn digest(&self) -> u64 {
        xxh3_64(bytemuck::cast_slice(&self.tokens)) ^ self.vocabulary as u64
    }
}

/// The batches of a run: which windows of the text each step trains on. The same seed gives the
/// same batches, under every scheme.
///
/// ```
/// use codedgrad_lab::trainer::{Batches, Corpus};
/// let batches = Batches::new(Corpus::embedded().byte_tokens(), 64, 7)?;
/// let rows = batches.rows(3, 0..2);
/// assert_eq!((rows.len(), rows[0].len()), (2, 65));
/// assert_eq!(rows[1], batches.rows(3, 1..2)[0]);
/// # Ok::<(), codedgrad_lab::trainer::CorpusError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Batches {
    tokens: Arc<Tokens>,
    context: usize,
    seed: u64,
    train: usize,
}

impl Batches {
    /// Windows of `context` tokens and their successor; the last tenth of the text is for
    /// validation.
    ///
    /// # Errors
    /// [`CorpusError::TooShort`] when training or validation would have no window.
    pub fn new(tokens: Tokens, context: usize, seed: u64) -> Result<Self, CorpusError> {
        let count = tokens.tokens.len();
        let needed = VALIDATION_FRACTION * (context + 1);
        if count < needed {
            return Err(CorpusError::TooShort { tokens: count, needed, context });
        }
        let train = count - (count / VALIDATION_FRACTION);
        Ok(Self { tokens: Arc::new(tokens), context, seed, train })
    }

    /// The whole text.
    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Number of different tokens.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.tokens.vocabulary
    }

    /// Tokens in a window.
    #[must_use]
    pub fn context(&self) -> usize {
        self.context
    }

    /// Number of tokens for training and for validation.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize) {
        (self.train, self.tokens.tokens.len() - self.train)
    }

    /// The windows of some samples of a batch, `context + 1` tokens each.
    #[must_use]
    pub fn rows(&self, batch: u64, samples: Range<usize>) -> Vec<&[u32]> {
        self.rows_of(0, batch, samples)
    }

    /// The same for one of several models: model `m` sees what the first model sees with a seed
    /// higher by `m`.
    #[must_use]
    pub fn rows_of(&self, model: u64, batch: u64, samples: Range<usize>) -> Vec<&[u32]> {
        samples.map(|sample| self.window(self.seed.wrapping_add(model), batch, sample)).collect()
    }

    fn window(&self, seed: u64, batch: u64, sample: usize) -> &[u32] {
        let mut key = [0; 24];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&batch.to_le_bytes());
        key[16..].copy_from_slice(&(sample as u64).to_le_bytes());
        let places = (self.train - self.context) as u64;
        let start = (xxh3_64(&key) % places) as usize;
        &self.tokens.tokens[start..=start + self.context]
    }

    /// Up to `count` windows spread evenly over the validation text.
    #[must_use]
    pub fn validation_rows(&self, count: usize) -> Vec<&[u32]> {
        let text = &self.tokens.tokens[self.train..];
        let places = text.len() - self.context;
        let count = count.min(places.div_ceil(self.context));
        (0..count)
            .map(|i| places * i / count)
            .map(|start| &text[start..=start + self.context])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_stay_on_their_side() {
        let tokens = Tokens { tokens: (0..400).collect(), vocabulary: 400 };
        let batches = Batches::new(tokens, 32, 1).unwrap();
        assert_eq!(batches.sizes(), (360, 40));
        for step in 0..200 {
            assert!(batches.rows(step, 0..4).iter().all(|row| row.len() == 33 && row[32] < 360));
        }
        let validation = batches.validation_rows(16);
        assert!(
            !validation.is_empty() && validation.iter().all(|row| row.len() == 33 && row[0] >= 360)
        );
    }

    #[test]
    fn folders_are_read_in_order_and_bad_ones_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        fs::write(folder.path().join("b/two.txt"), "two").unwrap();
        fs::write(folder.path().join("a.txt"), "one").unwrap();
        fs::write(folder.path().join(".hidden"), "no").unwrap();
        assert_eq!(Corpus::read(folder.path()).unwrap().bytes, b"one\ntwo");
        let missing = folder.path().join("missing");
        assert!(Corpus::read(&missing).unwrap_err().to_string().contains("missing"));
        fs::write(&missing, "").unwrap();
        assert!(matches!(Corpus::read(&missing), Err(CorpusError::Empty { .. })));
        let short = Tokens { tokens: vec![1; 100], vocabulary: 256 };
        assert!(
            Batches::new(short, 64, 0)
                .unwrap_err()
                .to_string()
                .contains("100 tokens, but 650 are needed")
        );
    }

    #[test]
    fn tokenizer_files_are_used_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        fs::write(
            &file,
            concat!(
                r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"#,
                r#""pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,"#,
                r#""model":{"type":"WordLevel","vocab":{"to":0,"be":1,"or":2,"not":3,"[UNK]":4},"unk_token":"[UNK]"}}"#
            ),
        )
        .unwrap();
        let corpus = |text: &[u8]| Corpus { origin: "x".into(), bytes: text.to_vec() };
        let tokens = corpus(b"to be or not to see").tokens_by(&file).unwrap();
        assert_eq!((tokens.tokens, tokens.vocabulary), (vec![0, 1, 2, 3, 0, 4], 5));
        assert!(
            corpus(b"to \xff")
                .tokens_by(&file)
                .unwrap_err()
                .to_string()
                .contains("not UTF-8 at byte 3")
        );
        fs::write(&file, "{").unwrap();
        assert!(matches!(corpus(b"to").tokens_by(&file), Err(CorpusError::Tokenizer { .. })));
    }
}
