//! `gantry-worker search`: the process that does one search.
//!
//! Owns its own limits, which it sets before it reads anything. Holds no secret and starts nothing. The worker ends it
//! when it takes too long and treats its answer as untrusted. It is killed first when memory runs out, as everything
//! below a supervisor is.

use std::io::{self, Read, Write};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{
    find,
    request::{SearchRequest, SearchResult},
};

/// The argument that makes this program a search.
pub(crate) const SUBCOMMAND: &str = "search";
/// Arguments come from a model's answer.
const MAX_REQUEST_BYTES: u64 = 16 * 1024 * 1024;
/// Several times what a search within its limits (entries, patterns, results) was seen to use.
const MAX_ADDRESS_SPACE_BYTES: u64 = 256 * 1024 * 1024;
/// The tool's timeout, for a parent that was killed and cannot kill its child.
const MAX_CPU_SECONDS: u64 = 60;

/// Reads a request, searches, and writes the answer.
pub fn run() -> io::Result<()> {
    lower(Resource::As, MAX_ADDRESS_SPACE_BYTES)?;
    lower(Resource::Cpu, MAX_CPU_SECONDS)?;
    let mut request = Vec::new();
    io::stdin().lock().take(MAX_REQUEST_BYTES).read_to_end(&mut request)?;
    let request: SearchRequest = serde_json::from_slice(&request)?;
    let result: SearchResult = find::answer(&request);
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, &result)?;
    output.flush()
}

/// Never above a limit that is there.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}
