//! The reference of all commands in `docs/cli.md`, as the help of each command prints it.
//!
//! Owns the comparison of that page with the commands. `GANTRY_UPDATE_DOCS=1` writes the page again.

use std::fmt::Write as _;

use clap::Command;

use base::Environment;
use cli::connection;

use crate::args::command;

/// Columns of the help in the page.
const WIDTH: usize = 100;
const START: &str = "<!-- commands: written by GANTRY_UPDATE_DOCS=1 cargo test -p orchestrator reference -->\n";
const END: &str = "<!-- end of commands -->";

/// Options that the page describes once.
const COMMON_OPTIONS: [&str; 5] =
    ["json", "timezone", connection::OPTIONS[0], connection::OPTIONS[1], connection::OPTIONS[2]];

fn without_common_options(command: Command) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let command = below.into_iter().fold(command, |command, name| command.mut_subcommand(name, without_common_options));
    command.mut_args(|argument| {
        // Some commands have a separate option with such a name.
        let is_common = argument.is_global_set() && COMMON_OPTIONS.contains(&argument.get_id().as_str());
        if is_common { argument.hide(true) } else { argument }
    })
}

fn write_command(text: &mut String, command: &mut Command, path: &str, level: usize) {
    // The option exists only after the commands are built.
    let help = command.clone().mut_arg("help", |option| option.hide(true)).render_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    writeln!(text, "{} {path}\n\n```text\n{}\n```\n", "#".repeat(level), lines.join("\n").trim_end()).unwrap();
    for below in command.get_subcommands_mut().filter(|command| command.get_name() != "help" && !command.is_hide_set())
    {
        let path = format!("{path} {}", below.get_name());
        write_command(text, below, &path, level + 1);
    }
}

fn reference() -> String {
    let mut command = without_common_options(command().term_width(WIDTH));
    command.build();
    let mut text = String::from("\n");
    for below in command.get_subcommands_mut().filter(|command| command.get_name() != "help" && !command.is_hide_set())
    {
        let path = format!("gantry {}", below.get_name());
        write_command(&mut text, below, &path, 2);
    }
    text
}

#[test]
fn the_documentation_shows_the_help_of_every_command() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (before, rest) = document.split_once(START).expect("the start of the commands is marked");
    let (current, after) = rest.split_once(END).expect("the end of the commands is marked");
    let expected = reference();
    if Environment::from_process().get("GANTRY_UPDATE_DOCS").is_some() {
        std::fs::write(path, format!("{before}{START}{expected}{END}{after}")).unwrap();
        return;
    }
    let difference = current.lines().zip(expected.lines()).find(|(current, expected)| current != expected);
    assert!(
        current == expected,
        "docs/cli.md differs from the help; run this test with GANTRY_UPDATE_DOCS=1: {difference:?}"
    );
}
