//! Pages for those who watch a run: a small HTTP/1.1 responder. GET only, short requests only, in
//! limited time.

use super::security::HandshakeGate;
use super::{HANDSHAKE, TcpError, runtime, wait};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Longest request, with its headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Longest page that is taken.
const PAGE_BYTES_MAX: u64 = 16 << 20;
/// How many are answered at a time; if there are more, who has been there for longest is hung up
/// on.
const CLIENTS: usize = 16;

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Its media type.
    pub kind: &'static str,
    /// What it says.
    pub body: String,
}

/// Asks for a page of another process's.
///
/// # Errors
/// What keeps the page from coming within `patience` per step, or what comes instead.
pub fn fetch(address: &str, path: &str, patience: Duration) -> io::Result<String> {
    let there =
        address.to_socket_addrs()?.next().ok_or_else(|| io::Error::other("no such host"))?;
    let mut stream = TcpStream::connect_timeout(&there, patience)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = String::new();
    // The other end may be anybody: what it sends is bounded, as is the time for it.
    stream.take(PAGE_BYTES_MAX).read_to_string(&mut answer)?;
    let (head, body) =
        answer.split_once("\r\n\r\n").ok_or_else(|| io::Error::other("it does not talk HTTP"))?;
    if !head.starts_with("HTTP/1.1 200 ") {
        return Err(io::Error::other(format!(
            "it answers {:?}",
            head.lines().next().unwrap_or_default()
        )));
    }
    Ok(body.to_owned())
}

/// Makes the page at a path, if there is one.
type Pages = Arc<dyn Fn(&str) -> Option<Page> + Send + Sync>;

/// Answers on a port until it is dropped. It knows no secrets and tells everything to everybody who
/// can reach it.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl HttpServer {
    /// Opens the port.
    ///
    /// # Errors
    /// [`TcpError`] when it cannot be opened.
    pub fn serve(
        address: SocketAddr,
        pages: impl Fn(&str) -> Option<Page> + Send + Sync + 'static,
    ) -> Result<Self, TcpError> {
        let runtime = runtime()?;
        let refused = |source| TcpError::Listen { address: address.to_string(), source };
        let listener = wait(&runtime, TcpListener::bind(address)).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        runtime.spawn(answer(listener, Arc::new(pages)));
        Ok(Self { address, runtime: Some(runtime) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Pages that are on their way are not worth waiting for.
            runtime.shutdown_background();
        }
    }
}

async fn answer(listener: TcpListener, pages: Pages) {
    let gate = HandshakeGate::new(CLIENTS);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            // Too many open files, mostly: they are closed in a while.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let pass = gate.enter(from.ip());
        let pages = Arc::clone(&pages);
        tokio::spawn(async move {
            tokio::select! {
                _ = tokio::time::timeout(HANDSHAKE, respond(stream, &pages)) => {}
                () = pass.lost() => {}
            }
        });
    }
}

async fn respond(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    pages: &Pages,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !is_whole(&request) && request.len() < REQUEST_BYTES_MAX {
        let mut some = [0; 1024];
        let count = stream.read(&mut some).await?;
        if count == 0 {
            break;
        }
        request.extend(&some[..count]);
    }
    stream.write_all(response(&request, pages).as_bytes()).await?;
    stream.shutdown().await
}

/// Whether the empty line after the headers is there; lines may end without a carriage return, as
/// in RFC 9112, 2.2.
fn is_whole(request: &[u8]) -> bool {
    let mut lines = request.split_inclusive(|byte| *byte == b'\n');
    lines.any(|line| matches!(line, b"\n" | b"\r\n"))
}

fn response(request: &[u8], pages: &Pages) -> String {
    let line = request.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let plain = |text: &str| Page { kind: "text/plain; charset=utf-8", body: format!("{text}\n") };
    let (status, page) = match (words.next(), words.next()) {
        // Before the line is looked at: it may have been cut.
        _ if request.len() >= REQUEST_BYTES_MAX => {
            ("431 Request Header Fields Too Large", plain("too long"))
        }
        (Some("GET"), Some(path)) => match pages(path.split('?').next().unwrap_or(path)) {
            Some(page) => ("200 OK", page),
            None => ("404 Not Found", plain("no such page")),
        },
        (Some("POST" | "PUT" | "HEAD" | "DELETE" | "OPTIONS" | "PATCH"), Some(_)) => {
            ("405 Method Not Allowed", plain("GET only"))
        }
        _ => ("400 Bad Request", plain("this is HTTP, GET only")),
    };
    let Page { kind, body } = page;
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: \
         close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_gets_of_known_pages_are_answered() {
        let pages: Pages = Arc::new(|path| {
            (path == "/status").then(|| Page { kind: "application/json", body: "{}".into() })
        });
        let first = |request: &[u8]| response(request, &pages).lines().next().unwrap().to_owned();
        assert_eq!(first(b"GET /status?x=1 HTTP/1.1\r\nHost: here\r\n\r\n"), "HTTP/1.1 200 OK");
        assert!(
            response(b"GET /status HTTP/1.0\r\n\r\n", &pages)
                .ends_with("Content-Length: 2\r\nConnection: close\r\n\r\n{}")
        );
        assert_eq!(first(b"GET /../etc/passwd HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(first(b"POST /status HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        for garbage in [&b""[..], b"GET", b"\xff\xfe\r\n", b"CGRAD\0\x01\0"] {
            assert_eq!(first(garbage), "HTTP/1.1 400 Bad Request");
        }
        for bare in [&b"GET /status HTTP/1.0\n\n"[..], b"GET /status\nHost: here\n\r\n"] {
            assert!(is_whole(bare));
            assert_eq!(first(bare), "HTTP/1.1 200 OK");
        }
        for begun in [&b"GET /status HTTP/1.1\r\n"[..], b"GET /status\nHost: here\n", b"GET"] {
            assert!(!is_whole(begun), "{begun:?}");
        }
        let long = [&b"GET /status "[..], &vec![b'x'; REQUEST_BYTES_MAX]].concat();
        assert!(first(&long).contains("431"));
    }
}
