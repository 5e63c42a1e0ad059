//! Chat: the names of threads, the commands in messages, and the words that answer a tool call that waits. Pure.

use protocol::{MAIN_THREAD, ThreadId};

/// Key of the thread that keeps what a user's heartbeats did.
pub const HEARTBEAT_THREAD: &str = "heartbeat";

/// Maximum length of a thread's title, in characters.
const MAX_TITLE_CHARS: usize = 80;

/// A thread as a request names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadRef {
    Id(ThreadId),
    /// By its key, which is one of the caller's.
    Key(String),
}

impl ThreadRef {
    /// The thread `main`.
    pub fn main() -> Self {
        Self::Key(MAIN_THREAD.to_owned())
    }

    /// Reads an id or a key. `None`: it is neither, so no thread has it.
    pub fn parse(text: &str) -> Option<Self> {
        if [MAIN_THREAD, HEARTBEAT_THREAD].contains(&text) {
            return Some(Self::Key(text.to_owned()));
        }
        text.parse().ok().map(Self::Id)
    }
}

/// A command in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Creates a job with this prompt.
    Job(String),
    /// Shows the thread's state and the user's unfinished jobs.
    Status,
    /// Cancels a job, named by its id or a part of it.
    Cancel(String),
    Help,
    /// Stops the current turn.
    Stop,
    /// Starts a new conversation.
    New,
    /// Summarises the older messages for the model.
    Compact,
    /// Not a command; the first word of the message.
    Unknown(String),
}

/// The list of commands.
pub const HELP: &str = "\
/job TEXT    create a job with this prompt; its result is posted here
/status      show what this thread does and your unfinished jobs
/cancel ID   cancel a job; the first or last characters of its id are enough, at least 4
/stop        stop the current turn
/new         start a new conversation
/compact     summarise the older messages for the model
/help        show this list
Anything else is a message to the agent. To send a text that begins with /, put a space before it.";

impl Command {
    /// The command of a message; `None` for a message to the agent.
    pub fn parse(content: &str) -> Option<Self> {
        let command = content.strip_prefix('/')?;
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        Some(match (name, rest.is_empty()) {
            ("job", _) => Self::Job(rest.to_owned()),
            ("cancel", _) => Self::Cancel(rest.to_owned()),
            ("status", true) => Self::Status,
            ("help", true) => Self::Help,
            ("stop", true) => Self::Stop,
            ("new", true) => Self::New,
            ("compact", true) => Self::Compact,
            _ => Self::Unknown(name.to_owned()),
        })
    }
}

/// A word that answers a tool call that waits for approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerWord {
    /// The call runs.
    Yes,
    /// The call does not run.
    No,
    /// The call runs, and so do later calls of the tool, where that can be remembered.
    Always,
}

impl AnswerWord {
    /// Reads a message that is such a word and nothing else.
    pub fn parse(content: &str) -> Option<Self> {
        let word = content.trim();
        [("yes", Self::Yes), ("no", Self::No), ("always", Self::Always)]
            .into_iter()
            .find_map(|(name, answer)| word.eq_ignore_ascii_case(name).then_some(answer))
    }
}

/// The title of a thread whose first message this is.
pub fn title_of(content: &str) -> String {
    let line = content.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut title: String = line.chars().filter(|c| !c.is_control()).take(MAX_TITLE_CHARS + 1).collect();
    if title.chars().count() > MAX_TITLE_CHARS {
        title = title.chars().take(MAX_TITLE_CHARS - 1).chain(['…']).collect();
    }
    title
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/job count the lines\nof a file", Some(Command::Job("count the lines\nof a file".to_owned())))]
    #[case("/job", Some(Command::Job(String::new())))]
    #[case("/status ", Some(Command::Status))]
    #[case("/cancel 0193", Some(Command::Cancel("0193".to_owned())))]
    #[case("/help", Some(Command::Help))]
    #[case("/stop", Some(Command::Stop))]
    #[case("/new", Some(Command::New))]
    #[case("/compact", Some(Command::Compact))]
    #[case("/stop it", Some(Command::Unknown("stop".to_owned())))]
    #[case("/Help", Some(Command::Unknown("Help".to_owned())))]
    #[case("/etc/passwd is readable", Some(Command::Unknown("etc/passwd".to_owned())))]
    #[case(" /help", None)]
    #[case("help", None)]
    #[case("", None)]
    fn a_message_that_begins_with_a_slash_is_a_command(#[case] content: &str, #[case] expected: Option<Command>) {
        assert_eq!(Command::parse(content), expected);
    }

    #[rstest]
    #[case("yes", Some(AnswerWord::Yes))]
    #[case(" YES\n", Some(AnswerWord::Yes))]
    #[case("No", Some(AnswerWord::No))]
    #[case("always", Some(AnswerWord::Always))]
    #[case("yes please", None)]
    #[case("y", None)]
    #[case("", None)]
    fn only_a_plain_word_answers(#[case] content: &str, #[case] expected: Option<AnswerWord>) {
        assert_eq!(AnswerWord::parse(content), expected);
    }

    #[test]
    fn a_thread_is_named_by_its_id_or_a_known_key() {
        let id = ThreadId::generate();
        assert_eq!(ThreadRef::parse(&id.to_string()), Some(ThreadRef::Id(id)));
        assert_eq!(ThreadRef::parse("main"), Some(ThreadRef::main()));
        assert_eq!(ThreadRef::parse("heartbeat"), Some(ThreadRef::Key("heartbeat".to_owned())));
        for text in ["", "Main", "routine:x", "other"] {
            assert_eq!(ThreadRef::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_title_is_the_first_line_that_says_something() {
        assert_eq!(title_of("\n  hello\tthere \nmore"), "hellothere");
        let long = title_of(&"ä".repeat(200));
        assert_eq!((long.chars().count(), long.ends_with('…')), (80, true));
    }
}
