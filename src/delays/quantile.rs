//! Quantiles of a stream in bounded memory.

use std::collections::BTreeMap;

/// Bits of a number that tell bins apart: sign, exponent and the 10 leading bits of the fraction,
/// so that a bin is at most 0.1 % wide.
const BIN_SHIFT: u32 = 42;

#[derive(Clone, Copy, Debug)]
struct Bin {
    count: u64,
    least: f64,
    most: f64,
}

/// Counts of numbers that are not negative, in bins of 0.1 %.
#[derive(Clone, Debug, Default)]
pub(super) struct Quantiles {
    bins: BTreeMap<u64, Bin>,
    count: u64,
}

impl Quantiles {
    pub(super) fn push(&mut self, value: f64) {
        let bin = self.bins.entry(value.to_bits() >> BIN_SHIFT).or_insert(Bin {
            count: 0,
            least: value,
            most: value,
        });
        *bin = Bin { count: bin.count + 1, least: bin.least.min(value), most: bin.most.max(value) };
        self.count += 1;
    }

    /// The middle of all numbers, or of the two in the middle, off by half a bin at most; exact
    /// where a bin holds one value only. 0 if there are none.
    pub(super) fn median(&self) -> f64 {
        let Some(last) = self.count.checked_sub(1) else { return 0.0 };
        (self.ranked(last / 2) + self.ranked(last.div_ceil(2))) / 2.0
    }

    fn ranked(&self, rank: u64) -> f64 {
        let mut below = 0;
        for bin in self.bins.values() {
            below += bin.count;
            if rank < below {
                return f64::midpoint(bin.least, bin.most);
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests;
