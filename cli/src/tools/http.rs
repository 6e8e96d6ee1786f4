//! Pages for those who watch a run, and how to ask another process for one.

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, client, server};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// How long a request and its answer may take.
const REQUEST: Duration = Duration::from_secs(5);
/// How long the end of a server may take.
const ENDS: Duration = Duration::from_secs(1);
/// Longest request, with its headers.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Longest page that is taken.
const PAGE_BYTES_MAX: usize = 16 << 20;
/// How many are answered at a time; if there are more, who has been there for longest is hung up
/// on.
const CLIENTS: usize = 16;

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// Its media type.
    pub(crate) kind: &'static str,
    /// What it says.
    pub(crate) body: String,
}

/// Makes the page at a path, if there is one.
type Pages = Arc<dyn Fn(&str) -> Option<Page> + Send + Sync>;

/// Answers on a port until it is dropped. It knows no secrets and tells everything to all callers
/// that can reach it.
#[derive(Debug)]
pub(crate) struct HttpServer {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl HttpServer {
    /// Opens the port; fails when it cannot be opened.
    pub(crate) fn serve(
        address: SocketAddr,
        pages: impl Fn(&str) -> Option<Page> + Send + Sync + 'static,
    ) -> anyhow::Result<Self> {
        let refused = || format!("cannot listen on {address}");
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("codedgrad-http").enable_all().build();
        let runtime = runtime.with_context(refused)?;
        let listener = runtime.block_on(TcpListener::bind(address)).with_context(refused)?;
        let address = listener.local_addr().with_context(refused)?;
        runtime.spawn(answer(listener, Arc::new(pages)));
        Ok(Self { address, runtime: Some(runtime) })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // It answers no caller afterwards, and waits for no page that takes longer.
            runtime.shutdown_timeout(ENDS);
        }
    }
}

async fn answer(listener: TcpListener, pages: Pages) {
    let mut clients: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files, mostly: they are closed in a while.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        clients.retain(|client| !client.is_finished());
        if clients.len() == CLIENTS {
            clients.pop_front().into_iter().for_each(|longest| longest.abort());
        }
        let client = tokio::spawn(timeout(REQUEST, attend(stream, Arc::clone(&pages))));
        clients.push_back(client.abort_handle());
    }
}

/// Answers one request. What goes wrong is the client's affair.
async fn attend(stream: TcpStream, pages: Pages) {
    let respond = service_fn(move |request: Request<Incoming>| {
        let response = response(request.method(), request.uri().path(), &pages);
        async { Ok::<_, Infallible>(response) }
    });
    let mut connection = server::conn::http1::Builder::new();
    connection.timer(TokioTimer::new()).keep_alive(false).max_buf_size(REQUEST_BYTES_MAX);
    let _ = connection.serve_connection(TokioIo::new(stream), respond).await;
}

fn response(method: &Method, path: &str, pages: &Pages) -> Response<Full<Bytes>> {
    let plain = |text: &str| Page { kind: "text/plain; charset=utf-8", body: format!("{text}\n") };
    let (status, page) = match (method, pages(path)) {
        (&Method::GET, Some(page)) => (StatusCode::OK, page),
        (&Method::GET, None) => (StatusCode::NOT_FOUND, plain("no such page")),
        _ => (StatusCode::METHOD_NOT_ALLOWED, plain("GET only")),
    };
    let mut response = Response::new(Full::from(page.body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(page.kind));
    response
}

/// Asks another process for a page; fails with what keeps it from coming within `patience`, or with
/// what comes instead.
pub(crate) fn fetch(address: &str, path: &str, patience: Duration) -> anyhow::Result<String> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let answered = runtime.block_on(async { timeout(patience, ask(address, path)).await });
    // A name may still be looked up, which cannot be broken off.
    runtime.shutdown_background();
    answered.with_context(|| format!("it has not answered within {} s", patience.as_secs()))?
}

async fn ask(address: &str, path: &str) -> anyhow::Result<String> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It is driven until the answer is there.
    tokio::spawn(connection);
    let request = Request::get(path).header(HOST, address).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await.context("it does not talk HTTP")?;
    if response.status() != StatusCode::OK {
        bail!("it answers {}", response.status());
    }
    // The other end may be any program: what it sends is bounded, as is the time for it.
    let body = Limited::new(response.into_body(), PAGE_BYTES_MAX).collect().await;
    let body = body.map_err(io::Error::other)?.to_bytes();
    Ok(String::from_utf8(body.into())?)
}

#[cfg(test)]
mod tests;
