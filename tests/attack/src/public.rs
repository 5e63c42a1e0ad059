//! Attacks of a client of the public API: blocking sockets on threads, so that they do not use the caller's runtime.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, sleep, spawn},
    time::Duration,
};

/// I/O timeout of an attack's requests.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Just below the maximum body size of the API.
const METADATA_MIB: usize = 23;
/// Delay before a response is read: what the server buffers meanwhile adds up. Without it, the rate at which the
/// machine can produce responses would be measured.
const READ_DELAY: Duration = Duration::from_secs(2);
/// Interval between two bytes of an endless head.
const HEAD_BYTE_INTERVAL: Duration = Duration::from_secs(1);
const MIB: usize = 1024 * 1024;

/// The counts of an attack, by name.
pub type AttackCounts = std::collections::BTreeMap<String, u64>;

/// An attack that runs until [`Flood::end`].
pub struct Flood {
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<AttackCounts>>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    fn start(threads: usize, work: impl Fn(&Attack) + Send + Sync + 'static) -> Self {
        let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(AttackCounts::new())));
        let work = Arc::new(work);
        let threads = (0..threads).map(|_| {
            let attack = Attack { stop: Arc::clone(&stop), counts: Arc::clone(&counts) };
            let work = Arc::clone(&work);
            spawn(move || work(&attack))
        });
        let threads = threads.collect();
        Self { stop, counts, threads }
    }

    /// Stops the attack and returns its counts.
    pub fn end(self) -> AttackCounts {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("an attacker panicked");
        }
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Attack {
    stop: Arc<AtomicBool>,
    counts: Arc<Mutex<AttackCounts>>,
}

impl Attack {
    fn count(&self, what: &str) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(what.to_owned()).or_default() += 1;
    }

    fn is_running(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn connect(&self, address: SocketAddr) -> Option<TcpStream> {
        self.count("attempted");
        let connection = TcpStream::connect_timeout(&address, TIMEOUT).ok();
        let connection = connection.filter(|connection| {
            connection.set_read_timeout(Some(TIMEOUT)).and(connection.set_write_timeout(Some(TIMEOUT))).is_ok()
        });
        if connection.is_none() {
            self.count("refused");
        }
        connection
    }

    /// Sends a request and reads the whole response after a delay.
    fn ask(&self, address: SocketAddr, parts: &[&[u8]]) {
        let Some(mut connection) = self.connect(address) else { return };
        // A server that refuses may respond before it has read everything.
        if parts.iter().try_for_each(|part| connection.write_all(part)).is_err() {
            self.count("hung_up_on");
        }
        sleep(READ_DELAY);
        let (mut answer, mut status) = (vec![0; 64 * 1024], String::new());
        while let Ok(read @ 1..) = connection.read(&mut answer) {
            if status.is_empty() {
                status = String::from_utf8_lossy(&answer[..read]).chars().skip(9).take(3).collect();
            }
        }
        self.count(&format!("status_{}", if status.is_empty() { "none" } else { &status }));
    }
}

fn address(base: &str) -> SocketAddr {
    base.trim_start_matches("http://").parse().expect("an address and a port")
}

/// `count` concurrent connections, each of which sends an endless head at a byte per second. Needs no token.
pub fn hold_heads(base: &str, count: usize) -> Flood {
    let address = address(base);
    Flood::start(1, move |attack| {
        let mut held: Vec<TcpStream> = vec![];
        while attack.is_running() {
            held.retain_mut(|connection| {
                let alive = connection.write_all(b"a").is_ok();
                if !alive {
                    attack.count("closed_by_peer");
                }
                alive
            });
            while held.len() < count && attack.is_running() {
                let Some(mut connection) = attack.connect(address) else { break };
                if connection.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: a").is_ok() {
                    held.push(connection);
                }
            }
            sleep(HEAD_BYTE_INTERVAL);
        }
    })
}

/// `count` concurrent requests, repeated, each with 23 MiB of JSON as a job's `metadata`.
pub fn post_metadata(base: &str, token: &str, count: usize) -> Flood {
    let address = address(base);
    let mut body = br#"{"prompt": "run: true", "hold": true, "metadata": {"a": [0"#.to_vec();
    body.extend(b",0".repeat(METADATA_MIB * MIB / 2));
    body.extend(b"]}}");
    let head = format!(
        "POST /api/jobs HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    Flood::start(count, move |attack| {
        while attack.is_running() {
            attack.ask(address, &[head.as_bytes(), &body]);
        }
    })
}

/// `count` concurrent readers of the largest page of jobs, repeated.
pub fn read_pages(base: &str, token: &str, count: usize) -> Flood {
    let address = address(base);
    let head = format!(
        "GET /api/jobs?limit=200 HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    Flood::start(count, move |attack| {
        while attack.is_running() {
            attack.ask(address, &[head.as_bytes()]);
        }
    })
}
