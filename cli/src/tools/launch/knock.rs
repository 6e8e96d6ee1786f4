//! Whether there is still a coordinator on another host, for those who would be started in vain.

use codedgrad_shell::clock::now;
use std::io::{self, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon to knock again where no coordinator was there, and where one was, which has to write
/// down that nothing came of it.
const AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(15));
/// How long a port has no listener before it is given up: longer than a coordinator that has died
/// waits until it is started again.
const GONE: Duration = Duration::from_secs(15);

/// Knocks at a port now and then, by threads: a network that stands still holds up no caller.
#[derive(Debug)]
pub(super) struct Knock {
    address: String,
    next: Instant,
    answer: Option<Receiver<bool>>,
    /// Since when no coordinator is there.
    nobody: Option<Instant>,
}

impl Knock {
    pub(super) fn at(address: &str) -> Self {
        Self { address: address.to_owned(), next: now(), answer: None, nobody: None }
    }

    /// Whether no coordinator is there any more. A caller may ask as often as it likes.
    pub(super) fn is_gone(&mut self) -> bool {
        if let Some(answer) = &self.answer {
            let there = match answer.try_recv() {
                Err(TryRecvError::Empty) => return false,
                answer => answer.unwrap_or(true),
            };
            self.answer = None;
            self.nobody = if there { None } else { self.nobody.or_else(|| Some(now())) };
            self.next = now() + if there { AGAIN.1 } else { AGAIN.0 };
        } else if self.next <= now() {
            let (tell, answer) = channel();
            let address = self.address.clone();
            thread::spawn(move || {
                // At the launcher's end no thread receives it any more.
                let _ = tell.send(!is_refused(&address));
            });
            self.answer = Some(answer);
        }
        self.nobody.is_some_and(|since| since.elapsed() >= GONE)
    }

    /// Starts afresh, as no caller has to know for now.
    pub(super) fn rest(&mut self) {
        self.nobody = None;
    }
}

/// Whether a host says that no process listens there. Where nothing is heard, the network may be to
/// blame.
fn is_refused(address: &str) -> bool {
    let refused = |tried: io::Result<TcpStream>| {
        tried.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    let Ok(addresses) = address.to_socket_addrs() else { return false };
    let addresses: Vec<_> = addresses.collect();
    let all = |at| refused(TcpStream::connect_timeout(at, PATIENCE));
    !addresses.is_empty() && addresses.iter().all(all)
}

#[cfg(test)]
mod tests;
