//! The command line on a terminal of 80 and of 120 columns, as `tmux` shows it.
//!
//! The recorded sessions are in `golden`, with ids, times and durations masked. `GANTRY_UPDATE_GOLDEN=1` writes them
//! again.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use orchestrator::Environment;
use regex::Regex;
use tempfile::TempDir;
use tests::until;

use crate::{program::gantry, stack::Stack};

const LINES_OF_TERMINAL: &str = "200";

/// The commands of the recorded session.
const SESSION: [&str; 5] = [
    r#"gantry job run --title "Count to twelve, and print every number on a different line." "run: seq 1 12""#,
    r#"gantry job run --label team=core --limit max_iterations=1 "run: echo one""#,
    "gantry job list",
    "gantry job list --wide",
    "gantry job show latest",
];

/// A terminal with a shell, without a configuration.
struct Terminal {
    directory: TempDir,
}

impl Terminal {
    fn open(columns: &str, stack: &Stack, token: &str) -> Self {
        let terminal = Self { directory: tempfile::tempdir().unwrap() };
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", gantry().parent().unwrap().display());
        let home = terminal.directory.path().display().to_string();
        let url = stack.base();
        let shell = format!(
            "env -i PATH={path} HOME={home} TERM=screen PS1='$ ' TZ=UTC LANG=C.UTF-8 GANTRY_URL={url} GANTRY_TOKEN={token} bash --norc --noprofile"
        );
        terminal.tmux(&["new-session", "-d", "-x", columns, "-y", LINES_OF_TERMINAL, &shell]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let socket = self.directory.path().join("tmux");
        let mut command = Command::new("tmux");
        command.args(["-u", "-f", "/dev/null", "-S"]).arg(socket).args(arguments).env("LANG", "C.UTF-8");
        let output = command.output().expect("the tests need tmux; tests/run.sh installs it");
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn enter(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.tmux(&["send-keys", "Enter"]);
    }

    fn screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p"]);
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Runs a command to its end and returns what the terminal shows of it.
    async fn run(&self, line: &str) -> String {
        self.enter("clear");
        until("an empty terminal", async || self.screen() == "$").await;
        self.enter(line);
        until(line, async || self.screen().ends_with("\n$")).await;
        self.screen().trim_end_matches("\n$").to_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// What differs between two runs, replaced.
fn masked(screen: &str) -> String {
    let masks = [
        (r"gantry-job-\S+", "<container>"),
        (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id of 36 characters>"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "<time>"),
        (r"(?m)^[0-9a-f]{8}  ", "<id>      "),
        (r"(?m)  [0-9a-f]{8}$", "  <id>"),
        (r" in \d+(\.\d)? s", " in <n> s"),
        (r"\d+ ms", "<n> ms"),
        (r" +\d+[smh]\b", " <age>"),
    ];
    masks.into_iter().fold(screen.to_owned(), |text, (pattern, mask)| {
        Regex::new(pattern).unwrap().replace_all(&text, mask).into_owned()
    })
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/golden").join(name)
}

async fn record(columns: &str) {
    let mut stack = Stack::start().await;
    let token = stack.token("ada", "user").await;
    let terminal = Terminal::open(columns, &stack, &token);
    let mut session = String::new();
    for line in SESSION {
        let screen = terminal.run(line).await;
        let width = screen.lines().map(|line| line.chars().count()).max().unwrap_or_default();
        assert!(width <= columns.parse().unwrap(), "{screen}");
        session.push_str(&masked(&screen));
        session.push_str("\n\n");
    }
    stack.stop().await;
    let file = golden(&format!("terminal-{columns}.txt"));
    if Environment::from_process().get("GANTRY_UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, &session).unwrap();
    }
    let recorded = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(session, recorded, "{} is not what the terminal shows:\n{session}", file.display());
}

#[tokio::test]
async fn a_session_at_80_columns() {
    record("80").await;
}

#[tokio::test]
async fn a_session_at_120_columns() {
    record("120").await;
}

#[tokio::test]
async fn the_last_line_shows_what_a_job_is_doing_and_goes_when_it_ends() {
    let mut stack = Stack::start().await;
    let token = stack.token("ada", "user").await;
    let terminal = Terminal::open("80", &stack, &token);
    terminal.enter(r#"gantry job run "run: until [ -e go ]; do sleep 0.1; done; echo it is over""#);
    let last_line = || terminal.screen().lines().next_back().unwrap_or_default().to_owned();
    let running = Regex::new(r"^\S \d+s · \d+ tokens · running \(\d+s\) until \[ -e go \]").unwrap();
    until("the line of a running command", async || running.is_match(&last_line())).await;
    let first = last_line();
    until("the next second", async || running.is_match(&last_line()) && last_line()[3..] != first[3..]).await;

    let other = Terminal::open("80", &stack, &token);
    other.run("echo | gantry job put latest - go").await;
    until("the end", async || terminal.screen().ends_with("\n$")).await;
    let screen = terminal.screen();
    assert!(screen.contains("it is over") && !screen.contains(" · "), "{screen}");
    stack.stop().await;
}
