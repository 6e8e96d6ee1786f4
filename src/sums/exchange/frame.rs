//! Frames on their way out: a header and what follows it.

use super::block::Block;
use crate::sums::Header;
use bytemuck::cast_slice;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A frame on its way out.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) body: Body,
}

/// What follows the header of a frame.
#[derive(Clone)]
pub(crate) enum Body {
    Control(Arc<[u8]>),
    /// A part of a vector that is held.
    Slice(Arc<Vec<f32>>, Range<usize>),
    /// A part of one of several vectors.
    Part(Arc<dyn AsRef<[Vec<f32>]> + Send + Sync>, usize, Range<usize>),
    Block(Arc<Block>),
}

/// Text of messages, and of vectors how long they are: a log is for people.
impl fmt::Debug for Body {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control(bytes) => formatter.write_str(&String::from_utf8_lossy(bytes)),
            vector => write!(formatter, "{} bytes", vector.bytes().len()),
        }
    }
}

impl Body {
    /// What is written, as it lies in memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Control(bytes) => bytes,
            Self::Block(block) => block.bytes(),
            Self::Slice(..) | Self::Part(..) => cast_slice(self.floats().unwrap_or_default()),
        }
    }

    /// The numbers of a part of a vector.
    pub(crate) fn floats(&self) -> Option<&[f32]> {
        match self {
            Self::Slice(vector, range) => Some(&vector[range.clone()]),
            Self::Part(all, vector, range) => Some(&(**all).as_ref()[*vector][range.clone()]),
            Self::Control(_) | Self::Block(_) => None,
        }
    }
}
