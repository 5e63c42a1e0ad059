//! The program that runs in the containers of the engine tests in place of the worker. Compiled by the tests with
//! `rustc` alone.
//!
//! Executes the orders in the file `do` of its workspace, one word per line. Not part of the product.

use std::{
    ffi::CString,
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    process::exit,
    time::Duration,
};

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn syscall(number: i64, ...) -> i64;
    fn fork() -> i32;
}

const SIGTERM: i32 = 15;
const SIG_IGN: usize = 1;

/// 128 + SIGTERM, as in a shell. Process 1 receives only signals that it has a handler for.
extern "C" fn on_terminate(_: i32) {
    exit(143)
}

fn main() {
    unsafe {
        assert_ne!(signal(SIGTERM, on_terminate as extern "C" fn(i32) as usize), usize::MAX);
    }
    match std::env::args().nth(1).as_deref() {
        Some("probe") => exit(probe()),
        Some("nothing") => exit(0),
        _ => {}
    }
    let order = fs::read_to_string("/workspace/do").expect("the workspace can be read");
    for line in order.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "exit" => exit(rest.parse().expect("an exit code")),
            "print" => println!("{rest}"),
            "sleep" => forever(),
            "stubborn" => unsafe {
                assert_ne!(signal(SIGTERM, SIG_IGN), usize::MAX);
            },
            "ready" => drop(UnixStream::connect("/run/gantry/worker.sock").expect("the socket accepts connections")),
            "hog" => hog(),
            "bomb" => bomb(),
            "report" => report(),
            other => panic!("unknown order: {other}"),
        }
    }
}

/// Waits for a signal.
fn forever() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

fn probe() -> i32 {
    let path = std::env::var("GANTRY_SOCKET").expect("GANTRY_SOCKET is set");
    let mut socket = UnixStream::connect(path).expect("the socket accepts connections");
    socket.write_all(b"GET /health HTTP/1.1\r\nhost: gantry\r\nconnection: close\r\n\r\n").expect("the request is sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("the response is read");
    i32::from(!answer.starts_with("HTTP/1.1 200"))
}

fn hog() -> ! {
    let mut held: Vec<Vec<u8>> = Vec::new();
    loop {
        held.push(vec![1; 1 << 20]);
    }
}

/// Each child continues the loop.
fn bomb() -> ! {
    loop {
        unsafe {
            fork();
        }
    }
}

/// Prints one fact per line.
fn report() {
    for line in fs::read_to_string("/proc/self/status").expect("status").lines() {
        let keys = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp:", "Uid", "Gid", "Groups"];
        if keys.iter().any(|key| line.starts_with(key)) {
            println!("status {}", line.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    let mut interfaces: Vec<String> = names("/sys/class/net");
    interfaces.sort();
    println!("interfaces {}", interfaces.join(" "));
    println!("routes {}", fs::read_to_string("/proc/net/route").map_or(0, |table| table.lines().skip(1).count()));
    println!("env {}", {
        let mut names: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
        names.sort();
        names.join(" ")
    });
    println!("run-directory {}", {
        let mut names = names("/run/gantry");
        names.sort();
        names.join(" ")
    });
    for path in ["/x", "/usr/local/bin/x", "/run/gantry/x", "/run/gantry/token", "/proc/sys/kernel/core_pattern"] {
        println!("write {path} {}", outcome(fs::write(path, "x")));
    }
    println!("replace-socket {}", outcome(fs::remove_file("/run/gantry/worker.sock")));
    for path in ["/workspace/x", "/tmp/x", "/home/agent/x"] {
        println!("write {path} {}", outcome(fs::write(path, "x")));
    }
    for directory in ["/tmp", "/home/agent", "/workspace"] {
        println!("execute-in {directory} {}", outcome(execute_in(directory)));
    }
    for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list"] {
        println!("hidden {path} {}", fs::read(path).map_or(true, |bytes| bytes.is_empty()));
    }
    println!("engine-socket {}", std::path::Path::new("/var/run/docker.sock").exists());
    println!("file-limit {}", outcome(big_file()));
    println!("own-pid {}", std::process::id());
    println!("resolver {}", fs::read_to_string("/etc/resolv.conf").unwrap_or_default().trim().replace('\n', " "));
    for name in ["tcp_rmem", "tcp_wmem"] {
        let buffers = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
        println!("{name} {}", buffers.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    for line in fs::read_to_string("/proc/self/limits").expect("limits").lines() {
        let keys = ["Max open files", "Max pending signals", "Max msgqueue size"];
        if let Some(key) = keys.iter().find(|key| line.starts_with(**key)) {
            let values: Vec<&str> = line[key.len()..].split_whitespace().take(2).collect();
            println!("{}: {}", key.to_lowercase().replace(' ', "-"), values.join(" "));
        }
    }
    calls();
    println!("thread {}", std::thread::spawn(|| 7).join().expect("a thread can be joined"));
}

fn names(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn outcome<T>(result: std::io::Result<T>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.raw_os_error().map_or_else(|| error.to_string(), |number| format!("errno {number}")),
    }
}

fn execute_in(directory: &str) -> std::io::Result<()> {
    let copy = format!("{directory}/copy");
    fs::copy("/usr/local/bin/gantry-worker", &copy)?;
    std::process::Command::new(&copy).arg("nothing").output().map(drop)
}

/// Writes beyond the file size limit with SIGXFSZ ignored, so that the write returns the error.
fn big_file() -> std::io::Result<()> {
    const SIGXFSZ: i32 = 25;
    unsafe {
        signal(SIGXFSZ, SIG_IGN);
    }
    fs::File::create("/workspace/big")?.set_len(64 << 20)
}

#[cfg(target_arch = "x86_64")]
fn calls() {
    let (none, directory) = (0_i64, CString::new("/tmp").expect("no nul"));
    let device = CString::new("/tmp/device").expect("no nul");
    let path = directory.as_ptr();
    let calls: [(&str, i64, [i64; 4]); 29] = [
        ("mount", 165, [path as i64, path as i64, none, 4096]),
        ("unshare-user", 272, [0x1000_0000, 0, 0, 0]),
        ("setns", 308, [0, 0, 0, 0]),
        ("clone-user", 56, [0x1000_0000 | 17, 0, 0, 0]),
        ("clone3", 435, [0, 0, 0, 0]),
        ("ptrace", 101, [0, 0, 0, 0]),
        ("process_vm_readv", 310, [1, 0, 0, 0]),
        ("bpf", 321, [0, 0, 0, 0]),
        ("keyctl", 250, [0, 0, 0, 0]),
        ("add_key", 248, [0, 0, 0, 0]),
        ("io_uring_setup", 425, [1, 0, 0, 0]),
        ("userfaultfd", 323, [0, 0, 0, 0]),
        ("perf_event_open", 298, [0, 0, 0, 0]),
        ("open_by_handle_at", 304, [0, 0, 0, 0]),
        ("kexec_load", 246, [0, 0, 0, 0]),
        ("chroot", 161, [path as i64, 0, 0, 0]),
        ("name_to_handle_at", 303, [0, 0, 0, 0]),
        ("io_setup", 206, [1, 0, 0, 0]),
        ("mq_open", 240, [0, 0, 0, 0]),
        ("shmget", 29, [0, 4096, 0o1600, 0]),
        ("shmget-too-large", 29, [0, 16 * 1_048_576 + 1, 0o1600, 0]),
        ("semget", 64, [0, 1, 0o1600, 0]),
        ("msgget", 68, [0, 0o1600, 0, 0]),
        ("memfd_secret", 447, [0, 0, 0, 0]),
        ("pkey_alloc", 330, [0, 0, 0, 0]),
        ("get_mempolicy", 239, [0, 0, 0, 0]),
        ("process_mrelease", 448, [0, 0, 0, 0]),
        ("fallocate", 285, [1, 0, 0, 4096]),
        ("mknod-device", 133, [device.as_ptr() as i64, 0o020_666, 0x103, 0]),
    ];
    for (name, number, [a, b, c, d]) in calls {
        println!("call {name} {}", answer(unsafe { syscall(number, a, b, c, d, 0_i64) }));
    }
    let families = [("unix", 1), ("inet", 2), ("inet6", 10), ("netlink", 16), ("packet", 17), ("alg", 38), ("vsock", 40)];
    for (name, family) in families {
        println!("socket {name} {}", answer(unsafe { syscall(41, i64::from(family), 1_i64 + i64::from(family == 16) * 2, 0_i64) }));
    }
    // SOCK_CLOEXEC and SOCK_NONBLOCK.
    let flags = 0x8_0800_i64;
    let sockets = [
        ("inet-raw", [2, 3, 1]),
        ("inet-stream-with-flags", [2, 1 | flags, 0]),
        ("inet-tcp", [2, 1, 6]),
        ("inet6-tcp", [10, 1 | flags, 6]),
        ("inet-datagram", [2, 2, 0]),
        ("inet-udp", [2, 2 | flags, 17]),
        ("inet6-udp", [10, 2, 17]),
        ("inet-mptcp", [2, 1, 262]),
        ("inet-icmp", [2, 2, 1]),
        ("inet-udplite", [2, 2, 136]),
        ("inet-sctp", [2, 1, 132]),
    ];
    for (name, [family, kind, protocol]) in sockets {
        println!("socket {name} {}", answer(unsafe { syscall(41, family, kind, protocol) }));
    }
    println!("buffer-kept {}", keeps_its_buffer());
    println!("shared-memory {}", shared_memory());
    println!("socket netlink-audit {}", answer(unsafe { syscall(41, 16_i64, 3_i64, 9_i64) }));
    println!("socket netlink-netfilter {}", answer(unsafe { syscall(41, 16_i64, 3_i64, 12_i64) }));
}

/// How many segments of 16 MiB there is room for, beside the one of 4 KiB.
#[cfg(target_arch = "x86_64")]
fn shared_memory() -> usize {
    (0..40).take_while(|_| unsafe { syscall(29, 0_i64, 16_i64 * 1_048_576, 0o1600_i64) } >= 0).count()
}

/// Whether setting a buffer size of 1 MiB succeeds and changes nothing.
#[cfg(target_arch = "x86_64")]
fn keeps_its_buffer() -> bool {
    let [setsockopt, getsockopt, sol_socket, so_sndbuf] = [54, 55, 1_i64, 7_i64];
    let socket = unsafe { syscall(41, 2_i64, 1_i64, 0_i64) };
    let (wanted, size) = (1_i32 << 20, 4_i64);
    let mut buffer = [0_i32; 2];
    for seen in &mut buffer {
        let mut length = 4_i32;
        assert_eq!(unsafe { syscall(getsockopt, socket, sol_socket, so_sndbuf, &raw mut *seen, &raw mut length) }, 0);
        assert_eq!(unsafe { syscall(setsockopt, socket, sol_socket, so_sndbuf, &raw const wanted, size) }, 0);
    }
    buffer[0] == buffer[1]
}

fn answer(returned: i64) -> String {
    if returned == -1 { outcome::<()>(Err(std::io::Error::last_os_error())) } else { "ok".to_owned() }
}
