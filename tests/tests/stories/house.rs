//! The house itself: who imports whom, read from the sources.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// The orchestrator's floors, the highest first; an import never climbs, and rooms of one floor do not meet but where
/// they stand together here. What is not named stands on the ground, under everything.
const FLOORS: &[&[&str]] = &[
    &["main"],
    &["cli"],
    &["app"],
    &["http"],
    &["routine"],
    &["chat"],
    &["tools", "dispatch"],
    &["llm", "auth", "egress", "workspace"],
    &["store"],
    &["domain", "engine"],
];
const GROUND: &[&str] = &["clock", "config", "failpoint", "per_user_semaphore", "rate_limit", "telemetry", "lib"];

/// The one door of each dependency, as the start of a path under `src`; the command line talks to a server, too.
const DOORS: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("bollard", &["engine/docker"]),
    ("jsonwebtoken", &["auth"]),
    ("tar", &["workspace"]),
    ("flate2", &["workspace"]),
    ("hyper", &["http/server"]),
    ("hyper_util", &["http/server"]),
    ("reqwest", &["llm", "cli"]),
    ("metrics_exporter_prometheus", &["telemetry"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Every source under `src` by its path there, without comments and test modules' files.
fn orchestrator() -> BTreeMap<String, String> {
    let src = root().join("orchestrator/src");
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

/// The code without comments.
fn code(text: &str) -> String {
    let plain = |line: &&str| !line.trim_start().starts_with("//");
    text.lines().filter(plain).collect::<Vec<_>>().join("\n")
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// The first names after `crate::`, also in a group.
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
        let (mut depth, mut fresh, mut name) = (1, true, String::new());
        for character in group.chars() {
            match character {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => fresh = true,
                c if depth == 1 && fresh && is_word(c) => name.push(c),
                c if !c.is_whitespace() && !name.is_empty() => fresh = false,
                _ => {}
            }
            if (!fresh || character == ',' || depth == 0) && !name.is_empty() {
                names.push(std::mem::take(&mut name));
                fresh = character == ',';
            }
            if depth == 0 {
                break;
            }
        }
    }
    names
}

/// Counted from the top; none on the ground.
fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

/// Whether `room` may import `other`.
fn may_import(room: &str, other: &str) -> bool {
    match (floor(room), floor(other)) {
        (_, None) => GROUND.contains(&other) || !other.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
        (None, Some(_)) => false,
        (Some(own), Some(others)) => room == other || others > own,
    }
}

#[test]
fn an_import_never_climbs() {
    let mut climbing = vec![];
    for (path, code) in orchestrator() {
        let room = path.split('/').next().unwrap_or_default();
        if room == "lib" {
            continue;
        }
        assert!(floor(room).is_some() || GROUND.contains(&room), "{room} has no floor: give it one in house.rs");
        for other in imported(&code).into_iter().filter(|other| !may_import(room, other)) {
            climbing.push(format!("{path} imports {other}"));
        }
    }
    assert_eq!(climbing, Vec::<String>::new());
}

#[test]
fn each_dependency_has_one_door() {
    let mut beside = vec![];
    for (path, code) in orchestrator() {
        for (dependency, doors) in DOORS {
            let named = code.match_indices(dependency).any(|(at, _)| {
                let after = &code[at + dependency.len()..];
                !code[..at].ends_with(is_word) && after.starts_with("::")
            });
            if named && !doors.iter().any(|door| path.starts_with(door)) {
                beside.push(format!("{path} names {dependency}"));
            }
        }
    }
    assert_eq!(beside, Vec::<String>::new());
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
fn the_readers_of_the_house_can_see() {
    let code = "use crate::{\n    app::App,\n    store::{Store, tokens::{self}},\n    clock,\n};\nfn a() { crate::llm::b(); my_crate::no(); }";
    assert_eq!(imported(code), ["app", "store", "clock", "llm"]);
    for (room, other, may) in [
        ("http", "store", true),
        ("store", "http", false),
        ("store", "domain", true),
        ("domain", "store", false),
        ("engine", "domain", false),
        ("tools", "dispatch", false),
        ("llm", "auth", false),
        ("config", "store", false),
        ("store", "config", true),
    ] {
        assert_eq!(may_import(room, other), may, "{room} imports {other}");
    }
}
