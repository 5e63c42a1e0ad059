//! `gantry-worker search`: the process that runs one search.
//!
//! Sets its own resource limits before it reads anything. Holds no secret and starts no process. The worker kills it on
//! a timeout and treats its response as untrusted. Like every process below a supervisor, it is the OOM killer's first
//! choice.

use std::io::{self, Read, Write};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{
    find,
    request::{SearchRequest, SearchResult},
};

/// The subcommand.
pub(crate) const SUBCOMMAND: &str = "search";
/// Bounds the arguments, which come from a model's response.
const MAX_REQUEST_BYTES: u64 = 16 * 1024 * 1024;
/// Several times the measured use of a search that reaches its limits (entries, patterns, results).
const MAX_ADDRESS_SPACE_BYTES: u64 = 256 * 1024 * 1024;
/// The tool's timeout. Takes effect if the parent was killed and cannot kill its child.
const MAX_CPU_SECONDS: u64 = 60;

/// Reads a request from standard input, runs the search and writes the result to standard output.
pub fn run() -> io::Result<()> {
    lower(Resource::As, MAX_ADDRESS_SPACE_BYTES)?;
    lower(Resource::Cpu, MAX_CPU_SECONDS)?;
    let mut request = Vec::new();
    io::stdin().lock().take(MAX_REQUEST_BYTES).read_to_end(&mut request)?;
    let request: SearchRequest = serde_json::from_slice(&request)?;
    let result: SearchResult = find::search(&request);
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, &result)?;
    output.flush()
}

/// Lowers a resource limit. Never raises an existing one.
fn lower(resource: Resource, limit: u64) -> io::Result<()> {
    let limit = getrlimit(resource).maximum.map_or(limit, |maximum| maximum.min(limit));
    Ok(setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?)
}
