//! `gantry completion`: shell completion, which asks the server for ids.
//!
//! Completion never fails and prints no errors: without a server there are no candidates.

use std::{ffi::OsStr, time::Duration};

use clap::{Args, Command};
use clap_complete::{
    CompletionCandidate, Shell,
    engine::ArgValueCompleter,
    env::{CompleteEnv, Shells},
};
use protocol::{Limits, Page};
use serde_json::Value;

use super::{
    client::Client,
    exit::{CliError, Exit},
    ids::short_id,
    output::{Format, Output, one_line, truncate},
};
use base::Environment;

/// The variable by which the script of a shell asks for candidates.
const VARIABLE: &str = "COMPLETE";
/// People wait for a completion.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Objects among which an id is completed.
const MAX_CANDIDATES: usize = 50;
const MAX_HELP_CHARS: usize = 40;
#[derive(Debug, Clone, Copy, Args)]
pub struct CompletionArgs {
    /// Shell
    shell: Shell,
}

impl CompletionArgs {
    /// Prints the script.
    pub fn run(self, output: &mut Output) -> Result<Exit, CliError> {
        let shells = Shells::builtins();
        let shell = self.shell.to_string();
        let completer =
            shells.completer(&shell).ok_or_else(|| CliError::Usage(format!("no completion for {shell}")))?;
        let mut script = Vec::new();
        completer
            .write_registration(VARIABLE, "gantry", "gantry", "gantry", &mut script)
            .map_err(|error| CliError::failed("cannot write the script", error))?;
        match output.format {
            Format::Text => output.raw(&script)?,
            Format::Json => {
                let text = String::from_utf8_lossy(&script);
                output.json(&serde_json::json!({"shell": shell, "script": text}))?;
            }
        }
        Ok(Exit::Success)
    }
}

/// Prints candidates if a shell asks for them. `false`: it does not.
pub fn answer_shell(environment: &Environment, command: fn() -> Command) -> bool {
    if environment.get(VARIABLE).is_none() {
        return false;
    }
    let complete = CompleteEnv::with_factory(move || with_completers(command())).var(VARIABLE);
    complete.try_complete(std::env::args_os(), None).unwrap_or(true)
}

/// Objects of a command group: the group, the list of the API, and the field that names one on the command line.
const GROUPS: [(&str, &str, &str); 6] = [
    ("job", "/api/jobs", "id"),
    ("runs", "/api/runs", "id"),
    ("gate", "/api/gates", "id"),
    ("notification", "/api/notifications", "id"),
    ("routine", "/api/routines", "name"),
    ("cron", "/api/routines", "name"),
];

/// Adds the completion of values to the arguments of all commands.
fn with_completers(command: Command) -> Command {
    GROUPS.into_iter().fold(command, |command, (group, list, field)| {
        command.mut_subcommand(group, |group| {
            group.mut_subcommands(|command| {
                command.mut_args(|argument| match argument.get_id().as_str() {
                    "id" | "ids" | "routine" | "parent" if argument.get_long() != Some("id") => {
                        argument.add(ArgValueCompleter::new(move |current: &OsStr| objects(list, field, current)))
                    }
                    "limits" => argument.add(ArgValueCompleter::new(limits)),
                    "label" | "labels" => argument.add(ArgValueCompleter::new(labels)),
                    _ => argument,
                })
            })
        })
    })
}

/// The limits of a job that `--limit` takes.
fn limits(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let Ok(Value::Object(limits)) = serde_json::to_value(Limits::default()) else { return Vec::new() };
    let names = limits.keys().map(|name| format!("{name}="));
    names.filter(|name| name.starts_with(current.as_ref())).map(CompletionCandidate::new).collect()
}

/// The newest objects of a list. An id is completed from its short form or from its beginning.
fn objects(list: &str, field: &str, current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let text = |item: &Value, field: &str| item[field].as_str().unwrap_or_default().to_owned();
    let candidate = |item: &Value| {
        let whole = text(item, field);
        let short = if field == "id" { short_id(&whole) } else { whole.clone() };
        let name = [short, whole].into_iter().find(|name| name.starts_with(current.as_ref()))?;
        let about = ["title", "routine_name", "tool", "description"].map(|field| text(item, field));
        let about = about.into_iter().find(|text| !text.is_empty());
        Some(CompletionCandidate::new(name).help(about.map(|text| truncate(&one_line(&text), MAX_HELP_CHARS).into())))
    };
    let items = items(list);
    let latest = (field == "id" && !items.is_empty() && super::ids::LATEST.starts_with(current.as_ref()))
        .then(|| CompletionCandidate::new(super::ids::LATEST).help(Some("the newest".into())));
    items.iter().filter_map(candidate).chain(latest).collect()
}

/// The labels of the newest jobs.
fn labels(current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    let mut labels: Vec<String> = items("/api/jobs")
        .iter()
        .filter_map(|job| job["labels"].as_object())
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .filter(|label| label.starts_with(current.as_ref()))
        .collect();
    labels.sort();
    labels.dedup();
    labels.into_iter().map(CompletionCandidate::new).collect()
}

/// A page of a list; empty if the server does not answer in time.
fn items(list: &str) -> Vec<Value> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    runtime.block_on(async {
        let Ok(client) = Client::from_environment(&Environment::from_process()) else { return Vec::new() };
        let query = [("limit", MAX_CANDIDATES.to_string())];
        let page = tokio::time::timeout(TIMEOUT, client.get::<Page<Value>>(list, &query)).await;
        page.ok().and_then(Result::ok).map(|page| page.items).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_completed() {
        assert_eq!(super::limits(OsStr::new("max_to")).len(), 2);
    }

    #[test]
    fn ids_and_labels_have_completers_and_filters_by_part_do_not() {
        let command =
            with_completers(<crate::Command as clap::Subcommand>::augment_subcommands(Command::new("gantry")));
        let completed = |path: &[&str]| -> Vec<String> {
            let command = path.iter().fold(&command, |command, name| command.find_subcommand(name).unwrap());
            let with = command.get_arguments().filter(|argument| argument.get::<ArgValueCompleter>().is_some());
            with.map(|argument| argument.get_id().to_string()).collect()
        };
        assert_eq!(completed(&["job", "show"]), ["id"]);
        assert_eq!(completed(&["job", "wait"]), ["ids"]);
        assert_eq!(completed(&["job", "list"]), ["label", "parent", "routine"]);
        assert_eq!(completed(&["job", "run"]), ["limits", "labels"]);
        assert_eq!(completed(&["routine", "show"]), ["routine"]);
    }
}
