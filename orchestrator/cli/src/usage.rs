//! `gantry usage`: usage by day, job or model.

pub(crate) mod storage;
pub(crate) mod summary;

use clap::Args;
use protocol::{UsageBy, UsageLine};

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

#[cfg(test)]
mod tests {
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
}
