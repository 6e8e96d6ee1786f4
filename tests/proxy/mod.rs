//! A proxy for one worker, which holds up its connection and cuts it when it is told to.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const FLOWS: u8 = 0;
/// What comes is kept for later, or for ever if the connection is cut.
const HELD: u8 = 1;
const CUT: u8 = 2;

/// How often a connection that is held up is looked at.
const PAUSE: Duration = Duration::from_micros(200);

/// One connection, from its caller to where the proxy carries it.
struct Line {
    ends: [TcpStream; 2],
    state: AtomicU8,
}

impl Line {
    /// Carries what one end sends to the other.
    fn carry(&self, from: usize) {
        let mut buffer = [0; 1 << 14];
        loop {
            let count = match (&self.ends[from]).read(&mut buffer) {
                Ok(0) | Err(_) => return self.end(),
                Ok(count) => count,
            };
            while self.state.load(Ordering::Acquire) == HELD {
                thread::sleep(PAUSE);
            }
            let cut = self.state.load(Ordering::Acquire) == CUT;
            if cut || (&self.ends[1 - from]).write_all(&buffer[..count]).is_err() {
                return self.end();
            }
        }
    }

    fn end(&self) {
        self.state.store(CUT, Ordering::Release);
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// Carries bytes between whoever connects and one address, for as long as its process lives.
pub(crate) struct Proxy {
    address: String,
    lines: Arc<Mutex<Vec<Arc<Line>>>>,
}

impl Proxy {
    pub(crate) fn to(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let own = listener.local_addr()?.to_string();
        let lines = Arc::<Mutex<Vec<Arc<Line>>>>::default();
        let (made, to) = (Arc::clone(&lines), address.to_owned());
        thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let Ok(called) = TcpStream::connect(&to) else { continue };
                let quick = [&caller, &called].into_iter().all(|end| end.set_nodelay(true).is_ok());
                debug_assert!(quick, "no pause is added to small messages");
                let line = Arc::new(Line { ends: [caller, called], state: AtomicU8::new(FLOWS) });
                made.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&line));
                for from in [0, 1] {
                    let line = Arc::clone(&line);
                    thread::spawn(move || line.carry(from));
                }
            }
        });
        Ok(Self { address: own, lines })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Nothing gets through from now on, until [`Self::cut`].
    pub(crate) fn hold(&self) {
        for line in self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = line.state.compare_exchange(FLOWS, HELD, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    /// Cuts the connections there are, with what is on its way; how many those are.
    pub(crate) fn cut(&self) -> usize {
        let lines = std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner));
        let open = |line: &&Arc<Line>| line.state.load(Ordering::Acquire) != CUT;
        let count = lines.iter().filter(open).count();
        lines.iter().for_each(|line| line.end());
        count
    }
}
