//! What can be wrong with a connection or its keys.

use super::DOMAIN;
use rustls::pki_types::pem;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Who connects.
    Client,
    /// Who listens.
    Server,
}

impl fmt::Display for Side {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

/// What may be the reason when the other side hangs up. A listener that knows another token says so
/// in its proof: before that it is no reason.
fn reason_to_close(from: Side, missing: &str) -> &'static str {
    match (from, missing) {
        (Side::Server, "its version" | "its TLS handshake") => {
            "it may have as many callers as it takes at once, or another certificate; its own \
             messages say"
        }
        _ => "its own messages may say why (another token or certificate?)",
    }
}

/// Why a connection is refused, or its keys cannot be used. `from` is always the other side.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// A plain connection would leave the host.
    #[error(
        "plain connections stay on this host, and {address} is not a loopback address: for \
         other hosts the coordinator and every worker need `Security::Tls`"
    )]
    Exposed {
        /// Where to.
        address: String,
    },
    /// The proof is wrong.
    #[error("the {from} does not know this job's token")]
    WrongToken {
        /// Whose.
        from: Side,
    },
    /// The other side talks something else.
    #[error("the {from} does not talk codedgrad; it began with \"{first}\"")]
    NotOurs {
        /// Who.
        from: Side,
        /// Its first bytes, escaped.
        first: String,
    },
    /// The other side talks TLS and this side does not.
    #[error(
        "the {from} talks TLS and this side does not: use `Security::Tls` on both sides or on \
         neither"
    )]
    UnexpectedTls {
        /// Who.
        from: Side,
    },
    /// This side talks TLS and the other does not.
    #[error(
        "the {from} does not talk TLS and this side does: use `Security::Tls` on both sides or on \
         neither"
    )]
    NoTls {
        /// Who.
        from: Side,
    },
    /// The other side is another version.
    #[error(
        "the {from} talks version {theirs} of the protocol and this side version {ours}; run the \
         same codedgrad everywhere"
    )]
    Version {
        /// Who.
        from: Side,
        /// Its version.
        theirs: u16,
        /// This side's.
        ours: u16,
    },
    /// The other side took too long.
    #[error("the {from} did not prove itself within {patience:?}")]
    TooSlow {
        /// Who.
        from: Side,
        /// How long it had.
        patience: Duration,
    },
    /// The other side's certificate is not one this side trusts.
    #[error("the {from}'s certificate is refused: {reason}")]
    Certificate {
        /// Whose.
        from: Side,
        /// Why.
        reason: rustls::Error,
    },
    /// A certificate that is trusted but says not who it is for.
    #[error(
        "the {from}'s certificate must name one role, as `coordinator{DOMAIN}` or \
         `worker-0{DOMAIN}`; it names {count}"
    )]
    PeerRole {
        /// Whose.
        from: Side,
        /// How many it names.
        count: usize,
    },
    /// TLS failed otherwise, or the other side refused this side's certificate.
    #[error("no TLS with the {from}: {reason}")]
    Tls {
        /// With whom.
        from: Side,
        /// Why.
        reason: rustls::Error,
    },
    /// The other side hung up.
    #[error("the {from} hung up instead of sending {missing}; {}", reason_to_close(*from, missing))]
    Closed {
        /// Who.
        from: Side,
        /// What was expected next.
        missing: &'static str,
    },
    /// The connection failed.
    #[error("the connection to the {from} failed before {missing}: {source}")]
    Broken {
        /// To whom.
        from: Side,
        /// What was expected next.
        missing: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is there already.
    #[error("{} exists already and is not overwritten", path.display())]
    Exists {
        /// Which.
        path: PathBuf,
    },
    /// A secret that is none.
    #[error(
        "{} has mode {mode:03o}, so others can read this secret; `chmod 600` it",
        path.display()
    )]
    Readable {
        /// Where it is.
        path: PathBuf,
        /// The file's mode.
        mode: u32,
    },
    /// Text that is no token.
    #[error("a token is {digits} hexadecimal digits; this is none, of {length} characters")]
    NoToken {
        /// How many it should be.
        digits: usize,
        /// How long the text is.
        length: usize,
    },
    /// A file that is not what it should be.
    #[error("{} holds no usable {what}: {source}", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// Why it is not.
        source: pem::Error,
    },
    /// A certificate or key that TLS cannot use.
    #[error("{} cannot be used: {reason}", path.display())]
    Unusable {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: rustls::Error,
    },
    /// This process's certificate says not who it is for.
    #[error("{} must name one role, as `coordinator{DOMAIN}` or `worker-0{DOMAIN}`, among its DNS \
        names; it names {count}", path.display())]
    OwnRole {
        /// Which.
        path: PathBuf,
        /// How many it names.
        count: usize,
    },
    /// A certificate or key cannot be made.
    #[cfg(feature = "keys")]
    #[error("cannot make a certificate: {0}")]
    Keygen(#[from] rcgen::Error),
    /// The operating system has no random bytes.
    #[error("the operating system gives no random bytes")]
    Random,
}
