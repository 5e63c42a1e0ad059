//! `gantry usage`, `storage` and `summary`: what was used, what is stored, and the numbers of jobs.

use chrono::NaiveDate;
use clap::Args;
use protocol::{JobCounts, UsageGroup, UsageLine, UsageSort, UserStorage};
use serde_json::Value;

use super::{
    client::{Client, List, Nothing, PageArgs},
    exit::CliError,
    input::one_of,
    output::{Column, Output, cost, one_line},
};

#[derive(Debug, Args)]
pub struct UsageArgs {
    /// Group by day, job, model, user, routine or label:KEY, or by two of them, separated by a comma
    #[arg(long, value_name = "GROUP", value_parser = UsageGroup::parse_list, default_value = "day")]
    by: Groups,
    /// Only usage on or after this day (UTC), such as 2030-01-31; of jobs: those created then
    #[arg(long, value_name = "DAY", value_parser = parse_day)]
    since: Option<NaiveDate>,
    /// Only usage before this day (UTC)
    #[arg(long, value_name = "DAY", value_parser = parse_day)]
    until: Option<NaiveDate>,
    /// Order: that of the groups, or the dearest first
    #[arg(long, value_parser = one_of(UsageSort::ALL), default_value = "group")]
    sort: UsageSort,
    /// Only this user (admins only)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

// For clap, which takes a Vec for an argument that is repeated.
type Groups = std::vec::Vec<UsageGroup>;

fn parse_day(text: &str) -> Result<NaiveDate, String> {
    text.parse().map_err(|_| "must be a day such as 2030-01-31".to_owned())
}

pub(super) async fn run(args: UsageArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let by: Vec<String> = args.by.iter().map(ToString::to_string).collect();
    let mut query = vec![("by", by.join(","))];
    query.extend(args.since.map(|day| ("since", day.to_string())));
    query.extend(args.until.map(|day| ("until", day.to_string())));
    if args.sort != UsageSort::default() {
        query.push(("sort", args.sort.to_string()));
    }
    query.extend(args.user.map(|user| ("user", user)));
    let none = Nothing { yet: "no usage", matches: "no usage" };
    let list = List { columns: &columns(&args.by), id: label, none };
    list.print(client, ("/api/usage", &query), &args.page, output).await
}

/// A column for each group, and the totals.
fn columns(groups: &[UsageGroup]) -> Vec<Column<UsageLine>> {
    let mut columns: Vec<Column<UsageLine>> = groups.iter().map(group_column).collect();
    columns.extend([
        Column::number("calls", |line: &UsageLine, _| line.llm_calls.to_string()),
        Column::number("tools", |line, _| line.tool_calls.map_or_else(|| "—".to_owned(), |count| count.to_string())),
        Column::number("input", |line, _| line.input_tokens.to_string()),
        Column::number("output", |line, _| line.output_tokens.to_string()),
        Column::number("cached", |line, _| (line.cache_read_tokens + line.cache_write_tokens).to_string()),
        Column::number("cost", |line, _| cost(line.cost_usd)),
    ]);
    columns
}

fn group_column(group: &UsageGroup) -> Column<UsageLine> {
    match group {
        UsageGroup::Day => Column::text("day", |line, _| shown(line.day.as_ref())),
        UsageGroup::Job => Column::text("job", |line, view| line.job_id.map(|id| view.id(&id)).unwrap_or_default()),
        UsageGroup::Model => Column::text("model", |line, _| shown(line.model.as_ref())),
        UsageGroup::User => Column::text("user", |line, _| shown(line.user.as_ref())),
        UsageGroup::Routine => Column::text("routine", |line, view| {
            let id = || line.routine_id.map(|id| view.id(&id)).unwrap_or_default();
            line.routine_name.as_deref().map_or_else(id, one_line)
        }),
        UsageGroup::Label(_) => Column::flexible("label", |line, _| shown(line.label.as_ref())),
    }
}

fn shown(value: Option<&impl ToString>) -> String {
    value.map(|value| one_line(&value.to_string())).unwrap_or_default()
}

/// What identifies a line: the values of its groups.
fn label(line: &UsageLine) -> String {
    // The user of a job is no group.
    let user = line.user.as_ref().filter(|_| line.job_id.is_none());
    let values = [
        shown(line.day.as_ref()),
        shown(line.job_id.as_ref()),
        shown(line.routine_id.as_ref()),
        shown(line.label.as_ref()),
        shown(user),
        shown(line.model.as_ref()),
    ];
    values.into_iter().filter(|value| !value.is_empty()).collect::<Vec<_>>().join(" ")
}

#[derive(Debug, Args)]
pub struct StorageArgs {
    /// What this user stores (admins only)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

pub(super) async fn storage(args: StorageArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let query: Vec<_> = args.user.map(|user| ("user", user)).into_iter().collect();
    let storage: UserStorage = client.get("/api/storage", &query).await?;
    output.either(&storage, |_| storage_text(&storage))
}

fn storage_text(storage: &UserStorage) -> String {
    let mut lines: Vec<String> = storage.kinds.iter().map(|one| format!("{:<12} {}", one.kind, one.bytes)).collect();
    let max = storage.max_bytes.map(|max| format!(" of {max}")).unwrap_or_default();
    lines.push(format!("{:<12} {}{max} bytes", "total", storage.bytes));
    lines.join("\n")
}

pub(super) async fn summary(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let counts: JobCounts = client.get("/api/jobs/summary", &[]).await?;
    output.either(&counts, |_| summary_text(&counts))
}

fn summary_text(counts: &JobCounts) -> String {
    let mut lines = Vec::new();
    if let Ok(Value::Object(states)) = serde_json::to_value(counts.states) {
        lines.extend(states.iter().map(|(state, count)| format!("{state:<12} {count}")));
    }
    let usage = &counts.usage_today;
    lines.push(format!(
        "{:<12} {} model calls, {} tool calls, {} tokens in, {} out, {}",
        "today (UTC)",
        usage.llm_calls,
        usage.tool_calls,
        usage.input_tokens,
        usage.output_tokens,
        cost(usage.cost_usd)
    ));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use protocol::{StorageKind, StoredBytes};

    use super::*;
    use crate::output::table::{TableArgs, View, table};

    #[test]
    fn rows_start_with_their_group_and_are_escaped() {
        let (output, _) = Output::captured(super::super::output::Format::Text);
        let view = View::new(&output, &TableArgs::default(), chrono::DateTime::UNIX_EPOCH, None);
        let model = UsageLine {
            model: Some("m\x1b[2J".to_owned()),
            llm_calls: 3,
            cost_usd: Some(0.25),
            ..UsageLine::default()
        };
        let text = table(&columns(&[UsageGroup::Model]), &[model], &view);
        let row = text.lines().nth(1).unwrap_or_default();
        assert!(row.contains("$0.2500") && !row.contains('\x1b'), "{text}");
        let day = UsageLine { day: "2026-11-22".parse().ok(), tool_calls: Some(7), ..UsageLine::default() };
        let words: Vec<String> = table(&columns(&[UsageGroup::Day]), std::slice::from_ref(&day), &view)
            .lines()
            .flat_map(str::split_whitespace)
            .map(str::to_owned)
            .collect();
        assert_eq!(words[..3], ["day", "calls", "tools"]);
        assert_eq!(words[7..10], ["2026-11-22", "0", "7"]);
        // The second group has a column of its line.
        let both = UsageLine { label: Some("a".to_owned()), ..day };
        let text = table(
            &columns(&[UsageGroup::Label("team".to_owned()), UsageGroup::Day]),
            std::slice::from_ref(&both),
            &view,
        );
        let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!((&row[..3], label(&both).as_str()), (&["a", "2026-11-22", "0"][..], "2026-11-22 a"));
    }

    #[test]
    fn each_kind_has_a_line_and_the_total_names_the_limit() {
        let kinds = vec![StoredBytes { kind: StorageKind::Memory, bytes: 7 }];
        let mut storage = UserStorage { bytes: 7, max_bytes: Some(10), kinds };
        assert_eq!(storage_text(&storage), "memory       7\ntotal        7 of 10 bytes");
        storage.max_bytes = None;
        assert_eq!(storage_text(&storage), "memory       7\ntotal        7 bytes");
    }

    #[test]
    fn every_state_has_a_line_and_an_unknown_cost_is_a_dash() {
        let mut counts = JobCounts::default();
        counts.states.failed = 3;
        counts.usage_today.cost_usd = None;
        let text = summary_text(&counts);
        assert_eq!(text.lines().count(), 9);
        assert!(text.contains("failed       3\n") && text.ends_with("0 tokens in, 0 out, —"), "{text}");
    }
}
