//! The network of namespaces as one within the host, where connections need no keys: 127.77.0.k
//! stands for 10.77.0.k.

use codedgrad::transport::tcp::security::Stream;
use codedgrad::transport::tcp::{Listener, Network, Promise, Sockets};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The sockets of a namespace, or of this host as they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Namespaces {
    inside: bool,
}

#[derive(Debug)]
struct Renamed(Box<dyn Listener>);

/// The first number of addresses as they are told, and as they are.
const TOLD: u8 = 127;
const REAL: u8 = 10;

fn renamed(address: IpAddr, from: u8, to: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) if address.octets()[..2] == [from, 77] => {
            let [_, b, c, d] = address.octets();
            IpAddr::V4(Ipv4Addr::new(to, b, c, d))
        }
        other => other,
    }
}

fn real(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(renamed(address.ip(), TOLD, REAL), address.port())
}

fn told(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(renamed(address.ip(), REAL, TOLD), address.port())
}

impl Namespaces {
    pub(crate) fn new(inside: bool) -> Self {
        Self { inside }
    }

    /// Where the coordinator of so many workers listens.
    pub(crate) fn coordinator(inside: bool, workers: usize) -> SocketAddr {
        match inside {
            true => ([TOLD, 77, 0, workers as u8 + 1], 0).into(),
            false => ([127, 0, 0, 1], 0).into(),
        }
    }

    fn real_text(self, address: &str) -> io::Result<String> {
        let parsed: SocketAddr = address.parse().map_err(io::Error::other)?;
        Ok(if self.inside { real(parsed) } else { parsed }.to_string())
    }
}

impl Network for Namespaces {
    fn bind(&self, address: SocketAddr) -> Promise<'_, Box<dyn Listener>> {
        Box::pin(async move {
            if !self.inside {
                return Sockets.bind(address).await;
            }
            Ok(Box::new(Renamed(Sockets.bind(real(address)).await?)) as Box<dyn Listener>)
        })
    }

    fn connect<'a>(&'a self, address: &'a str) -> Promise<'a, (Stream, SocketAddr)> {
        Box::pin(async move {
            let (stream, peer) = Sockets.connect(&self.real_text(address)?).await?;
            Ok((stream, told(peer)))
        })
    }

    fn route<'a>(&'a self, address: &'a str) -> Promise<'a, IpAddr> {
        Box::pin(async move {
            let own = Sockets.route(&self.real_text(address)?).await?;
            Ok(renamed(own, REAL, TOLD))
        })
    }
}

impl Listener for Renamed {
    fn accept(&self) -> Promise<'_, (Stream, SocketAddr)> {
        Box::pin(async move {
            let (stream, from) = self.0.accept().await?;
            Ok((stream, told(from)))
        })
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.0.address().map(told)
    }
}
