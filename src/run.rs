//! What a run is, in numbers: its number format.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Format of the numbers of vectors.
///
/// ```
/// use codedgrad::run::NumberFormat;
/// let format: NumberFormat = "bf16".parse()?;
/// assert_eq!((format, format.bytes(), format.to_string()), (NumberFormat::Bf16, 2, "bf16".into()));
/// assert_eq!("f8".parse::<NumberFormat>().unwrap_err(), "\"f8\" is no number format; it is f32, bf16 or f16");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumberFormat {
    /// 32-bit floats: 24 bits of precision.
    #[default]
    F32,
    /// bfloat16: half the bytes, 8 bits of precision.
    Bf16,
    /// IEEE half precision: half the bytes, 11 bits of precision. No vector travels over TCP in it.
    F16,
}

impl NumberFormat {
    /// Its name: `f32`, `bf16` or `f16`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Bytes of one number.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

impl fmt::Display for NumberFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

impl FromStr for NumberFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::F32, Self::Bf16, Self::F16]
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| format!("{text:?} is no number format; it is f32, bf16 or f16"))
    }
}
