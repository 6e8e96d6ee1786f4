//! A coordinator's port, at which workers may call before it is known what they train, and the
//! transports that are opened with one.

use super::callers::{Caller, answer};
use super::door::Door;
use super::listen::Listen;
use super::security::{self, Security};
use super::server::TcpTransport;
use super::status::{TcpStatus, WorkerStatus};
use super::{Network, Sockets, TcpError, runtime, wait};
use crate::transport::RunFacts;
use crate::transport::wire::ToWorker;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// An open port that lets workers prove themselves, and keeps them waiting.
///
/// [`Port::first`] waits for one that says what it trains; with that, [`Port::listen`] makes the
/// transport of the run, which lets those in who wait, or [`Port::refuse`] tells it why there is
/// none.
pub struct Port {
    address: SocketAddr,
    security: Security,
    status: Arc<Mutex<TcpStatus>>,
    calls: JoinHandle<()>,
    callers: mpsc::Receiver<Caller>,
    /// The other end, for the caller who was looked at.
    waiting: mpsc::Sender<Caller>,
    first: Option<Caller>,
    /// Its own; none where it is on the caller's.
    runtime: Option<Runtime>,
}

impl Port {
    /// Opens a port for so many workers.
    ///
    /// # Errors
    /// [`TcpError`] when it cannot be opened, or must not be without TLS.
    ///
    /// ```
    /// use codedgrad::transport::tcp::Port;
    /// use codedgrad::transport::tcp::security::{Security, Token};
    /// use std::time::Duration;
    /// let security = Security::Plain { token: Token::fresh()? };
    /// let mut port = Port::open("127.0.0.1:0".parse()?, security, 4)?;
    /// assert_ne!(port.address().port(), 0);
    /// assert_eq!(port.first(Duration::from_millis(1)), None, "nobody has called");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(address: SocketAddr, security: Security, workers: usize) -> Result<Self, TcpError> {
        let runtime = runtime()?;
        match wait(&runtime, Self::at(Arc::new(Sockets), (address, security), workers)) {
            Ok(port) => Ok(Self { runtime: Some(runtime), ..port }),
            Err(error) => {
                // The caller may be on a runtime itself, where none may be waited for.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Opens a port of any network, on the runtime that this is run by.
    async fn at(
        network: Arc<dyn Network>,
        (address, security): (SocketAddr, Security),
        workers: usize,
    ) -> Result<Self, TcpError> {
        security::check_address(address, &security)?;
        let status = Arc::new(Mutex::new(TcpStatus {
            workers: vec![WorkerStatus::default(); workers],
            ..TcpStatus::default()
        }));
        let refused = |source| TcpError::Listen { address: address.to_string(), source };
        let listener = network.bind(address).await.map_err(refused)?;
        let address = listener.address().map_err(refused)?;
        // Callers wait in their connections, where their places bound them, and not here.
        let (waiting, callers) = mpsc::channel(16);
        let door = Door::new(security.clone(), workers, Some(Arc::clone(&status)));
        let calls = tokio::spawn(answer(listener, door, waiting.clone()));
        let (first, runtime) = (None, None);
        Ok(Self { address, security, status, calls, callers, waiting, first, runtime })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What is known of the connections, also later of those of the run.
    #[must_use]
    pub fn status(&self) -> Arc<Mutex<TcpStatus>> {
        Arc::clone(&self.status)
    }

    /// Waits for a worker that says all a run needs to know, at most so long; others are refused,
    /// with what they do not say.
    pub fn first(&mut self, patience: Duration) -> Option<RunFacts> {
        let Self { callers, first, runtime, .. } = self;
        // Asked again, it is the same one: it waits for its answer.
        if first.is_none() {
            *first = wait(runtime.as_ref()?, async {
                tokio::time::timeout(patience, complete(callers)).await.ok().flatten()
            });
        }
        Some(first.as_ref()?.hello.facts.clone())
    }

    /// Tells the worker of [`Port::first`] why there will be no run.
    pub fn refuse(self, reason: &str) {
        if let (Some(caller), Some(runtime)) = (self.first, self.runtime) {
            wait(&runtime, caller.refuse(ToWorker::refused(reason.to_owned())));
        }
    }

    /// The transport of a run at this port, whatever address and secrets it is told.
    ///
    /// # Errors
    /// [`TcpError`] when the exchange cannot carry the numbers' format.
    pub fn listen(self, listen: Listen) -> Result<TcpTransport, TcpError> {
        let Self { address, security, status, calls, callers, waiting, first, runtime } = self;
        let threads = runtime.as_ref().map(|runtime| runtime.handle().clone());
        let _on_them = threads.as_ref().map(Handle::enter);
        if let Some(first) = first {
            // Others may have filled its place meanwhile.
            tokio::spawn(async move { drop(waiting.send(first).await) });
        }
        let listen = Listen { address, security, ..listen };
        TcpTransport::over(listen, status, (calls, callers), runtime)
    }
}

/// The next caller that says all a run needs to know.
async fn complete(callers: &mut mpsc::Receiver<Caller>) -> Option<Caller> {
    loop {
        let caller = callers.recv().await?;
        let facts = &caller.hello.facts;
        let told = [
            ("length", facts.length.is_some()),
            ("units", facts.units.is_some()),
            ("steps", facts.steps.is_some()),
        ];
        let silent: Vec<&str> =
            told.into_iter().filter(|(_, told)| !told).map(|(name, _)| name).collect();
        if silent.is_empty() {
            return Some(caller);
        }
        let reason = format!(
            "this coordinator learns from its first worker what is trained, and this one does not \
             say: {}",
            silent.join(", ")
        );
        caller.refuse(ToWorker::refused(reason)).await;
    }
}

impl TcpTransport {
    /// Opens the port and lets workers in.
    ///
    /// # Errors
    /// [`TcpError`] when the port cannot be opened, or must not be without TLS.
    pub fn listen(listen: Listen) -> Result<Self, TcpError> {
        Port::open(listen.address, listen.security.clone(), listen.config.shape.workers)?
            .listen(listen)
    }

    /// Opens a port of any network, on the caller's runtime. Such a transport never waits:
    /// [`receive`](crate::transport::Transport::receive) gives none when there is no notice yet,
    /// and [`TcpTransport::waker`] tells when to ask again; between [`TcpTransport::begin`] and the
    /// first step, its tasks need a moment.
    ///
    /// # Errors
    /// [`TcpError`] when the port cannot be opened, or must not be without TLS.
    pub async fn listen_over(network: Arc<dyn Network>, listen: Listen) -> Result<Self, TcpError> {
        let place = (listen.address, listen.security.clone());
        Port::at(network, place, listen.config.shape.workers).await?.listen(listen)
    }
}
