//! What the transport needs of a network: ports, calls, and a way to say where a node can be
//! reached.
//!
//! Nodes are tasks over a [`Network`], and `Coordinator::pump` does what can be done without
//! waiting. So `tests/aggregator/simulation.rs` runs all of a job on one thread, on tokio's paused
//! clock and a network of its own, with faults from a seed. Hence no hash map whose order shows,
//! and every `select!` is biased.

use super::security::{Duplex, Stream};
use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// Something that will be there later, or fail.
pub type Promise<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// The network as one node sees it: the host's sockets, or a network within the process.
pub trait Network: Debug + Send + Sync {
    /// Opens a port.
    fn bind(&self, address: SocketAddr) -> Promise<'_, Box<dyn Listener>>;
    /// Connects to `host:port`; the other end's address comes with the stream.
    fn connect<'a>(&'a self, address: &'a str) -> Promise<'a, (Stream, SocketAddr)>;
    /// The address of this node on the way to another.
    fn route<'a>(&'a self, address: &'a str) -> Promise<'a, IpAddr>;
}

/// An open port.
pub trait Listener: Debug + Send + Sync {
    /// The next call, and where it comes from.
    fn accept(&self) -> Promise<'_, (Stream, SocketAddr)>;
    /// Where it listens.
    ///
    /// # Errors
    /// What the operating system says.
    fn address(&self) -> io::Result<SocketAddr>;
}

/// The sockets of this host.
#[derive(Clone, Copy, Debug)]
pub struct Sockets;

/// Bytes that may wait in the system unsent. What is written later, such as a question of another
/// worker's, would else wait behind megabytes of chunks.
#[cfg(any(target_os = "android", target_os = "linux"))]
const UNSENT_MAX: u32 = 128 << 10;

fn ready(stream: TcpStream) -> io::Result<Box<dyn Duplex>> {
    stream.set_nodelay(true)?;
    #[cfg(any(target_os = "android", target_os = "linux"))]
    socket2::SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_MAX)?;
    Ok(Box::new(stream))
}

impl Network for Sockets {
    fn bind(&self, address: SocketAddr) -> Promise<'_, Box<dyn Listener>> {
        Box::pin(
            async move { Ok(Box::new(TcpListener::bind(address).await?) as Box<dyn Listener>) },
        )
    }

    fn connect<'a>(&'a self, address: &'a str) -> Promise<'a, (Stream, SocketAddr)> {
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            let peer = stream.peer_addr()?;
            Ok((ready(stream)?, peer))
        })
    }

    fn route<'a>(&'a self, address: &'a str) -> Promise<'a, IpAddr> {
        Box::pin(async move {
            let there = tokio::net::lookup_host(address)
                .await?
                .next()
                .ok_or_else(|| io::Error::other("no such host"))?;
            let any: SocketAddr =
                if there.is_ipv4() { ([0u8; 4], 0).into() } else { ([0u16; 8], 0).into() };
            let socket = UdpSocket::bind(any).await?;
            socket.connect(there).await?;
            Ok(socket.local_addr()?.ip())
        })
    }
}

impl Listener for TcpListener {
    fn accept(&self) -> Promise<'_, (Stream, SocketAddr)> {
        Box::pin(async move {
            let (stream, from) = Self::accept(self).await?;
            Ok((ready(stream)?, from))
        })
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }
}
