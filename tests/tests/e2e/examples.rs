//! The examples in the help of the command line, all of them in one shell, and how commands fail: the same everywhere.

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
};

use orchestrator::{EXAMPLES, Example, ExampleKind};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::within;
use tokio::process::Command;

use crate::{program::gantry, stack::Stack};

/// The URL in the examples.
const URL: &str = "http://127.0.0.1:8080";
const SECONDS_OF_ENDLESS_EXAMPLES: u32 = 3;
const INTERRUPTED: i32 = 130;
/// Names the user ada, without a signature.
const FOREIGN_TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.AAAA";

/// A person's shell on the machine of the server.
struct Shell {
    directory: TempDir,
    environment: Vec<(String, String)>,
}

impl Shell {
    fn new(stack: &Stack) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        write("notes.txt", "one\ntwo\n");
        fs::create_dir(directory.path().join("src")).unwrap();
        write("src/main.py", "print('hello')\n");
        write("policy.json", &json!({"disabled_tools": [], "user_disabled_tools": {"eve": ["http"]}}).to_string());
        write("script.yaml", "model: m\nrules:\n  - reply: { text: hello }\n");
        write(
            "routines.yaml",
            "- name: nightly\n  trigger: { type: cron, schedule: 0 3 * * * }\n  action: { type: lightweight, prompt: echo hello }\n",
        );
        let mut environment = stack.settings().to_vec();
        let programs = gantry().parent().unwrap().display().to_string();
        let path =
            std::env::join_paths([programs.as_str(), "/usr/local/bin", "/usr/bin", "/bin"].map(Path::new)).unwrap();
        environment.push(("PATH".to_owned(), path.to_str().unwrap().to_owned()));
        environment.push(("HOME".to_owned(), directory.path().display().to_string()));
        Self { directory, environment }
    }

    async fn run(&self, line: &str) -> Output {
        let mut command = Command::new("bash");
        command.args(["-o", "pipefail", "-c", line]).current_dir(self.directory.path()).kill_on_drop(true);
        command.env_clear().envs(self.environment.iter().cloned()).stdin(Stdio::null());
        within(line, command.output()).await.unwrap()
    }
}

/// `--json` added to a line that is a single command.
fn with_json(line: &str) -> Option<String> {
    let is_single =
        line.starts_with("gantry ") && !line.contains(['|', '>', '&', ';', '$']) && !line.contains("--json");
    let (command, input) = line.split_once('<').unwrap_or((line, ""));
    let input = if input.is_empty() { String::new() } else { format!("<{input}") };
    is_single.then(|| format!("{} --json {input}", command.trim()))
}

async fn demo() -> Stack {
    Stack::builder()
        .set("GANTRY_LLM_PROVIDER", "")
        .set("GANTRY_LLM_SCRIPT", "")
        .set("GANTRY_LLM_API_KEY", "")
        .start()
        .await
}

async fn run_all(is_json: bool) {
    let mut stack = demo().await;
    let shell = Shell::new(&stack);
    let admin = stack.token("ops", "admin").await;
    fs::write(shell.directory.path().join("admin.txt"), admin).unwrap();
    let mut problems = Vec::new();
    let mut is_stopped = false;
    for example in EXAMPLES.iter().filter(|example| example.kind != ExampleKind::ChangedMcpTool) {
        if matches!(example.kind, ExampleKind::Offline | ExampleKind::Server) && !is_stopped {
            stack.stop().await;
            is_stopped = true;
        }
        let json = with_json(example.line).filter(|_| is_json && example.kind != ExampleKind::Server);
        let line = json.as_deref().unwrap_or(example.line).replace(URL, stack.base());
        let line = match example.kind {
            ExampleKind::Client | ExampleKind::Offline | ExampleKind::ChangedMcpTool => line,
            ExampleKind::Endless | ExampleKind::Server => {
                format!("timeout --preserve-status --signal INT {SECONDS_OF_ENDLESS_EXAMPLES} {line}")
            }
        };
        let ended = shell.run(&line).await;
        let code = ended.status.code().unwrap_or(-1);
        let is_expected = code == 0 || example.kind == ExampleKind::Endless && code == INTERRUPTED;
        let text = String::from_utf8_lossy(&ended.stdout);
        let not_json = text.lines().find(|line| serde_json::from_str::<Value>(line).is_err());
        if !is_expected || json.is_some() && not_json.is_some() && !line.contains("--output -") {
            problems.push(format!("{line}\nexit {code}\n{text}{}", String::from_utf8_lossy(&ended.stderr)));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n---\n"));
}

#[tokio::test]
async fn every_example_of_the_help_works() {
    run_all(false).await;
}

#[tokio::test]
async fn every_command_prints_json() {
    run_all(true).await;
}

/// Commands that talk to the server with the token of the caller, one example of each.
fn of_clients() -> impl Iterator<Item = &'static Example> {
    let local = ["token", "login", "logout", "context", "doctor", "config", "backup", "completion", "llm"];
    EXAMPLES.iter().filter(move |example| {
        let group = example.command.split(' ').next().unwrap_or_default();
        matches!(example.kind, ExampleKind::Client | ExampleKind::Endless)
            && !local.contains(&group)
            && with_json(example.line).is_some()
    })
}

#[tokio::test]
async fn every_command_fails_in_the_same_shape() {
    let mut stack = demo().await;
    let mut shell = Shell::new(&stack);
    fs::write(shell.directory.path().join("admin.txt"), FOREIGN_TOKEN).unwrap();
    fs::write(shell.directory.path().join("token.txt"), FOREIGN_TOKEN).unwrap();
    shell.environment.push(("GANTRY_TOKEN".to_owned(), FOREIGN_TOKEN.to_owned()));
    let mut problems = Vec::new();
    let cases = [(stack.base().to_owned(), 6, "unauthorized"), ("http://127.0.0.1:1".to_owned(), 3, "unreachable")];
    for (url, exit, code) in cases {
        for example in of_clients() {
            let line = format!("{} --url {url}", with_json(example.line).unwrap_or_default());
            // The input of a shell comes last.
            let line = match line.split_once('<') {
                Some((command, rest)) => {
                    format!("{command} --url {url} < {}", rest.split(" --url").next().unwrap_or_default())
                }
                None => line,
            };
            let ended = shell.run(&line).await;
            let error: Value = serde_json::from_slice(&ended.stderr).unwrap_or_default();
            let is_whole = error["title"].is_string() && error["detail"].is_string();
            let found = (ended.status.code(), error["code"].as_str(), error["exit_code"].as_i64());
            if found != (Some(exit), Some(code), Some(i64::from(exit))) || !is_whole {
                problems.push(format!("{line}\n{found:?}\n{}", String::from_utf8_lossy(&ended.stderr)));
            }
        }
    }
    stack.stop().await;
    assert!(problems.is_empty(), "{}", problems.join("\n---\n"));
}
