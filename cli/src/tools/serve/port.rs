//! A coordinator's port, for any trainer: where it listens, by what it knows its workers, how their
//! vectors travel, and what people are told of that.

use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use codedgrad::files;
use codedgrad::run::NumberFormat;
use codedgrad::transport::tcp::security::{Keys, Security, Token, check_address};
use codedgrad::transport::tcp::{Exchange, Secrets};
use codedgrad_shell::failure::{Failure, OrInput, OrWork};
use codedgrad_shell::folder::{ADDRESS, RunFolder};
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// Where the token of a run is, in its folder.
pub(crate) const TOKEN: &str = "token";
/// More than any host and port.
const ADDRESS_BYTES_MAX: u64 = 4 << 10;

/// Who sums the workers' vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ExchangeKind {
    /// The coordinator: every vector goes there and comes back.
    Star,
    /// The workers among themselves, each a part: no vector goes through one place.
    Sharded,
    /// The coordinator, which gets every result as soon as it is done, before its weight is known;
    /// all of them wait in its memory.
    Hold,
    /// The workers' GPUs by NCCL, one of each worker; by connections, as sharded, for who is late,
    /// and whenever NCCL cannot.
    Nccl,
}

impl ExchangeKind {
    pub(crate) fn exchange(self) -> Exchange {
        match self {
            Self::Star => Exchange::Star,
            Self::Sharded => Exchange::Sharded,
            Self::Hold => Exchange::Hold,
            Self::Nccl => Exchange::Nccl,
        }
    }
}

/// Parses the format of numbers on the wire, one that frames have.
pub(crate) fn wire_format() -> impl TypedValueParser<Value = NumberFormat> {
    let formats = [
        (NumberFormat::F32, "4 bytes each, as they are computed"),
        (NumberFormat::Bf16, "2 bytes each, rounded to 8 bits of precision"),
    ];
    let named = formats.map(|(format, help)| PossibleValue::new(format.name()).help(help));
    PossibleValuesParser::new(named).try_map(|name| name.parse::<NumberFormat>())
}

/// A number that no other run is likely to have.
pub(crate) fn fresh_id() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The first address of a `HOST:PORT`.
fn address_of(text: &str) -> Result<SocketAddr, Failure> {
    let wrong =
        || format!("{:?} is no address; write HOST:PORT, for example 127.0.0.1:0", text.trim());
    let mut found = text.trim().to_socket_addrs().with_context(wrong).or_input()?;
    found.next().with_context(wrong).or_input()
}

/// Where a coordinator listens, and by what it knows its workers.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub(crate) struct Port {
    /// Where to listen; port 0 is any free one [default: 127.0.0.1:0; when resumed, where the run
    /// did]
    #[arg(long, value_name = "ADDR", help_heading = "Connections")]
    pub(crate) listen: Option<String>,
    /// Folder with ca.pem, coordinator.pem and coordinator.key, as `codedgrad keygen` makes it
    #[arg(long, value_name = "DIR", help_heading = "Connections")]
    pub(crate) keys: Option<PathBuf>,
    /// File with the job's token [default: a fresh one, written to the run's folder]
    #[arg(
        long,
        value_name = "FILE",
        alias = "token-file",
        help_heading = "Connections",
        hide_short_help = true
    )]
    pub(crate) token: Option<PathBuf>,
}

impl Port {
    /// The address to listen at: the one asked for, or the one the run had.
    pub(crate) fn address(&self, resumed: Option<&RunFolder>) -> Result<SocketAddr, Failure> {
        let Some(folder) = resumed.filter(|_| self.listen.is_none()) else {
            return address_of(self.listen.as_deref().unwrap_or("127.0.0.1:0"));
        };
        let path = folder.file(ADDRESS);
        let text = files::read_text(&path, ADDRESS_BYTES_MAX)
            .with_context(|| format!("cannot read {}; give --listen", path.display()))
            .or_input()?;
        address_of(&text)
    }

    /// Refuses what cannot be secured before anything is written.
    pub(crate) fn check(&self, address: SocketAddr) -> Result<(), Failure> {
        match &self.keys {
            Some(keys) => Keys::read(keys, "coordinator").map(drop).or_input(),
            None => check_address(address, &Security::Plain { token: Token::fresh().or_work()? })
                .or_input(),
        }
    }

    pub(crate) fn security(&self, folder: &RunFolder) -> Result<Security, Failure> {
        let Self { keys, token, .. } = self;
        if let (None, None) = (keys, token) {
            return Ok(Security::Plain { token: token_at(&folder.file(TOKEN))? });
        }
        let secrets = Secrets { keys: keys.clone(), token: None, token_file: token.clone() };
        secrets.of_coordinator().or_input()
    }

    /// Writes down where it listens, for a coordinator that goes on.
    pub(crate) fn write_address(
        &self,
        address: SocketAddr,
        folder: &RunFolder,
    ) -> Result<(), Failure> {
        folder.write_whole(ADDRESS, format!("{address}\n").as_bytes()).or_work()
    }

    /// Where workers find it, and what lets them in, as variables of their environment.
    pub(crate) fn invitation(&self, address: SocketAddr, folder: &RunFolder) -> String {
        let host = if address.ip().is_unspecified() {
            format!("HOST:{}", address.port())
        } else {
            address.to_string()
        };
        let secret = if self.keys.is_some() {
            // It has another place on every host.
            "CODEDGRAD_KEYS=DIR".into()
        } else {
            // Workers may be started in another folder.
            let path = self.token.clone().unwrap_or_else(|| folder.file(TOKEN));
            let path = std::path::absolute(&path).unwrap_or(path);
            format!("CODEDGRAD_TOKEN_FILE={}", path.display())
        };
        format!("CODEDGRAD_ADDRESS={host} {secret}")
    }
}

/// A token file, or a fresh token written there.
fn token_at(path: &Path) -> Result<Token, Failure> {
    if path.exists() {
        return Token::read(path).or_input();
    }
    let token = Token::fresh().or_work()?;
    token.write(path).or_work()?;
    Ok(token)
}
