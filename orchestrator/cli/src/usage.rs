//! `gantry usage`, `storage` and `summary`: what was used, what is stored, and the numbers of jobs.

use clap::Args;
use protocol::{JobCounts, UsageBy, UsageLine, UserStorage};
use serde_json::Value;

use super::{
    client::{Client, List, PageArgs},
    exit::CliError,
    input::one_of,
    output::{Column, Output, cost, one_line},
};

#[derive(Debug, Args)]
pub struct UsageArgs {
    /// Group by
    #[arg(long, value_parser = one_of(UsageBy::ALL), default_value = "day")]
    by: UsageBy,
    /// Only this user (admins only)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

pub(super) async fn run(args: UsageArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let mut query = vec![("by", args.by.to_string())];
    query.extend(args.user.map(|user| ("user", user)));
    let list = List { columns: columns(args.by), id: label };
    list.print(client, ("/api/usage", &query), &args.page, output).await
}

const fn columns(by: UsageBy) -> &'static [Column<UsageLine>] {
    match by {
        UsageBy::Day => const { &with_totals(Column::text("day", |line, _| label(line))) },
        UsageBy::Model => const { &with_totals(Column::text("model", |line, _| label(line))) },
        UsageBy::Job => const { &with_totals(Column::text("job", |line, view| view.id(&label(line)))) },
    }
}

const fn with_totals(group: Column<UsageLine>) -> [Column<UsageLine>; 7] {
    [
        group,
        Column::number("calls", |line, _| line.llm_calls.to_string()),
        Column::number("tools", |line, _| line.tool_calls.map_or_else(|| "—".to_owned(), |count| count.to_string())),
        Column::number("input", |line, _| line.input_tokens.to_string()),
        Column::number("output", |line, _| line.output_tokens.to_string()),
        Column::number("cached", |line, _| (line.cache_read_tokens + line.cache_write_tokens).to_string()),
        Column::number("cost", |line, _| cost(line.cost_usd)),
    ]
}

fn label(line: &UsageLine) -> String {
    let day = line.day.map(|day| day.to_string());
    let job = line.job_id.map(|id| id.to_string());
    day.or(job).or_else(|| line.model.as_deref().map(one_line)).unwrap_or_default()
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
        let text = table(columns(UsageBy::Model), &[model], &view);
        let row = text.lines().nth(1).unwrap_or_default();
        assert!(row.contains("$0.2500") && !row.contains('\x1b'), "{text}");
        let day = UsageLine { day: "2026-11-22".parse().ok(), tool_calls: Some(7), ..UsageLine::default() };
        let words: Vec<String> = table(columns(UsageBy::Day), &[day], &view)
            .lines()
            .flat_map(str::split_whitespace)
            .map(str::to_owned)
            .collect();
        assert_eq!(words[..3], ["day", "calls", "tools"]);
        assert_eq!(words[7..10], ["2026-11-22", "0", "7"]);
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
