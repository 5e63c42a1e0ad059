//! Banned words and phrases: each has a standard term that readers know. All crates, documents and scripts are checked.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Whole words in sources and documents, with the term to use instead.
const WORDS: &[(&str, &str)] = &[
    ("Beat", "Heartbeat"),
    ("Leaving", "InFlightGuard"),
    ("Overfull", "over its disk limit"),
    ("Pulse", "liveness"),
    ("Seat", "permit"),
    ("Seats", "limiter"),
    ("UnderWay", "single flight"),
    ("mend", "fix"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("PatientListener", "write timeout"),
    ("PatientStream", "write timeout"),
    ("graver", "most severe"),
    ("MetricsDoor", "MetricsEndpoint"),
    ("Scraped", "MetricsServer"),
    ("Carried", "ErrorExtension"),
    ("harden", "set_security_headers"),
    ("Beside", "CounterpartDir"),
    ("Carrier", "EngineProxy"),
    ("Deed", "AuditEntry"),
    ("Doer", "AuditedCaller"),
    ("Door", "EngineProxy"),
    ("Flipping", "RenamedTree"),
    ("Hands", "ActionExecutor"),
    ("LeftBehind", "ProcessGuard"),
    ("Nobody", "no one, or name who is meant"),
    ("Reach", "ToolContext"),
    ("Told", "StreamMessage"),
    ("TokenThief", "TokenCopier"),
    ("Undone", "ActionError"),
    ("Whoever", "name who is meant"),
    ("Workbench", "ToolDeps"),
    ("AT_MOST", "MAX_RATIO"),
    ("Balance", "BudgetState"),
    ("Feed", "EventNotifier"),
    ("Garbage", "InvalidResponse"),
    ("HandWorker", "ManualWorker"),
    ("LINGER", "…_DRAIN_TIMEOUT"),
    ("LONGEST_REST", "MAX_WAIT"),
    ("NoRoom", "NoCapacity"),
    ("PATIENCE", "WAIT_TIMEOUT"),
    ("POLITE", "GRACEFUL_TIMEOUT"),
    ("Quote", "CallEstimate"),
    ("ROOM_RETRY", "CAPACITY_RETRY_INTERVAL"),
    ("ROOM_TIMEOUT", "RESERVE_TIMEOUT"),
    ("Room", "Capacity"),
    ("Seams", "TestOverrides"),
    ("Spent", "CallCost"),
    ("Wake", "DispatcherWaker"),
    ("again_in", "replan_in"),
    ("everybody", "all users, or name who is meant"),
    ("folder", "directory"),
    ("folders", "directories"),
    ("repaired_in_vain", "repairs_exhausted"),
    ("seam", "interface"),
    ("seams", "interfaces"),
    ("signs of life", "when it was last heard from"),
    ("told_low", "warned_limits"),
    ("wasted", "partial_usage"),
    ("whole_or_nothing", "last_payload"),
    ("for ever", "forever"),
    ("for people", "human-readable"),
    ("anew", "again"),
    ("nobody", "no one, or name who is meant"),
    ("somebody", "a person, or name who is meant"),
    ("stillborn", "provisional"),
    ("unborn", "provisional"),
    ("whoever", "name who is meant"),
    ("in vain", "timed out"),
    ("of its own", "separate, or its own …"),
    ("of their own", "separate, or their own …"),
    ("put aside", "reserved"),
    ("says so", "reports it, or name what is reported"),
    ("under way", "in progress, pending or in flight"),
];

/// Parts of sentences, with what to write instead.
const PHRASES: &[(&str, &str)] = &[
    ("there is no such thing", "not found"),
    ("it is not yours", "not found"),
    ("the token is not good", "invalid, expired or revoked token"),
    ("something went wrong", "internal server error"),
    ("must be a text", "must be a string"),
    ("mend its name", "unknown key"),
    ("mend this value", "fix this value"),
    ("From the last page's", "of the previous page"),
    ("The path is none", "Invalid path"),
    ("It finished otherwise", "The job has already finished"),
    ("/// For people", "a human-readable …"),
    ("all the same.", "nevertheless"),
    ("trying again\"", "retrying"),
    ("enum Fault", "ClientError"),
    ("fn beat(", "heartbeat"),
    ("fn nobody_", "no one, or name who is meant"),
    ("fn whole(", "name what is whole"),
    ("fn what_", "a test's name is a sentence with a subject"),
    (".hand(", ".manual_worker("),
    ("struct Kept", "RetentionLimits"),
    ("let told =", "name what was sent or reported"),
    ("let said =", "name the message"),
];

/// Lines with other projects' words.
const OTHERS_WORDS: &[&str] = &["#[folder"];

/// Doc comments of one question word say nothing: a sentence names the thing.
const EMPTY_DOCS: &[&str] = &[
    "/// As what.",
    "/// How.",
    "/// What.",
    "/// When.",
    "/// Where.",
    "/// Which.",
    "/// Who.",
    "/// Whose.",
    "/// Why.",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with('.') || ["target", "prebuilt", "node_modules"].contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            collect(&path, found);
        } else if ["rs", "md", "sh", "yaml", "toml", "py", "js", "Dockerfile"]
            .iter()
            .any(|kind| path.extension().is_some_and(|e| e == *kind))
        {
            found.push(path);
        }
    }
}

fn is_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Whether `line` has `word` with nothing that continues it on either side.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word)
        .any(|(at, _)| !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word))
}

#[test]
fn readers_meet_terms_that_they_know() {
    let mut files = vec![];
    collect(&root(), &mut files);
    assert!(files.len() > 300, "{} files are not all", files.len());
    let mut found = vec![];
    for path in files.iter().filter(|path| !path.ends_with("stories/source/language.rs")) {
        let text = fs::read_to_string(path).unwrap();
        let is_ours = |(_, line): &(usize, &str)| !OTHERS_WORDS.iter().any(|words| line.contains(words));
        for (number, line) in text.lines().enumerate().filter(is_ours) {
            let words = WORDS.iter().filter(|(word, _)| has_word(line, word));
            let phrases = PHRASES.iter().filter(|(phrase, _)| line.contains(phrase));
            let empty = EMPTY_DOCS.iter().filter(|doc| line.trim() == **doc).map(|doc| (*doc, "a sentence"));
            for (banned, term) in words.chain(phrases).copied().chain(empty) {
                let place = path.strip_prefix(root()).unwrap().display();
                found.push(format!("{place}:{}: \"{banned}\": use \"{term}\"", number + 1));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn only_whole_words_count() {
    for (line, expected) in [("a Seat.", true), ("Seats", false), ("my_Seat", false), ("Seat", true)] {
        assert_eq!(has_word(line, "Seat"), expected, "{line}");
    }
}
