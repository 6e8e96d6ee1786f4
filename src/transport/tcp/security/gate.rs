//! A limit on the number of unauthenticated callers, shared among the hosts they call from.

use crate::sums::lock;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// Where calls come from, as far as it can be told: an IPv4 address, the upper half of an IPv6
/// address, since the lower half is the caller's to choose, or this host, whatever loopback address
/// it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host(IpAddr);

impl Host {
    /// Whose address it is.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(v6) if !v6.is_loopback() => {
                let [a, b, c, d, ..] = v6.segments();
                Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
            }
            address if address.is_loopback() => std::net::Ipv4Addr::LOCALHOST.into(),
            address => address,
        })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(v4) => write!(out, "{v4}"),
            IpAddr::V6(v6) => write!(out, "{v6}/64"),
        }
    }
}

/// Bounds how many callers are proving themselves at once, so that strangers cannot use up a
/// listener's memory, and so that they cannot keep others out either: when all places are taken,
/// a newcomer gets the place of another. The host with the most places, the newcomer's among
/// them, loses the one that it has had for longest. So a host that has none always finds one, and
/// of one host those who get on with it get in before those who sit and wait.
///
/// ```
/// use codedgrad::transport::tcp::security::HandshakeGate;
/// let gate = HandshakeGate::new(2);
/// let [many, other] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
/// let (first, second) = (gate.enter(many), gate.enter(many));
/// let third = gate.enter(other);
/// assert_eq!([&first, &second, &third].map(|pass| pass.is_lost()), [true, false, false]);
/// ```
#[derive(Clone, Debug)]
pub struct HandshakeGate(Arc<Mutex<Places>>);

#[derive(Debug)]
struct Places {
    most: usize,
    /// Number of the next caller.
    next: u64,
    taken: BTreeMap<u64, (Host, Arc<Notify>)>,
}

/// A place among those who prove themselves, until it is dropped or lost to another: to be kept
/// until [`accept`](super::accept) returns and, by those who expect a first message, until that is
/// read.
#[derive(Debug)]
pub struct Pass {
    gate: HandshakeGate,
    number: u64,
    lost: Arc<Notify>,
}

impl HandshakeGate {
    /// What there is for strangers, whoever else is expected.
    pub(in super::super) const STRANGERS: usize = 64;

    /// At most so many at once, and at least one.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self(Arc::new(Mutex::new(Places { most: places.max(1), next: 0, taken: BTreeMap::new() })))
    }

    /// A place for a caller. If another loses its own for it, that one's connection should be
    /// dropped: see [`Pass::lost`].
    #[must_use]
    pub fn enter(&self, from: IpAddr) -> Pass {
        let (host, lost) = (Host::of(from), Arc::new(Notify::new()));
        let mut places = lock(&self.0);
        if places.taken.len() >= places.most {
            places.make_room(host);
        }
        let number = places.next;
        places.next += 1;
        places.taken.insert(number, (host, Arc::clone(&lost)));
        Pass { gate: self.clone(), number, lost }
    }
}

impl Default for HandshakeGate {
    fn default() -> Self {
        Self::new(Self::STRANGERS)
    }
}

impl Places {
    /// The host with the most places, if one more were the newcomer's, loses its oldest.
    fn make_room(&mut self, newcomer: Host) {
        // Counted with the newcomer, or a host with one place less than others could grow for ever.
        let mut counts = BTreeMap::from([(newcomer, 1usize)]);
        for (host, _) in self.taken.values() {
            *counts.entry(*host).or_default() += 1;
        }
        let most = counts.values().copied().max().unwrap_or_default();
        let oldest = self
            .taken
            .iter()
            .find(|(_, (host, _))| counts[host] == most)
            .map(|(number, _)| *number);
        if let Some((_, lost)) = oldest.and_then(|number| self.taken.remove(&number)) {
            lost.notify_one();
        }
    }
}

impl Pass {
    /// Comes back when the place is another's.
    pub async fn lost(&self) {
        self.lost.notified().await;
    }

    /// Whether the place is another's.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !lock(&self.gate.0).taken.contains_key(&self.number)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        lock(&self.gate.0).taken.remove(&self.number);
    }
}
