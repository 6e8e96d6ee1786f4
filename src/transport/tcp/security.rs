//! Who may talk to whom: every connection proves itself before anything else is read from it.
//!
//! # The exchange
//!
//! Both sides prove that they know the job's token and show that nothing is replayed: each names 32
//! fresh random bytes, and both end up in both proofs. With TLS, all of this goes through the
//! encrypted stream, after its handshake. Numbers are little-endian, nothing else is sent, and
//! nothing is longer than this:
//!
//! | from | bytes | what |
//! |---|---|---|
//! | client | 6 | `CGRAD` and a zero |
//! | client | 2 | version, now 1 |
//! | client | 32 | the client's nonce |
//! | server | 2 | version, now 1; if the client's is another, the server hangs up after it |
//! | server | 32 | the server's nonce |
//! | server | 32 | `HMAC-SHA256(token, "codedgrad server" + version + client's nonce + server's nonce)` |
//! | client | 32 | `HMAC-SHA256(token, "codedgrad client" + version + client's nonce + server's nonce)` |
//! | server | 1 | 1: welcome |
//!
//! The key is the token's 32 bytes. Where TLS is used without a token it is 32 zeros: TLS has said
//! who is who, and the exchange only settles the version. In Python:
//!
//! ```python
//! import hmac, secrets, socket
//!
//! def read(connection, count):
//!     data = b""
//!     while len(data) < count:
//!         data += connection.recv(count - len(data)) or exit("closed")
//!     return data
//!
//! connection = socket.create_connection(("127.0.0.1", port))
//! token, version, nonce = bytes.fromhex(open("keys/token").read()), b"\1\0", secrets.token_bytes(32)
//! connection.sendall(b"CGRAD\0" + version + nonce)
//! assert read(connection, 2) == version
//! transcript = version + nonce + read(connection, 32)
//! assert hmac.compare_digest(read(connection, 32), hmac.digest(token, b"codedgrad server" + transcript, "sha256"))
//! connection.sendall(hmac.digest(token, b"codedgrad client" + transcript, "sha256"))
//! assert read(connection, 1) == b"\1"
//! ```
//!
//! With TLS, `connection` is first wrapped by an `ssl.create_default_context(cafile="keys/ca.pem")`
//! that has loaded `worker-0.pem` and `worker-0.key`, with
//! `server_hostname="coordinator.codedgrad"`.
//!
//! # What this does not do
//!
//! Without TLS, nothing after the exchange is encrypted or authenticated, and who can relay packets
//! can take a connection over. So plain connections are for one host alone: see [`check_address`].

mod error;
mod exchange;
mod gate;
#[cfg(feature = "keys")]
mod keygen;
mod keys;
mod refusals;
mod role;
mod token;

pub use error::{SecurityError, Side};
pub use gate::{HandshakeGate, Host, Pass};
#[cfg(feature = "keys")]
pub use keygen::keygen;
pub use keys::Keys;
pub use refusals::Refusals;
use role::DOMAIN;
pub use role::Role;
pub use token::Token;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// How the connections of a job are secured. All its processes must agree.
#[derive(Clone, Debug)]
pub enum Security {
    /// A shared secret and no encryption, for processes of one host.
    Plain {
        /// The secret.
        token: Token,
    },
    /// Mutual TLS 1.3.
    Tls {
        /// This process's certificate, its key and whom it trusts.
        keys: Keys,
        /// A shared secret on top, for certificates whose authority serves more than this job.
        token: Option<Token>,
    },
}

impl Security {
    fn key(&self) -> ring::hmac::Key {
        match self {
            Self::Plain { token } | Self::Tls { token: Some(token), .. } => token.key(),
            Self::Tls { token: None, .. } => Token::ZERO.key(),
        }
    }
}

/// Refuses plain connections that leave this host. To be asked by who listens, and by who connects.
///
/// # Errors
/// [`SecurityError::Exposed`], which says what to do instead.
pub fn check_address(address: SocketAddr, security: &Security) -> Result<(), SecurityError> {
    match security {
        Security::Plain { .. } if !address.ip().to_canonical().is_loopback() => {
            Err(SecurityError::Exposed { address: address.to_string() })
        }
        _ => Ok(()),
    }
}

/// Something to read from and write to: plain, encrypted or within the process.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A connection whose other end has proved itself.
pub type Stream = Box<dyn Duplex>;

/// Lets a client in that proves itself within `patience`, and gives the role of its certificate, by
/// which the caller decides what it may do. Without TLS there is none: all who know the token are
/// alike. Needs a runtime with timers.
///
/// # Errors
/// [`SecurityError`] says what was wrong with the client. The stream is dropped.
pub async fn accept<S>(
    stream: S,
    security: &Security,
    patience: Duration,
) -> Result<(Stream, Option<Role>), SecurityError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    in_time(Side::Client, patience, async {
        let (mut stream, role): (Stream, Option<Role>) = match security {
            Security::Plain { .. } => (Box::new(stream), None),
            Security::Tls { keys, .. } => {
                let tls = TlsAcceptor::from(keys.server()).accept(stream).await;
                let tls =
                    tls.map_err(|error| stream_error(Side::Client, "its TLS handshake", error))?;
                let role = keys::role_of(tls.get_ref().1.peer_certificates(), Side::Client)?;
                (Box::new(tls), Some(role))
            }
        };
        exchange::serve(&mut stream, &security.key()).await?;
        Ok((stream, role))
    })
    .await
}

/// Proves itself to a server, which must prove itself within `patience`, with TLS as the one that
/// is `expected`. Needs a runtime with timers.
///
/// # Errors
/// [`SecurityError`] says what was wrong with the server. The stream is dropped.
pub async fn connect<S>(
    stream: S,
    expected: Role,
    security: &Security,
    patience: Duration,
) -> Result<Stream, SecurityError>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    in_time(Side::Server, patience, async {
        let mut stream: Stream = match security {
            Security::Plain { .. } => Box::new(stream),
            Security::Tls { keys, .. } => {
                let tls = TlsConnector::from(keys.client())
                    .connect(keys::server_name(expected), stream)
                    .await;
                Box::new(
                    tls.map_err(|error| stream_error(Side::Server, "its TLS handshake", error))?,
                )
            }
        };
        exchange::greet(&mut stream, &security.key()).await?;
        Ok(stream)
    })
    .await
}

async fn in_time<T>(
    from: Side,
    patience: Duration,
    work: impl Future<Output = Result<T, SecurityError>>,
) -> Result<T, SecurityError> {
    tokio::time::timeout(patience, work)
        .await
        .unwrap_or(Err(SecurityError::TooSlow { from, patience }))
}

fn stream_error(from: Side, missing: &'static str, source: io::Error) -> SecurityError {
    match source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).cloned() {
        Some(rustls::Error::InvalidMessage(_)) => SecurityError::NoTls { from },
        Some(
            reason
            @ (rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented),
        ) => SecurityError::Certificate { from, reason },
        Some(reason) => SecurityError::Tls { from, reason },
        None => match source.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted => SecurityError::Closed { from, missing },
            _ => SecurityError::Broken { from, missing, source },
        },
    }
}

#[cfg(all(test, feature = "keys"))]
mod tests;
