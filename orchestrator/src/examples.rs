//! The examples in the help of each command.
//!
//! Owns their texts and their order: the tests run all of them from top to bottom in one shell on a real server, with
//! the built-in demo model, so that each can rely on those before it.

use clap::Command;

/// When an example runs, for the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExampleKind {
    /// While the server runs. It succeeds.
    Client,
    /// While the server runs, until it is interrupted.
    Endless,
    /// While no server runs. It succeeds.
    Offline,
    /// It starts a server, which runs until it is interrupted.
    Server,
    /// While the server runs with an MCP server `srv`, whose tool `echo` has changed. It succeeds.
    ChangedMcpTool,
}

/// A line of a shell that shows how a command is used.
#[derive(Debug, Clone, Copy)]
pub struct Example {
    /// The names of the command and its groups, such as `job run`.
    pub command: &'static str,
    pub line: &'static str,
    pub kind: ExampleKind,
}

const fn client(command: &'static str, line: &'static str) -> Example {
    Example { command, line, kind: ExampleKind::Client }
}

const fn endless(command: &'static str, line: &'static str) -> Example {
    Example { command, line, kind: ExampleKind::Endless }
}

const fn offline(command: &'static str, line: &'static str) -> Example {
    Example { command, line, kind: ExampleKind::Offline }
}

const fn server(command: &'static str, line: &'static str) -> Example {
    Example { command, line, kind: ExampleKind::Server }
}

pub const EXAMPLES: &[Example] = &[
    client("token create", "gantry token create --user ada > token.txt"),
    client("token create", "gantry token create --user ops --role admin --ttl 12h"),
    client("token list", "gantry token list"),
    client("login", "gantry login --url http://127.0.0.1:8080 < token.txt"),
    client("login", "gantry login staging --url http://127.0.0.1:8080 --token-file token.txt"),
    client("context list", "gantry context list"),
    client("context use", "gantry context use default"),
    client("context show", "gantry context show staging"),
    client("context remove", "gantry context remove staging"),
    client("whoami", "gantry whoami"),
    client("dashboard", "gantry dashboard"),
    client("doctor", "gantry doctor"),
    client("doctor", "gantry doctor --install"),
    client("job run", r#"gantry job run "run: uname -a""#),
    client("job run", r#"gantry job run --file notes.txt --limit max_tokens=9000 "run: wc notes.txt""#),
    client("job run", r#"gantry job run --detach --label team=core "count slowly""#),
    client("job list", "gantry job list --state pending,in_progress --label team=core"),
    client("job list", "gantry job list --all --quiet"),
    client("job list", "gantry job list --state failed --since 24h"),
    client("job ps", "gantry job ps --wide"),
    endless("job top", "gantry job top"),
    client("job prompt", r#"gantry job prompt latest "count by ten""#),
    client("job put", "gantry job put latest notes.txt"),
    client("job put", "gantry job put latest src"),
    client("job put", "tar -cf - src | gantry job put latest --archive -"),
    client("job cancel", r#"gantry job cancel latest --reason "no longer needed""#),
    client("job wait", "gantry job wait latest || echo it did not complete"),
    client("job restart", r#"gantry job restart latest --prompt "run: ls -l" --follow"#),
    client("job show", "gantry job show latest"),
    client("job show", "gantry job show latest --json | grep -o '\"state\":\"[a-z]*\"'"),
    client("job events", "gantry job events latest --verbose"),
    client("job events", "gantry job events latest --follow"),
    client("job actions", "gantry job actions latest"),
    client("job llm-calls", "gantry job llm-calls latest"),
    client("job egress", "gantry job egress latest"),
    client("job prompts", "gantry job prompts latest"),
    client("job logs", "gantry job logs latest"),
    client("job create", r#"gantry job create --hold --title report "run: wc -l notes.txt src/*""#),
    client("job put", "gantry job put latest notes.txt && gantry job put latest src"),
    client("job start", "gantry job start latest"),
    client("job wait", "gantry job wait latest"),
    client("job files", "gantry job files latest"),
    client("job files", "gantry job files latest src"),
    client("job files", "gantry job files latest --q test"),
    client("job get", "gantry job get latest notes.txt --output -"),
    client("job get", "gantry job get latest src --output results"),
    client("job get", "gantry job get latest --archive --output workspace.tar"),
    client("job diff", "gantry job diff latest"),
    client("job diff", "gantry job diff latest src"),
    client("job diff", "gantry job diff latest --name-status"),
    client("job run", r#"gantry job run --review "run: date""#),
    client("job accept", "gantry job accept latest"),
    client(
        "job reject",
        "id=$(gantry job create --review 'run: date') && gantry job wait $id \\\n    && gantry job reject $id 'wrong date'",
    ),
    client("job remove", "gantry job remove latest"),
    client("job remove", "gantry job list --state failed,cancelled -aq | xargs -r gantry job remove"),
    client("summary", "gantry summary"),
    client("usage", "gantry usage --by model"),
    client("usage", "gantry usage --by user,model --sort cost"),
    client("storage", "gantry storage"),
    client("chat", r#"echo "hello" | gantry chat"#),
    client("chat threads", "gantry chat threads"),
    client("chat", r#"echo "remember milk" | gantry chat --thread latest || gantry gate list"#),
    client("chat actions", "gantry chat actions main"),
    client("chat llm-calls", "gantry chat llm-calls main"),
    client("gate list", "gantry gate list"),
    client("gate show", "gantry gate show latest"),
    client("gate approve", "gantry gate approve latest"),
    client(
        "gate deny",
        "echo remember bread | gantry chat --thread latest \\\n    || gantry gate deny latest --reason 'not now'",
    ),
    client("chat stop", "gantry chat stop main || echo it has no turn in progress"),
    client("chat delete", "gantry chat delete latest"),
    client("tool list", "gantry tool list"),
    client("tool permission", "gantry tool permission shell ask_each_time"),
    client("memory put", "gantry memory put notes/team.md notes.txt"),
    client("memory put", r#"echo "Water the plants." | gantry memory put inbox.md"#),
    client("memory ls", "gantry memory ls notes"),
    client("memory cat", "gantry memory cat notes/team.md"),
    client("memory search", "gantry memory search plants"),
    client("memory history", "gantry memory history notes/team.md"),
    client("memory rm", "gantry memory rm notes/team.md"),
    client("secret set", "gantry secret set GITHUB_TOKEN < token.txt"),
    client("secret ls", "gantry secret ls"),
    client("secret rm", "gantry secret rm GITHUB_TOKEN"),
    client("settings set", "gantry settings set --timezone Europe/Oslo --quiet-hours 22:00-07:00"),
    client("settings show", "gantry settings show"),
    client(
        "routine create",
        "gantry routine create morning --cron 'every weekday at 9:00' \\\n    --timezone Europe/Berlin --prompt 'echo good morning'",
    ),
    client("routine create", r#"gantry routine create tidy --every 6h --prompt "run: ls" --dry-run"#),
    client("routine list", "gantry routine list"),
    client("routine show", "gantry routine show morning"),
    client("routine edit", r#"gantry routine edit morning --cron "every day at 8:30""#),
    client("routine upcoming", "gantry routine upcoming morning --count 3"),
    client("routine upcoming", "gantry routine upcoming"),
    client("routine run", "gantry routine run morning --wait"),
    client("routine runs", "gantry routine runs morning"),
    client("routine runs", "gantry routine runs morning --since 24h --json"),
    client("routine deliveries", "gantry routine deliveries morning"),
    client("routine disable", "gantry routine disable morning"),
    client("routine enable", "gantry routine enable morning"),
    client("routine apply", "gantry routine apply --file routines.yaml --dry-run"),
    client("routine apply", "gantry routine apply --file routines.yaml"),
    client("runs list", "gantry runs list --routine morning --since 24h"),
    client("runs show", "gantry runs show latest"),
    client("runs show", "gantry runs show latest --transcript"),
    client("runs llm-calls", "gantry runs llm-calls latest"),
    client("runs actions", "gantry runs actions latest"),
    client("runs export", "gantry runs export > runs.jsonl"),
    client("runs cancel", "gantry routine run morning && gantry runs cancel latest || echo too late"),
    client("routine delete", "gantry routine delete morning"),
    client(
        "cron add",
        "gantry cron add --name tea --cron '0 16 * * *' --tz Europe/London \\\n    --message 'echo tea time'",
    ),
    client("cron add", r#"gantry cron add --name once --at 20m --system-event "Call back""#),
    client("cron list", "gantry cron list --all"),
    client("cron status", "gantry cron status"),
    client("cron edit", r#"gantry cron edit tea --cron "0 17 * * *""#),
    client("cron disable", "gantry cron disable tea"),
    client("cron enable", "gantry cron enable tea"),
    client("cron run", "gantry cron run tea --force"),
    client("cron runs", "gantry cron runs tea"),
    client("cron rm", "gantry cron rm tea"),
    client("wake", r#"gantry wake --mode next-heartbeat --text "The build is green""#),
    client("notification ls", "gantry notification ls --unread"),
    client("notification read", "gantry notification ls --quiet | xargs -r gantry notification read"),
    client("message", r#"gantry message --channel support "The printer is on fire""#),
    client("system-event", r#"gantry system-event github issue.opened --payload '{"number": 7}'"#),
    client("events", "gantry events --kind state"),
    endless("events", "gantry events --follow"),
    client("audit", "gantry audit --token-file admin.txt --action job.create"),
    client("admin tool-policy", "gantry admin tool-policy --token-file admin.txt"),
    client("admin tool-policy", "gantry admin tool-policy policy.json --token-file admin.txt"),
    client("admin mcp list", "gantry admin mcp list --token-file admin.txt"),
    Example {
        command: "admin mcp approve",
        line: "gantry admin mcp approve srv echo",
        kind: ExampleKind::ChangedMcpTool,
    },
    client("config", "gantry config"),
    client("backup", "gantry backup backup.db"),
    client("completion", "source <(gantry completion bash)"),
    client("logout", "gantry logout"),
    client("token revoke", "gantry token revoke 01890000-0000-7000-8000-000000000000"),
    endless("llm serve", "gantry llm serve --script script.yaml --bind 127.0.0.1:0"),
    offline("secret rotate-key", "gantry secret rotate-key"),
    offline("dashboard", "gantry dashboard --admin"),
    server("serve", "gantry serve"),
    server("serve", "gantry serve --bind 127.0.0.1:0 --set max_parallel_jobs=2"),
];

/// Adds the examples to the help of the commands.
pub(crate) fn with_examples(command: Command) -> Command {
    add(command, "")
}

fn add(command: Command, path: &str) -> Command {
    let mut lines: Vec<&str> = Vec::new();
    for example in EXAMPLES.iter().filter(|example| example.command == path) {
        if !lines.contains(&example.line) {
            lines.push(example.line);
        }
    }
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = names.into_iter().fold(command, |command, name| {
        let below = format!("{path} {name}").trim_start().to_owned();
        command.mut_subcommand(name, |command| add(command, &below))
    });
    if lines.is_empty() {
        return command;
    }
    let before = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    command.after_help(format!("{before}Examples:\n  {}", lines.join("\n  ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::command;

    /// The names of all commands that do something.
    fn leaves(command: &Command, path: &str, found: &mut Vec<String>) {
        for below in command.get_subcommands() {
            let path = format!("{path} {}", below.get_name()).trim_start().to_owned();
            if !below.is_subcommand_required_set() {
                found.push(path.clone());
            }
            leaves(below, &path, found);
        }
    }

    #[test]
    fn every_command_has_an_example_and_every_example_a_command() {
        let mut commands = Vec::new();
        leaves(&command(), "", &mut commands);
        for command in &commands {
            assert!(EXAMPLES.iter().any(|example| example.command == command), "no example of {command}");
        }
        for example in EXAMPLES {
            assert!(commands.iter().any(|command| command == example.command), "no command {}", example.command);
            assert!(example.line.contains(&format!("gantry {}", example.command)), "{}", example.line);
            // Help at 80 columns would break a longer line, which then is two commands.
            assert!(example.line.lines().all(|line| line.chars().count() <= 76), "{}", example.line);
        }
    }
}
