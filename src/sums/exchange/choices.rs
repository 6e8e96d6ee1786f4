//! How vectors are exchanged: who sums, and when results are sent.

use std::fmt;
use std::str::FromStr;

/// Who sums, and by what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exchange {
    /// The coordinator, of what it asks for: every vector goes there and comes back.
    Star,
    /// The workers that are there, each a part: a reduce-scatter and an all-gather among them, over
    /// their connections.
    #[default]
    Sharded,
    /// The coordinator, which gets every result as soon as it is done, before any node knows its
    /// weight: for schemes that judge results as received.
    Hold,
    /// The workers: where all whose vectors are summed have found each other by a collective
    /// ([`crate::sums::collective`]), such as NCCL between their GPUs, by that; else as
    /// [`Exchange::Sharded`].
    Nccl,
}

impl Exchange {
    /// Each with the text that it is read from.
    const TEXTS: [(&'static str, Self); 4] = [
        ("star", Self::Star),
        ("sharded", Self::Sharded),
        ("hold", Self::Hold),
        ("nccl", Self::Nccl),
    ];

    /// This one for a scheme that needs results as the coordinator received them, or does not.
    ///
    /// ```
    /// use codedgrad::transport::tcp::Exchange;
    /// assert_eq!(Exchange::Sharded.for_results_received(true), Exchange::Hold);
    /// assert_eq!(Exchange::Sharded.for_results_received(false), Exchange::Sharded);
    /// ```
    #[must_use]
    pub fn for_results_received(self, needed: bool) -> Self {
        if needed { Self::Hold } else { self }
    }

    /// Whether workers sum among themselves.
    #[must_use]
    pub fn is_by_workers(self) -> bool {
        matches!(self, Self::Sharded | Self::Nccl)
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (text, _) =
            Self::TEXTS.iter().find(|(_, exchange)| exchange == self).expect("each has a text");
        f.write_str(text)
    }
}

impl FromStr for Exchange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((_, exchange)) = Self::TEXTS.iter().find(|(known, _)| *known == text) {
            return Ok(*exchange);
        }
        Err(format!("{text:?} is not an exchange; expected star, sharded, hold or nccl"))
    }
}

#[cfg(test)]
mod tests;
