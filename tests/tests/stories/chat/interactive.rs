//! `gantry chat` at a terminal, which `script` of util-linux provides.

use std::process::Stdio;

use protocol::{Notification, NotificationKind, Page};
use serde_json::json;
use tests::{User, World, install::program::gantry};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{
    commands::only_job,
    terminal::{DENYING_RULE, environment, script},
};

const ASKS: &str = "Allow it? y/n/always (Ctrl-C stops the turn) ";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// A person at a terminal in which `gantry chat` runs.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    output: ChildStdout,
    /// What was shown and not yet looked at.
    shown: String,
}

impl Terminal {
    fn open(world: &World) -> Self {
        let mut command = Command::new("/usr/bin/script");
        command.args(["--quiet", "--return", "--flush", "--echo", "always", "--command"]);
        // Without `exec` the shell would end by the Ctrl-C that the program has handled.
        command.arg(format!("exec {} chat", gantry().display())).arg("/dev/null");
        command.env_clear().envs(environment(world, "ada")).env("NO_COLOR", "1").current_dir("/").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("script of util-linux can be run");
        let (keys, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, keys, output, shown: String::new() }
    }

    async fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).await.unwrap();
    }

    /// Waits until this is shown, and returns what was shown before it.
    async fn shows(&mut self, text: &str) -> String {
        let mut bytes = [0; 4096];
        let waited = format!("the terminal to show {text:?}");
        tests::within(&waited, async {
            loop {
                if let Some((before, after)) = self.shown.split_once(text) {
                    let (before, after) = (before.to_owned(), after.to_owned());
                    self.shown = after;
                    return before;
                }
                let count = self.output.read(&mut bytes).await.unwrap();
                assert_ne!(count, 0, "{text:?} was not shown, but {:?}", self.shown);
                self.shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        })
        .await
    }

    /// Waits for the end. Returns what was shown, and the exit code.
    async fn ended(mut self) -> (String, Option<i32>) {
        let mut rest = vec![];
        tests::within("the output to end", self.output.read_to_end(&mut rest)).await.unwrap();
        let status = tests::within("the chat to end", self.child.wait()).await.unwrap();
        (self.shown + &String::from_utf8_lossy(&rest), status.code())
    }
}

#[tokio::test]
async fn the_prompt_stays_on_a_separate_line() {
    let world = World::builder().script(script()).config_file(DENYING_RULE.to_owned()).build().await;
    let mut chat = Terminal::open(&world);
    let head = chat.shows("> ").await;
    assert_eq!(head, "thread main · the default model · /help for commands\r\n");
    chat.press("please not\n").await;
    chat.shows("as you say").await;
    chat.shows("\r\n> ").await;
    // The first Ctrl-C clears the line.
    chat.press("half").await;
    chat.shows("half").await;
    chat.press(CTRL_C).await;
    chat.shows("^C\r\nPress Ctrl-C again, or Ctrl-D, to leave.\r\n> ").await;
    chat.press("hello\n").await;
    chat.shows("\r\nYou said: hello\r\n> ").await;
    // The end of a job arrives at the prompt.
    chat.press("/job count the lines\n").await;
    chat.shows("Its end is posted here.\r\n> ").await;
    let job = only_job(&world.user("ada")).await.id;
    world.manual_worker(job).await.finish("There are 42 lines.").await;
    chat.shows("\r\njob ").await;
    chat.shows("\r\nThere are 42 lines.\r\n> ").await;
    chat.press(CTRL_D).await;
    assert_eq!(chat.ended().await, ("\r\n".to_owned(), Some(0)));
    // The next conversation shows what was last said.
    let mut chat = Terminal::open(&world);
    let head = chat.shows("> ").await;
    assert!(head.contains("you: hello\r\nYou said: hello\r\n") && head.contains("thread main"), "{head}");
    chat.press(CTRL_C).await;
    chat.shows("to leave.\r\n> ").await;
    chat.press(CTRL_C).await;
    assert_eq!(chat.ended().await, ("^C\r\n".to_owned(), Some(130)));
    world.finish().await;
}

/// The scripted model answers what it read of the last call, before it makes another one.
async fn go_on(chat: &mut Terminal) {
    chat.press("go on\n").await;
    chat.shows(" said: ").await;
    chat.shows("\r\n> ").await;
}

async fn unread_requests(user: &User) -> usize {
    let page: Page<Notification> = user.get("/api/notifications?unread=true").await.expect(200).json();
    page.items.iter().filter(|one| one.kind == NotificationKind::GateRequired).count()
}

#[tokio::test]
async fn while_a_call_waits_commands_work_and_the_question_comes_back() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    let mut chat = Terminal::open(&world);
    chat.shows("> ").await;
    chat.press("tell me\n").await;
    chat.shows(ASKS).await;
    assert_eq!(unread_requests(&ada).await, 1);
    chat.press("/help\n").await;
    chat.shows("/job TEXT").await;
    chat.shows(ASKS).await;
    chat.press("/status\n").await;
    chat.shows("This thread is awaiting_approval.").await;
    chat.shows(ASKS).await;
    chat.press("perhaps\n").await;
    chat.shows("answer y, n or always; or give a command").await;
    chat.shows(ASKS).await;
    chat.press(CTRL_C).await;
    chat.shows("^C\r\n→ message").await;
    chat.shows("\r\n← message stopped with its turn\r\nStopped.\r\n> ").await;
    go_on(&mut chat).await;
    for (answer, shown) in [("n\n", "← message denied\r\n"), ("/stop\n", "← message stopped with its turn\r\n")] {
        chat.press("tell me\n").await;
        chat.shows(ASKS).await;
        chat.press(answer).await;
        chat.shows(shown).await;
        chat.shows("\r\n> ").await;
        go_on(&mut chat).await;
    }
    chat.press("tell me\n").await;
    chat.shows(ASKS).await;
    ada.post("/api/chat/approval", &json!({"thread_id": "main", "decision": "deny", "reason": "no"})).await.expect(200);
    chat.shows("\r\nthe call was denied elsewhere\r\n").await;
    chat.shows("← message denied: no\r\n").await;
    chat.shows("\r\n> ").await;
    assert_eq!(unread_requests(&ada).await, 0);
    chat.press(CTRL_D).await;
    assert_eq!(chat.ended().await, ("\r\n".to_owned(), Some(0)));
    world.finish().await;
}
