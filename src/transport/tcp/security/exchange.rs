//! The mutual proof that both sides know the token; its bytes are listed in [`super`].

use super::token::random;
use super::{SecurityError, Side, Stream, stream_error};
use ring::hmac;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(super) const MAGIC: [u8; 6] = *b"CGRAD\0";
pub(super) const VERSION: u16 = 1;
const WELCOME: u8 = 1;

/// What TLS messages begin with: the greeting of a client, the complaint of a server.
const TLS: [[u8; 2]; 2] = [[0x16, 0x03], [0x15, 0x03]];

/// The server's part.
pub(super) async fn serve(stream: &mut Stream, key: &hmac::Key) -> Result<(), SecurityError> {
    let from = Side::Client;
    let magic: [u8; MAGIC.len()] = receive(stream, from, "its greeting").await?;
    if TLS.contains(&[magic[0], magic[1]]) {
        return Err(SecurityError::UnexpectedTls { from });
    }
    if magic != MAGIC {
        return Err(SecurityError::NotOurs { from, first: magic.escape_ascii().to_string() });
    }
    let theirs = u16::from_le_bytes(receive(stream, from, "its version").await?);
    if theirs != VERSION {
        send(stream, from, "its leave", &VERSION.to_le_bytes()).await?;
        return Err(SecurityError::Version { from, theirs, ours: VERSION });
    }
    let client = receive(stream, from, "its nonce").await?;
    let server = random()?;
    let proof = hmac::sign(key, &transcript(Side::Server, &client, &server));
    send(
        stream,
        from,
        "its proof",
        &[&VERSION.to_le_bytes(), &server[..], proof.as_ref()].concat(),
    )
    .await?;
    let proof: [u8; 32] = receive(stream, from, "its proof").await?;
    hmac::verify(key, &transcript(Side::Client, &client, &server), &proof)
        .map_err(|_| SecurityError::WrongToken { from })?;
    send(stream, from, "its first message", &[WELCOME]).await
}

/// The client's part.
pub(super) async fn greet(stream: &mut Stream, key: &hmac::Key) -> Result<(), SecurityError> {
    let from = Side::Server;
    let client = random()?;
    let sent =
        send(stream, from, "its version", &[&MAGIC, &VERSION.to_le_bytes()[..], &client].concat())
            .await;
    if let Err(error) = sent {
        tracing::debug!("{error}; what the server said last can still be read");
    }
    let version: [u8; 2] = receive(stream, from, "its version").await?;
    if TLS.contains(&version) {
        return Err(SecurityError::UnexpectedTls { from });
    }
    // Printable characters are no version: an HTTP server begins so.
    if version.iter().all(u8::is_ascii_graphic) {
        return Err(SecurityError::NotOurs { from, first: version.escape_ascii().to_string() });
    }
    let theirs = u16::from_le_bytes(version);
    if theirs != VERSION {
        return Err(SecurityError::Version { from, theirs, ours: VERSION });
    }
    let server = receive(stream, from, "its nonce").await?;
    let proof: [u8; 32] = receive(stream, from, "its proof").await?;
    hmac::verify(key, &transcript(Side::Server, &client, &server), &proof)
        .map_err(|_| SecurityError::WrongToken { from })?;
    let proof = hmac::sign(key, &transcript(Side::Client, &client, &server));
    send(stream, from, "its welcome", proof.as_ref()).await?;
    match receive(stream, from, "its welcome").await? {
        [WELCOME] => Ok(()),
        other => Err(SecurityError::NotOurs { from, first: other.escape_ascii().to_string() }),
    }
}

/// What a side proves. It begins with the side, so that one's proof is never the other's.
pub(super) fn transcript(prover: Side, client: &[u8; 32], server: &[u8; 32]) -> Vec<u8> {
    [format!("codedgrad {prover}").as_bytes(), &VERSION.to_le_bytes(), client, server].concat()
}

async fn receive<const N: usize>(
    stream: &mut Stream,
    from: Side,
    what: &'static str,
) -> Result<[u8; N], SecurityError> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await.map_err(|error| stream_error(from, what, error))?;
    Ok(bytes)
}

async fn send(
    stream: &mut Stream,
    to: Side,
    next: &'static str,
    bytes: &[u8],
) -> Result<(), SecurityError> {
    let sent = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    sent.await.map_err(|error| stream_error(to, next, error))
}
