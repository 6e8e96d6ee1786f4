//! What the environment of a worker's process says: where its coordinator is, which worker it is,
//! and by which secrets they know each other.
//!
//! | what | variables, the first that is set |
//! |---|---|
//! | the coordinator's `HOST:PORT` | `CODEDGRAD_ADDRESS` |
//! | the worker's number, from 0 | `CODEDGRAD_WORKER`, or the launcher's word |
//! | how many workers there are | `CODEDGRAD_WORKERS`, or the launcher's word |
//! | the folder with the job's certificates | `CODEDGRAD_KEYS` |
//! | the job's token, or a file with it | `CODEDGRAD_TOKEN`, `CODEDGRAD_TOKEN_FILE` (one of them) |
//! | with whom the worker may fail at once | `CODEDGRAD_DOMAIN`; else its host's name |
//!
//! Launchers say which process this is in `SLURM_PROCID`, `OMPI_COMM_WORLD_RANK`, `PMI_RANK` or
//! `JOB_COMPLETION_INDEX`, and how many there are in `SLURM_NTASKS`, `OMPI_COMM_WORLD_SIZE` or
//! `PMI_SIZE`.
//!
//! `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` are not among them: within a worker that
//! is itself several processes, torchrun gives them to those.

use super::security::{Keys, Security, SecurityError, Token};
use crate::files;
use crate::sums::COORDINATOR;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use thiserror::Error;

const ADDRESS: &str = "CODEDGRAD_ADDRESS";
const TOKEN: &str = "CODEDGRAD_TOKEN";
const TOKEN_FILE: &str = "CODEDGRAD_TOKEN_FILE";
const KEYS: &str = "CODEDGRAD_KEYS";
const DOMAIN: &str = "CODEDGRAD_DOMAIN";
/// Where it is said which worker this is.
const NUMBERS: [&str; 5] = [
    "CODEDGRAD_WORKER",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "JOB_COMPLETION_INDEX",
];
/// Where it is said how many there are, in the same order.
const SIZES: [&str; 4] = ["CODEDGRAD_WORKERS", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"];
/// No host has a longer name.
const NAME_BYTES_MAX: u64 = 4 << 10;

/// What the environment says of a worker; nothing is read from files yet.
///
/// ```
/// use codedgrad::transport::tcp::Environment;
/// let set = [("CODEDGRAD_ADDRESS", "host0:7000"), ("SLURM_PROCID", "3"), ("RANK", "9")];
/// let look = |name: &str| set.iter().find(|set| set.0 == name).map(|set| set.1.into());
/// let environment = Environment::read(look)?;
/// assert_eq!(environment.address.as_deref(), Some("host0:7000"));
/// assert_eq!(environment.worker, Some(3));
/// # Ok::<(), codedgrad::transport::tcp::EnvironmentError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Where the coordinator listens, `host:port`.
    pub address: Option<String>,
    /// The worker's number.
    pub worker: Option<u32>,
    /// How many workers there are, and the variable that says so.
    pub workers: Option<(&'static str, u32)>,
    /// How peers know each other.
    pub secrets: Secrets,
}

/// Where the secrets of a worker are.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    /// A folder with `ca.pem`, `worker-K.pem` and `worker-K.key`, as `codedgrad keygen` makes it.
    pub keys: Option<PathBuf>,
    /// The job's token.
    pub token: Option<Token>,
    /// A file with it, if it is not given itself.
    pub token_file: Option<PathBuf>,
}

/// What is wrong with the environment of a worker.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EnvironmentError {
    /// A value that is no text.
    #[error("{variable} is {value:?}, which is not UTF-8")]
    NotText {
        /// Which variable.
        variable: &'static str,
        /// What it is.
        value: OsString,
    },
    /// A value that is no number of a worker, or of workers.
    #[error("{variable} is {value:?} and not a number from 0 to {}", COORDINATOR - 1)]
    NotNumber {
        /// Which variable.
        variable: &'static str,
        /// What it is.
        value: String,
    },
    /// A value that is no token.
    #[error("{variable}: {source}")]
    NotToken {
        /// Which variable.
        variable: &'static str,
        /// What it is instead.
        source: SecurityError,
    },
    /// The token is given twice.
    #[error("{TOKEN} and {TOKEN_FILE} are both set: one of them says which token it is")]
    TwoTokens,
    /// No variable says where to call.
    #[error("{ADDRESS} is not set: it says where the coordinator listens, HOST:PORT")]
    NoAddress,
    /// No variable gives the job's secret.
    #[error(
        "the job's secret is needed: {TOKEN_FILE} (a file) or {TOKEN} (64 hexadecimal digits) on \
         one host, {KEYS} (a folder) between hosts"
    )]
    NoSecret,
    /// A folder of certificates that cannot be read.
    #[error("cannot read {}: {source}", dir.display())]
    Folder {
        /// Which folder.
        dir: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A folder with the certificates of several workers, or of none, and no number to choose by.
    #[error(
        "{} holds the certificates of {found} workers: say which by {}",
        dir.display(),
        NUMBERS[0]
    )]
    WhichCertificate {
        /// Which folder.
        dir: PathBuf,
        /// How many certificates of workers it holds.
        found: usize,
    },
    /// Secrets that cannot be used.
    #[error(transparent)]
    Security(#[from] SecurityError),
}

impl Environment {
    /// What variables say, as `look` finds them.
    ///
    /// # Errors
    /// [`EnvironmentError`] names the variable and its value.
    pub fn read(look: impl Fn(&str) -> Option<OsString>) -> Result<Self, EnvironmentError> {
        let look = Look(look);
        let (token, token_file) = (look.text(TOKEN)?, look.0(TOKEN_FILE).map(PathBuf::from));
        if token.is_some() && token_file.is_some() {
            return Err(EnvironmentError::TwoTokens);
        }
        let token = token.map(|hex| Token::parse(&hex)).transpose();
        let token =
            token.map_err(|source| EnvironmentError::NotToken { variable: TOKEN, source })?;
        Ok(Self {
            address: look.text(ADDRESS)?,
            worker: look.number(&NUMBERS)?.map(|(_, number)| number),
            workers: look.number(&SIZES)?,
            secrets: Secrets { keys: look.0(KEYS).map(PathBuf::from), token, token_file },
        })
    }

    /// What the environment of this process says.
    ///
    /// # Errors
    /// As [`Environment::read`].
    pub fn of_process() -> Result<Self, EnvironmentError> {
        Self::read(|name| std::env::var_os(name))
    }
}

/// The name of this host, `host` where it says none.
#[must_use]
pub fn host_name() -> String {
    let read = |path: &str| files::read_text(path.as_ref(), NAME_BYTES_MAX).ok();
    let name = read("/proc/sys/kernel/hostname")
        .or_else(|| read("/etc/hostname"))
        .or_else(|| std::env::var("HOSTNAME").ok());
    name.map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "host".into())
}

/// With which others a worker of this process may fail at once.
pub(super) fn domain_of_process() -> String {
    let told = std::env::var(DOMAIN).ok().map(|domain| domain.trim().to_owned());
    told.filter(|domain| !domain.is_empty()).unwrap_or_else(host_name)
}

struct Look<F>(F);

impl<F: Fn(&str) -> Option<OsString>> Look<F> {
    fn text(&self, variable: &'static str) -> Result<Option<String>, EnvironmentError> {
        let text = self.0(variable).map(OsString::into_string).transpose();
        text.map_err(|value| {
            // The value of a secret is not for logs.
            let value = if variable == TOKEN { "...".into() } else { value };
            EnvironmentError::NotText { variable, value }
        })
    }

    /// The first of some variables that is set, and its value.
    fn number(
        &self,
        variables: &[&'static str],
    ) -> Result<Option<(&'static str, u32)>, EnvironmentError> {
        for &variable in variables {
            if let Some(value) = self.text(variable)? {
                // Scripts leave blanks around what they read from files.
                let number = value.trim().parse().ok().filter(|number| *number != COORDINATOR);
                let number = number.ok_or(EnvironmentError::NotNumber { variable, value })?;
                return Ok(Some((variable, number)));
            }
        }
        Ok(None)
    }
}

impl Secrets {
    /// What they are, for a worker of this number if it has one: TLS where there is a folder of
    /// keys, with the token that is given or lies in it; else a token alone.
    ///
    /// # Errors
    /// [`EnvironmentError`] when there is none, or it cannot be read.
    ///
    /// ```
    /// use codedgrad::transport::tcp::Secrets;
    /// use codedgrad::transport::tcp::security::{Security, Token};
    /// let secrets = Secrets { token: Some(Token::fresh()?), ..Secrets::default() };
    /// assert!(matches!(secrets.security(Some(3))?, Security::Plain { .. }));
    /// let error = Secrets::default().security(None).unwrap_err();
    /// assert!(error.to_string().contains("CODEDGRAD_TOKEN_FILE"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn security(&self, worker: Option<u32>) -> Result<Security, EnvironmentError> {
        self.by(|dir| certificate(dir, worker))
    }

    /// The same for the coordinator.
    ///
    /// # Errors
    /// As [`Secrets::security`].
    ///
    /// ```
    /// use codedgrad::transport::tcp::Secrets;
    /// let secrets = Secrets { keys: Some("nowhere".into()), ..Secrets::default() };
    /// let error = secrets.of_coordinator().unwrap_err();
    /// assert!(error.to_string().contains("nowhere"));
    /// ```
    pub fn of_coordinator(&self) -> Result<Security, EnvironmentError> {
        self.by(|_| Ok("coordinator".to_owned()))
    }

    /// With the certificate of a folder that has this name.
    fn by(
        &self,
        certificate: impl Fn(&Path) -> Result<String, EnvironmentError>,
    ) -> Result<Security, EnvironmentError> {
        let beside = |dir: &PathBuf| Some(dir.join("token")).filter(|file| file.exists());
        let file = self.token_file.clone();
        let file = file.or_else(|| self.keys.as_ref().and_then(beside));
        let token = match &self.token {
            Some(token) => Some(token.clone()),
            None => file.map(|file| Token::read(&file)).transpose()?,
        };
        let Some(dir) = &self.keys else {
            return Ok(Security::Plain { token: token.ok_or(EnvironmentError::NoSecret)? });
        };
        Ok(Security::Tls { keys: Keys::read(dir, &certificate(dir)?)?, token })
    }
}

/// The name of a worker's certificate: by its number, or the only one there.
fn certificate(dir: &Path, worker: Option<u32>) -> Result<String, EnvironmentError> {
    if let Some(worker) = worker {
        return Ok(format!("worker-{worker}"));
    }
    let entries = std::fs::read_dir(dir)
        .map_err(|source| EnvironmentError::Folder { dir: dir.into(), source })?;
    let names = entries.filter_map(|entry| {
        Some(entry.ok()?.file_name().to_string_lossy().strip_suffix(".pem")?.to_owned())
    });
    let names: Vec<String> = names.filter(|name| name.starts_with("worker-")).collect();
    match &names[..] {
        [name] => Ok(name.clone()),
        // Guessing would give two workers the same name.
        _ => Err(EnvironmentError::WhichCertificate { dir: dir.into(), found: names.len() }),
    }
}
