//! What NCCL asks of ranks, devices and versions, as values.

use super::NcclError;
use std::fmt;
use std::str::FromStr;

/// The environment variable that allows several ranks on one GPU, from NCCL 2.30 on.
pub const MANY_RANKS_SWITCH: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

/// A version of libnccl.
///
/// ```
/// use codedgrad::transport::nccl::Version;
/// let version = Version::of_code(23203);
/// assert_eq!((version.to_string().as_str(), version < Version::MANY_RANKS), ("2.32.3", false));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second.
    pub minor: u32,
    /// The third.
    pub patch: u32,
}

impl Version {
    /// The first with communicators that do not block, which alone can be given up.
    pub const OLDEST: Self = Self { major: 2, minor: 14, patch: 0 };
    /// The first that can have several ranks on one GPU, where [`MANY_RANKS_SWITCH`] is 1.
    pub const MANY_RANKS: Self = Self { major: 2, minor: 30, patch: 0 };

    /// From `ncclGetVersion`'s number: 10000 major + 100 minor + patch; before 2.9, 1000 major.
    #[must_use]
    pub fn of_code(code: u32) -> Self {
        let unit = if code < 10000 { 1000 } else { 10000 };
        Self { major: code / unit, minor: code % unit / 100, patch: code % 100 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// What all ranks of a communicator must have before they connect: 128 bytes that one of them makes
/// and hands to the others by whatever they have: a file, an environment variable, a message.
/// Written as 256 hexadecimal digits. Good for one communicator; connecting again needs
/// another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId(pub [u8; 128]);

impl fmt::Display for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UniqueId({self})")
    }
}

impl FromStr for UniqueId {
    type Err = NcclError;

    fn from_str(text: &str) -> Result<Self, NcclError> {
        let bad = || NcclError::BadId { length: text.len() };
        if text.len() != 256 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut id = [0; 128];
        for (place, byte) in id.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).map_err(|_| bad())?;
        }
        Ok(Self(id))
    }
}

/// Refuses ranks that are not `0..size`, or the same twice.
pub(super) fn check_ranks(size: usize, ranks: &[usize]) -> Result<(), NcclError> {
    if ranks.is_empty() {
        return Err(NcclError::NoRanks);
    }
    match ranks
        .iter()
        .enumerate()
        .find(|(place, rank)| **rank >= size || ranks[..*place].contains(rank))
    {
        Some((_, rank)) => Err(NcclError::Rank { rank: *rank, size }),
        None => Ok(()),
    }
}

/// Refuses two ranks on one device where NCCL would; `switch` is what [`MANY_RANKS_SWITCH`] says.
pub(super) fn check_devices(
    version: Version,
    switch: Option<&str>,
    ranks: &[usize],
    devices: &[usize],
) -> Result<(), NcclError> {
    let shared = devices.iter().enumerate().find_map(|(place, device)| {
        let first = devices[..place].iter().position(|other| other == device)?;
        Some((ranks[first], ranks[place], *device))
    });
    let Some((first, second, device)) = shared else { return Ok(()) };
    if version < Version::MANY_RANKS {
        return Err(NcclError::SharedDevice { first, second, device, version });
    }
    match switch.map(str::trim) {
        Some("1") => Ok(()),
        _ => Err(NcclError::Switch { first, second, device }),
    }
}

#[cfg(test)]
mod tests;
