//! How vectors are exchanged: who sums, and when results are sent.

use std::fmt;
use std::str::FromStr;

/// Who sums, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// The coordinator: every vector goes there and comes back.
    Coordinator(SendResults),
    /// The workers that are there, each a part: a reduce-scatter and an all-gather among them.
    Workers(Carrier),
}

/// When workers send their results to a coordinator that sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendResults {
    /// Once it is known which of them are summed.
    WhenAsked,
    /// As soon as they are done, before anybody knows their weights: for what has to be judged
    /// by what was received.
    WhenDone,
}

/// What carries the vectors of workers that sum among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Their connections.
    Connections,
    /// Where all workers whose vectors are summed have found each other by a collective
    /// ([`crate::sums::collective`]), such as NCCL between their GPUs: that. Else their
    /// connections.
    Collective,
}

impl Exchange {
    /// `star`: the coordinator sums what it asks for.
    pub const STAR: Self = Self::Coordinator(SendResults::WhenAsked);
    /// `hold`: the coordinator sums, and gets every result at once.
    pub const HOLD: Self = Self::Coordinator(SendResults::WhenDone);
    /// `sharded`: the workers sum among themselves.
    pub const SHARDED: Self = Self::Workers(Carrier::Connections);
    /// `nccl`: the same by a collective, where there is one.
    pub const NCCL: Self = Self::Workers(Carrier::Collective);

    /// Each with the text that it is read from.
    const TEXTS: [(&'static str, Self); 4] = [
        ("star", Self::STAR),
        ("sharded", Self::SHARDED),
        ("hold", Self::HOLD),
        ("nccl", Self::NCCL),
    ];

    /// This one for a scheme that needs results as the coordinator received them, or does not.
    ///
    /// ```
    /// use codedgrad::transport::tcp::Exchange;
    /// assert_eq!(Exchange::SHARDED.for_results_received(true), Exchange::HOLD);
    /// assert_eq!(Exchange::SHARDED.for_results_received(false), Exchange::SHARDED);
    /// ```
    #[must_use]
    pub fn for_results_received(self, needed: bool) -> Self {
        if needed { Self::HOLD } else { self }
    }

    /// Whether workers sum among themselves.
    #[must_use]
    pub fn is_by_workers(self) -> bool {
        matches!(self, Self::Workers(_))
    }
}

impl Default for Exchange {
    fn default() -> Self {
        Self::SHARDED
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
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_back() {
        for (text, exchange) in Exchange::TEXTS {
            assert_eq!((text.parse(), exchange.to_string()), (Ok(exchange), text.to_owned()));
        }
        assert!("ring".parse::<Exchange>().unwrap_err().contains("star, sharded, hold or nccl"));
    }
}
