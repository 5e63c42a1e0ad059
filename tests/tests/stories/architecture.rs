//! The module architecture: which modules may import which, checked on the sources.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The orchestrator's layers, from the highest to the lowest. A module imports only lower layers; modules of one layer do not
/// import each other unless they are in the same group here. Modules that are not listed belong to the lowest layer.
const LAYERS: &[&[&str]] = &[
    &["main"],
    &["cli"],
    &["app"],
    &["http"],
    &["routine"],
    &["chat", "host_jobs"],
    &["tools"],
    &["mcp"],
    &["dispatch"],
    &["hooks"],
    &["llm", "auth", "egress", "workspace"],
    &["secrets"],
    &["store"],
    &["domain", "engine"],
];
const LOWEST_LAYER: &[&str] =
    &["clock", "config", "digest", "failpoint", "key_file", "per_user_semaphore", "rate_limit", "telemetry", "lib"];

/// The only place that may use each dependency, as a path prefix under `src`. The command line may use an HTTP client too.
const DEPENDENCY_OWNERS: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("bollard", &["engine/docker"]),
    ("jsonwebtoken", &["auth"]),
    ("chacha20poly1305", &["secrets/master_key"]),
    ("tar", &["workspace"]),
    ("flate2", &["workspace", "http/public/docs/assets"]),
    ("similar", &["workspace"]),
    ("hyper", &["http/server"]),
    ("hyper_util", &["http/server"]),
    ("reqwest", &["llm", "cli", "egress"]),
    ("ipnet", &["egress"]),
    ("hmac", &["domain/routine/signature"]),
    ("cel", &["domain/routine/expression"]),
    ("rmcp", &["mcp"]),
    ("metrics_exporter_prometheus", &["telemetry"]),
    ("croner", &["domain/routine/schedule"]),
    ("tokio_cron_scheduler", &["app/standing_jobs"]),
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

/// Every source file of the orchestrator by its path, without comments.
fn orchestrator() -> BTreeMap<String, String> {
    code_of("orchestrator")
}

/// Every source file of a crate by its path under `src`, without comments.
fn code_of(name: &str) -> BTreeMap<String, String> {
    let src = root().join(name).join("src");
    let mut found = vec![];
    sources(&src, &mut found);
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&src).unwrap().with_extension("").display().to_string();
            (name, code(&fs::read_to_string(&path).unwrap()))
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

/// The first path segments after `crate::`, including those in groups.
fn imported(code: &str) -> Vec<String> {
    let mut names = vec![];
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        if code[..at].ends_with(is_word) {
            continue;
        }
        let Some(group) = rest.strip_prefix('{') else {
            names.push(rest.chars().take_while(|c| is_word(*c)).collect());
            continue;
        };
        let (mut depth, mut at_name, mut name) = (1, true, String::new());
        for character in group.chars() {
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => at_name = true,
                c if depth == 1 && at_name && is_word(c) => name.push(c),
                c if !c.is_whitespace() && !name.is_empty() => at_name = false,
                _ => {}
            }
            if (!at_name || character == ',' || depth == 0) && !name.is_empty() {
                names.push(std::mem::take(&mut name));
                at_name = character == ',';
            }
            if depth == 0 {
                break;
            }
        }
    }
    names
}

/// The index of a module's layer, counted from the top; `None` for the lowest layer.
fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// Whether `module` may import `other`.
fn may_import(module: &str, other: &str) -> bool {
    match (layer(module), layer(other)) {
        (_, None) => LOWEST_LAYER.contains(&other) || !other.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
        (None, Some(_)) => false,
        (Some(own), Some(others)) => module == other || others > own,
    }
}

#[test]
fn modules_import_only_lower_layers() {
    let mut violations = vec![];
    for (path, code) in orchestrator() {
        let module = path.split('/').next().unwrap_or_default();
        if module == "lib" {
            continue;
        }
        assert!(layer(module).is_some() || LOWEST_LAYER.contains(&module), "{module} has no layer: add it to LAYERS");
        for other in imported(&code).into_iter().filter(|other| !may_import(module, other)) {
            violations.push(format!("{path} imports {other}"));
        }
    }
    assert_eq!(violations, Vec::<String>::new());
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

#[test]
fn crates_depend_downwards_only() {
    let may: [(&str, &[&str]); 4] = [
        ("protocol", &[]),
        ("agent", &["protocol"]),
        ("worker", &["agent", "protocol"]),
        ("orchestrator", &["agent", "protocol"]),
    ];
    for (name, allowed) in may {
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml")).unwrap();
        for other in ["protocol", "agent", "worker", "orchestrator", "tests"] {
            let depends = manifest
                .lines()
                .any(|line| line.strip_prefix(other).is_some_and(|rest| rest.starts_with([' ', '.', '='])));
            assert!(!depends || allowed.contains(&other), "{name} depends on {other}");
        }
    }
}

#[test]
fn imports_and_layers_are_recognised() {
    let code = "use crate::{\n    app::App,\n    store::{Store, tokens::{self}},\n    clock,\n};\nfn a() { crate::llm::b(); my_crate::no(); }";
    assert_eq!(imported(code), ["app", "store", "clock", "llm"]);
    for (module, other, may) in [
        ("http", "store", true),
        ("store", "http", false),
        ("store", "domain", true),
        ("domain", "store", false),
        ("engine", "domain", false),
        ("tools", "dispatch", true),
        ("dispatch", "tools", false),
        ("llm", "auth", false),
        ("config", "store", false),
        ("store", "config", true),
    ] {
        assert_eq!(may_import(module, other), may, "{module} imports {other}");
    }
}
