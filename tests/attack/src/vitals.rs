//! Samples the orchestrator's health and memory on separate threads, so that a busy runtime does not delay a sample. A
//! control server that only responds is sampled too, because a busy machine delays both.

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

/// Interval between two requests of `GET /healthz`: an attack of a few seconds has more than the hundred samples that a
/// p99 needs, else it would be the longest one.
const HEALTH_INTERVAL: Duration = Duration::from_millis(20);
/// Interval between two samples of the process's memory.
const MEMORY_INTERVAL: Duration = Duration::from_millis(20);
/// Timeout of a request; counted as a failure with this duration.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// The samples from start to end.
#[derive(Debug, Clone)]
pub struct Readings {
    /// Durations of `GET /healthz`, including connecting.
    pub health: Vec<Duration>,
    /// Requests without a 200.
    pub health_failures: usize,
    /// Durations of the control server's responses at the same time.
    pub control: Vec<Duration>,
    /// Resident memory of the process at the start, in megabytes of 10⁶ bytes.
    pub memory_before_mb: u64,
    /// The maximum, in megabytes of 10⁶ bytes.
    pub memory_peak_mb: u64,
}

impl Readings {
    /// The maximum growth of the memory.
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
    /// Watches the process `pid`, which serves HTTP at `base` (`http://ADDRESS:PORT`).
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
        let (health, health_failures) = self.health.join().expect("a sampler panicked");
        let (control, _) = self.control.join().expect("a sampler panicked");
        let memory_peak_mb = self.memory.join().expect("a sampler panicked");
        Readings { health, health_failures, control, memory_before_mb: self.memory_before_mb, memory_peak_mb }
    }
}

fn sample_health(address: SocketAddr, stop: &AtomicBool) -> (Vec<Duration>, usize) {
    let (mut samples, mut failures) = (vec![], 0);
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        failures += usize::from(!matches!(healthy(address), Ok(true)));
        samples.push(asked.elapsed());
        sleep(HEALTH_INTERVAL.saturating_sub(asked.elapsed()));
    }
    (samples, failures)
}

/// Responds until the process ends. Holds one thread and one descriptor.
fn control_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound listener has an address");
    spawn(move || {
        for mut connection in listener.incoming().flatten() {
            let mut head = [0; 256];
            // A failure shows in the samples.
            let _ = connection.read(&mut head).and_then(|_| connection.write_all(b"HTTP/1.1 200"));
        }
    });
    address
}

fn healthy(address: SocketAddr) -> io::Result<bool> {
    let mut connection = TcpStream::connect_timeout(&address, HEALTH_TIMEOUT)?;
    connection.set_read_timeout(Some(HEALTH_TIMEOUT))?;
    write!(connection, "GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut start = [0; 12];
    connection.read_exact(&mut start)?;
    Ok(&start == b"HTTP/1.1 200")
}

fn sample_memory(pid: u32, stop: &AtomicBool) -> u64 {
    let mut peak = memory_mb(pid);
    while !stop.load(Ordering::Relaxed) {
        sleep(MEMORY_INTERVAL);
        peak = peak.max(memory_mb(pid));
    }
    peak
}

/// `VmRSS`; zero if the process has ended.
fn memory_mb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes: u64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0);
    kilobytes * 1024 / 1_000_000
}
