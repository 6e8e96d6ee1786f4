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
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_nccl_writes_them() {
        for (code, text) in
            [(2708, "2.7.8"), (21403, "2.14.3"), (23000, "2.30.0"), (23203, "2.32.3")]
        {
            assert_eq!(Version::of_code(code).to_string(), text);
        }
        assert!(
            Version::of_code(2804) < Version::OLDEST && Version::of_code(21400) >= Version::OLDEST
        );
        assert!(
            Version::of_code(22907) < Version::MANY_RANKS
                && Version::of_code(23003) >= Version::MANY_RANKS
        );
    }

    #[test]
    fn ids_survive_being_written_down() {
        let id = UniqueId(std::array::from_fn(|place| (place * 37 % 256) as u8));
        let text = id.to_string();
        assert_eq!((text.len(), text.parse::<UniqueId>().unwrap()), (256, id));
        assert_eq!(text.to_uppercase().parse::<UniqueId>().unwrap(), id);
        for bad in [&text[1..], &format!("+{}", &text[1..]), &"é".repeat(128), ""] {
            assert!(
                matches!(bad.parse::<UniqueId>(), Err(NcclError::BadId { length }) if length == bad.len()),
                "{bad}"
            );
        }
    }

    #[test]
    fn ranks_are_below_the_size_and_different() {
        assert!(check_ranks(4, &[3, 0]).is_ok());
        assert!(matches!(check_ranks(4, &[]), Err(NcclError::NoRanks)));
        assert!(matches!(check_ranks(4, &[0, 4]), Err(NcclError::Rank { rank: 4, size: 4 })));
        assert!(matches!(check_ranks(4, &[1, 2, 1]), Err(NcclError::Rank { rank: 1, size: 4 })));
    }

    #[test]
    fn ranks_that_share_a_device_need_a_new_library_and_its_switch() {
        let (old, new) = (Version::of_code(22907), Version::of_code(23003));
        for switch in [None, Some("0"), Some("1")] {
            assert!(check_devices(old, switch, &[4, 5, 6], &[0, 1, 2]).is_ok());
            let refused = check_devices(old, switch, &[4, 5, 6], &[0, 1, 0]);
            assert_eq!(
                refused,
                Err(NcclError::SharedDevice { first: 4, second: 6, device: 0, version: old })
            );
        }
        for switch in [None, Some("0"), Some("")] {
            assert_eq!(
                check_devices(new, switch, &[0, 1], &[3, 3]),
                Err(NcclError::Switch { first: 0, second: 1, device: 3 })
            );
        }
        assert!(check_devices(new, Some("1"), &[0, 1], &[3, 3]).is_ok());
        let words = check_devices(new, None, &[0, 1], &[3, 3]).unwrap_err().to_string();
        assert!(words.contains("NCCL_MULTI_RANK_GPU_ENABLE=1"), "{words}");
    }
}
