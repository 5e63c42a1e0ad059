//! The orchestrator's health and memory, sampled by threads of their own so that no busy runtime delays a sample; beside
//! them a server that does nothing but answer, since a machine that is busy with something else delays that, too.

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, sleep, spawn},
    time::{Duration, Instant},
};

/// Between two requests of `GET /healthz`.
const HEALTH_EVERY: Duration = Duration::from_millis(50);
/// Between two readings of the process's memory.
const MEMORY_EVERY: Duration = Duration::from_millis(20);
/// A request without an answer for so long counts as one that failed after this time.
const NO_ANSWER: Duration = Duration::from_secs(5);

/// What was seen from start to end.
#[derive(Debug, Clone)]
pub struct Readings {
    /// How long each `GET /healthz` took, connecting included.
    pub health: Vec<Duration>,
    /// Requests that got no 200.
    pub health_failures: usize,
    /// How long a server of this process, which only answers, took at the same time.
    pub control: Vec<Duration>,
    /// Resident memory of the process at the start, in megabytes of 10⁶ bytes.
    pub memory_before_mb: u64,
    /// The most that it was.
    pub memory_peak_mb: u64,
}

impl Readings {
    /// How much the memory grew at most.
    pub fn memory_growth_mb(&self) -> u64 {
        self.memory_peak_mb.saturating_sub(self.memory_before_mb)
    }
}

/// Samples until [`Vitals::end`].
pub struct Vitals {
    stop: Arc<AtomicBool>,
    health: JoinHandle<(Vec<Duration>, usize)>,
    control: JoinHandle<(Vec<Duration>, usize)>,
    memory: JoinHandle<u64>,
    memory_before_mb: u64,
}

impl Vitals {
    /// Watches the process `pid`, which answers HTTP at `base` (`http://ADDRESS:PORT`).
    pub fn watch(base: &str, pid: u32) -> Self {
        let address: SocketAddr = base.trim_start_matches("http://").parse().expect("an address and a port");
        let stop = Arc::new(AtomicBool::new(false));
        let memory_before_mb = memory_mb(pid);
        let [health_stop, control_stop, memory_stop] = std::array::from_fn(|_| Arc::clone(&stop));
        let control = control_server();
        Self {
            stop,
            health: spawn(move || sample_health(address, &health_stop)),
            control: spawn(move || sample_health(control, &control_stop)),
            memory: spawn(move || sample_memory(pid, &memory_stop)),
            memory_before_mb,
        }
    }

    /// Stops sampling.
    pub fn end(self) -> Readings {
        self.stop.store(true, Ordering::Relaxed);
        let (health, health_failures) = self.health.join().expect("no sampler panics");
        let (control, _) = self.control.join().expect("no sampler panics");
        let memory_peak_mb = self.memory.join().expect("no sampler panics");
        Readings { health, health_failures, control, memory_before_mb: self.memory_before_mb, memory_peak_mb }
    }
}

fn sample_health(address: SocketAddr, stop: &AtomicBool) -> (Vec<Duration>, usize) {
    let (mut samples, mut failures) = (vec![], 0);
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        failures += usize::from(!matches!(healthy(address), Ok(true)));
        samples.push(asked.elapsed());
        sleep(HEALTH_EVERY.saturating_sub(asked.elapsed()));
    }
    (samples, failures)
}

/// Answers until the process ends; it holds one thread and one descriptor.
fn control_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let mut head = [0; 256];
            // One that hangs up is the sampler's to report.
            let _ = connection.read(&mut head).and_then(|_| connection.write_all(b"HTTP/1.1 200"));
        }
    });
    address
}

fn healthy(address: SocketAddr) -> io::Result<bool> {
    let mut connection = TcpStream::connect_timeout(&address, NO_ANSWER)?;
    connection.set_read_timeout(Some(NO_ANSWER))?;
    write!(connection, "GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut start = [0; 12];
    connection.read_exact(&mut start)?;
    Ok(&start == b"HTTP/1.1 200")
}

fn sample_memory(pid: u32, stop: &AtomicBool) -> u64 {
    let mut peak = memory_mb(pid);
    while !stop.load(Ordering::Relaxed) {
        sleep(MEMORY_EVERY);
        peak = peak.max(memory_mb(pid));
    }
    peak
}

/// `VmRSS`; zero when the process is gone.
fn memory_mb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    kilobytes * 1024 / 1_000_000
}
