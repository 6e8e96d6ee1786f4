//! The secret that the processes of one job share, and files that only their owner can read.

use super::SecurityError;
use crate::files::BoundedReader;
use ring::hmac;
use ring::rand::SystemRandom;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::Path;

const BYTES: usize = 32;
/// No secret is longer; a file that is, is none.
pub(super) const LONGEST: u64 = 1 << 20;

/// A job's shared secret, shown by [`Token::hex`] alone.
#[derive(Clone)]
pub struct Token([u8; BYTES]);

impl Token {
    /// For TLS alone.
    pub(super) const ZERO: Self = Self([0; BYTES]);

    /// A new one.
    ///
    /// # Errors
    /// [`SecurityError::Random`] when the operating system gives no random bytes.
    pub fn fresh() -> Result<Self, SecurityError> {
        random().map(Self)
    }

    /// From 64 hexadecimal digits; space around them does not matter.
    ///
    /// # Errors
    /// [`SecurityError::NoToken`] for any other text.
    pub fn parse(hex: &str) -> Result<Self, SecurityError> {
        let hex = hex.trim().as_bytes();
        let none = || SecurityError::NoToken { digits: 2 * BYTES, length: hex.len() };
        if hex.len() != 2 * BYTES {
            return Err(none());
        }
        let digit = |digit: u8| char::from(digit).to_digit(16).ok_or_else(none);
        let mut token = [0; BYTES];
        for (byte, pair) in token.iter_mut().zip(hex.chunks_exact(2)) {
            *byte = (digit(pair[0])? * 16 + digit(pair[1])?) as u8;
        }
        Ok(Self(token))
    }

    /// From a file.
    ///
    /// # Errors
    /// [`SecurityError`] when it cannot be read, holds no token or, on Unix, can be read by others
    /// than its owner.
    pub fn read(path: &Path) -> Result<Self, SecurityError> {
        Self::parse(&String::from_utf8_lossy(&read_secret(path)?))
    }

    /// Into a new file that on Unix only its owner can read.
    ///
    /// # Errors
    /// [`SecurityError`] when the file exists or cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), SecurityError> {
        write_new(path, self.text().as_bytes(), true)
    }

    /// The 64 hexadecimal digits that [`Token::parse`] reads, to hand to a process that is to
    /// join: those who see them are of the job.
    ///
    /// ```
    /// use codedgrad::transport::tcp::security::Token;
    /// let token = Token::parse(&"5a".repeat(32))?;
    /// assert_eq!(token.hex(), "5a".repeat(32));
    /// assert_eq!(format!("{token:?}"), "Token(..)", "it is not shown by mistake");
    /// # Ok::<(), codedgrad::transport::tcp::security::SecurityError>(())
    /// ```
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn text(&self) -> String {
        self.hex() + "\n"
    }

    pub(super) fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(..)")
    }
}

/// Fresh random bytes.
pub(super) fn random() -> Result<[u8; BYTES], SecurityError> {
    ring::rand::generate(&SystemRandom::new())
        .map(ring::rand::Random::expose)
        .map_err(|_| SecurityError::Random)
}

/// Reads a file, unless others than its owner could.
pub(super) fn read_secret(path: &Path) -> Result<Vec<u8>, SecurityError> {
    let failed = |source| SecurityError::File { path: path.into(), source };
    let mut file = BoundedReader::open(path, LONGEST).map_err(failed)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SecurityError::Readable { path: path.into(), mode });
        }
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Writes a file that was not there before; a secret can be read by its owner only, from the start.
pub(super) fn write_new(path: &Path, bytes: &[u8], secret: bool) -> Result<(), SecurityError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if secret {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    #[cfg(not(unix))]
    let _ = secret;
    let mut file = options.open(path).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => SecurityError::Exists { path: path.into() },
        _ => SecurityError::File { path: path.into(), source },
    })?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(|source| {
        drop(std::fs::remove_file(path));
        SecurityError::File { path: path.into(), source }
    })
}
