//! Checks of settings that need more than one value, or more than its type.

use std::path::Path;

use protocol::ContainerName;
use secrecy::ExposeSecret as _;

use crate::{Config, ConfigError, master_key_bytes, reader::ConfigReader};

/// HS256 needs a key as long as its hash.
const MIN_JWT_SECRET_BYTES: usize = 32;
/// `sun_path` has room for 108 bytes including the final NUL.
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// A slash and `gantry-job-<uuid>-<attempt>/worker.sock`.
const SOCKET_TAIL_BYTES: usize = 1 + ContainerName::MAX_JOB_NAME_BYTES + "/worker.sock".len();

impl Config {
    /// Checks that need more than one value, or more than its type.
    pub(crate) fn check(&mut self, reader: &mut ConfigReader<'_>) -> Result<(), ConfigError> {
        check_socket_path(reader, &self.run_dir)?;
        check_database_url(reader, &self.database_url)?;
        self.check_defaults(reader)?;
        if self.pool_size > 0 {
            return Err(reader.invalid("pool_size", "a pool of containers is not available yet: use 0"));
        }
        for host in &mut self.allowed_hosts {
            host.make_ascii_lowercase();
            if !is_host(host) {
                let expected = "must be host names such as gantry.example.org, with or without a port, or IPv6 addresses in brackets";
                return Err(reader.invalid("allowed_hosts", expected));
            }
        }
        if self.jwt_secret.as_ref().is_some_and(|secret| secret.expose_secret().len() < MIN_JWT_SECRET_BYTES) {
            let expected = format!("must be at least {MIN_JWT_SECRET_BYTES} bytes (try: openssl rand -hex 32)");
            return Err(reader.invalid("jwt_secret", expected));
        }
        if self.master_key.as_ref().is_some_and(|key| master_key_bytes(key.expose_secret()).is_none()) {
            return Err(reader.invalid("master_key", "must be 32 bytes in base64 (try: openssl rand -base64 32)"));
        }
        if self.disk_floor_mb.is_none() {
            reader.override_display("disk_floor_mb", "the larger of 2048 and 5 %");
        }
        Ok(())
    }

    /// Checks that a job may name what it gets by default.
    fn check_defaults(&self, reader: &mut ConfigReader<'_>) -> Result<(), ConfigError> {
        let (defaults, ceiling) = (&self.defaults, &self.limits_ceiling);
        if defaults.timeout_seconds > ceiling.timeout_seconds {
            let expected = format!("must be at most limits.timeout_seconds, {}", ceiling.timeout_seconds);
            return Err(reader.invalid("defaults.timeout_seconds", expected));
        }
        if defaults.max_iterations > ceiling.max_iterations {
            let expected = format!("must be at most limits.max_iterations, {}", ceiling.max_iterations);
            return Err(reader.invalid("defaults.max_iterations", expected));
        }
        let models = || std::iter::once(&self.llm.primary.model).chain(&self.llm.models).map(String::as_str);
        match &defaults.model {
            Some(model) if !models().any(|known| known == model) => {
                let expected =
                    format!("must be llm.model or one of llm.models: {}", models().collect::<Vec<_>>().join(", "));
                Err(reader.invalid("defaults.model", expected))
            }
            Some(_) => Ok(()),
            None => {
                reader.override_display("defaults.model", &self.llm.primary.model);
                Ok(())
            }
        }
    }
}

/// Whether this is a valid `Host` header: a name, an IPv4 address or an IPv6 address in brackets, with or without a port.
fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        // The colons of an address are inside its brackets.
        Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
        _ => (host, None),
    };
    let is_name = match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b)),
    };
    is_name && port.is_none_or(|port| port.parse::<u16>().is_ok())
}

fn check_socket_path(reader: &mut ConfigReader<'_>, run_dir: &Path) -> Result<(), ConfigError> {
    let max = MAX_SOCKET_PATH_BYTES - SOCKET_TAIL_BYTES;
    if run_dir.as_os_str().len() <= max {
        return Ok(());
    }
    let key = if reader.is_set("run_dir") { "run_dir" } else { "data_dir" };
    let expected = format!(
        "the path of a worker's socket in {} would be longer than {MAX_SOCKET_PATH_BYTES} bytes: set run_dir to at most {max}",
        run_dir.display()
    );
    Err(reader.invalid(key, expected))
}

fn check_database_url(reader: &ConfigReader<'_>, url: &str) -> Result<(), ConfigError> {
    if url.starts_with("sqlite:") {
        return Ok(());
    }
    // The URL of another database may contain a password: it is not shown.
    Err(reader.missing(
        "database_url",
        match url.split_once(':') {
            Some(("postgres" | "postgresql", _)) => "PostgreSQL is not available yet: use sqlite:",
            _ => "must start with sqlite:",
        },
    ))
}
