//! Attacks of a client of the public API: plain sockets in threads, so that what they hold costs the caller's runtime nothing.

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

/// No request of an attack waits longer for the other side.
const PATIENCE: Duration = Duration::from_secs(10);
/// Just within what a request to the API may have.
const METADATA_MIB: usize = 23;
/// An answer waits so long for its reader: what the server keeps of it meanwhile adds up, and how often a machine can make
/// one is not what is tested.
const READS_AFTER: Duration = Duration::from_secs(2);
const MIB: usize = 1024 * 1024;

/// What an attack did, by name.
pub type Told = std::collections::BTreeMap<String, u64>;

/// An attack that goes on until [`Flood::end`].
pub struct Flood {
    stop: Arc<AtomicBool>,
    told: Arc<Mutex<Told>>,
    threads: Vec<JoinHandle<()>>,
}

impl Flood {
    fn start(threads: usize, work: impl Fn(&Attack) + Send + Sync + 'static) -> Self {
        let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Told::new())));
        let work = Arc::new(work);
        let threads = (0..threads).map(|_| {
            let attack = Attack { stop: Arc::clone(&stop), told: Arc::clone(&told) };
            let work = Arc::clone(&work);
            spawn(move || work(&attack))
        });
        let threads = threads.collect();
        Self { stop, told, threads }
    }

    /// Ends it, and tells what it did.
    pub fn end(self) -> Told {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("no attacker panics");
        }
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct Attack {
    stop: Arc<AtomicBool>,
    told: Arc<Mutex<Told>>,
}

impl Attack {
    fn count(&self, what: &str) {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner).entry(what.to_owned()).or_default() += 1;
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn connect(&self, address: SocketAddr) -> Option<TcpStream> {
        self.count("attempted");
        let connection = TcpStream::connect_timeout(&address, PATIENCE).ok();
        let connection = connection.filter(|connection| {
            connection.set_read_timeout(Some(PATIENCE)).and(connection.set_write_timeout(Some(PATIENCE))).is_ok()
        });
        if connection.is_none() {
            self.count("refused");
        }
        connection
    }

    /// Sends a request, and reads its answer to the end a while later.
    fn ask(&self, address: SocketAddr, parts: &[&[u8]]) {
        let Some(mut connection) = self.connect(address) else { return };
        // A server that refuses may answer before it has read everything.
        if parts.iter().try_for_each(|part| connection.write_all(part)).is_err() {
            self.count("hung_up_on");
        }
        sleep(READS_AFTER);
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

/// So many connections at once, each of which sends a head without an end, a byte a second. Needs no token.
pub fn hold_heads(base: &str, count: usize) -> Flood {
    let address = address(base);
    Flood::start(1, move |attack| {
        let mut held: Vec<TcpStream> = vec![];
        while attack.goes_on() {
            held.retain_mut(|connection| {
                let alive = connection.write_all(b"a").is_ok();
                if !alive {
                    attack.count("closed_by_peer");
                }
                alive
            });
            while held.len() < count && attack.goes_on() {
                let Some(mut connection) = attack.connect(address) else { break };
                if connection.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: a").is_ok() {
                    held.push(connection);
                }
            }
            sleep(Duration::from_secs(1));
        }
    })
}

/// So many requests at once, again and again, each with 23 MiB of JSON as a job's `metadata`.
pub fn post_metadata(base: &str, token: &str, at_once: usize) -> Flood {
    let address = address(base);
    let mut body = br#"{"prompt": "run: true", "hold": true, "metadata": {"a": [0"#.to_vec();
    body.extend(b",0".repeat(METADATA_MIB * MIB / 2));
    body.extend(b"]}}");
    let head = format!(
        "POST /api/jobs HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    Flood::start(at_once, move |attack| {
        while attack.goes_on() {
            attack.ask(address, &[head.as_bytes(), &body]);
        }
    })
}

/// So many readers at once of the largest page of jobs, again and again.
pub fn read_pages(base: &str, token: &str, at_once: usize) -> Flood {
    let address = address(base);
    let head = format!(
        "GET /api/jobs?limit=200 HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    Flood::start(at_once, move |attack| {
        while attack.goes_on() {
            attack.ask(address, &[head.as_bytes()]);
        }
    })
}
