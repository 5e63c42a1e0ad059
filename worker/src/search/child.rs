//! `gantry-worker search`: the process that does one search.
//!
//! Owns its own limits, which it sets before it reads anything. Holds no secret and starts nothing. Its parent kills it
//! when it takes too long; what it answers is untrusted there.

use std::{
    fs,
    io::{self, Read, Write},
};

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

use super::{
    find,
    request::{SearchRequest, SearchResult},
};
use crate::oom::EXPENDABLE;

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
    give_way()?;
    let mut request = Vec::new();
    io::stdin().lock().take(MAX_REQUEST_BYTES).read_to_end(&mut request)?;
    let request: SearchRequest = serde_json::from_slice(&request)?;
    let result: SearchResult = find::answer(&request);
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, &result)?;
    output.flush()
}

/// The first to be killed when memory runs out, and limited by itself.
fn give_way() -> io::Result<()> {
    // The files of a process that is not dumpable belong to root, its own `oom_score_adj` too. This process has read
    // nothing yet that could be read from it.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    // Best effort: a system that refuses it chooses by itself.
    let _ = fs::write("/proc/self/oom_score_adj", EXPENDABLE);
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    lower(Resource::As, MAX_ADDRESS_SPACE_BYTES)?;
    lower(Resource::Cpu, MAX_CPU_SECONDS)
}

/// Never above a limit that is there.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.map_or(most, |maximum| maximum.min(most));
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}
