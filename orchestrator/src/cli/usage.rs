//! `gantry usage`: usage by day, job or model.

use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use protocol::{Page, UsageBy, UsageLine};

use super::{
    client::Client,
    exit::{CliError, Exit},
    output::Output,
    pages,
    text::one_line,
};
use crate::config::Environment;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(super) struct UsageArgs {
    /// Group by
    #[arg(long, value_enum, default_value = "day")]
    by: ByArg,
    /// Only this user (admins only)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Maximum number of items
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Cursor of the next page
    #[arg(long)]
    cursor: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ByArg {
    Day,
    Job,
    Model,
}

impl From<ByArg> for UsageBy {
    fn from(by: ByArg) -> Self {
        match by {
            ByArg::Day => Self::Day,
            ByArg::Job => Self::Job,
            ByArg::Model => Self::Model,
        }
    }
}

pub(super) async fn run(args: UsageArgs, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    show(&Client::from_environment(environment)?, args, output).await
}

async fn show(client: &Client, args: UsageArgs, output: &mut Output) -> Result<Exit, CliError> {
    let by = UsageBy::from(args.by);
    let mut query = vec![("by", by.to_string()), ("limit", args.limit.to_string())];
    let optional = [("user", args.user), ("cursor", args.cursor)];
    query.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    let page: Page<UsageLine> = client.get("/api/usage", &query).await?;
    output.either(&page, |paint| {
        let more = pages::next_page(&page, paint);
        format!("{}{more}", table(by, &page.items))
    })?;
    Ok(Exit::Success)
}

fn table(by: UsageBy, lines: &[UsageLine]) -> String {
    let mut table = Table::new();
    let head = [by.as_str(), "calls", "tools", "input", "output", "cached", "cost"];
    table.load_style(presets::NOTHING).set_header(head);
    for line in lines {
        let cached = line.cache_read_tokens + line.cache_write_tokens;
        table.add_row([
            label(line),
            line.llm_calls.to_string(),
            line.tool_calls.map_or_else(String::new, |count| count.to_string()),
            line.input_tokens.to_string(),
            line.output_tokens.to_string(),
            cached.to_string(),
            line.cost_usd.map_or_else(|| "unknown".to_owned(), |cost| format!("${cost:.4}")),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

fn label(line: &UsageLine) -> String {
    let day = line.day.map(|day| day.to_string());
    let job = line.job_id.map(|id| id.to_string());
    day.or(job).or_else(|| line.model.as_deref().map(one_line)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_start_with_their_group_and_are_escaped() {
        let model = UsageLine {
            model: Some("m\x1b[2J".to_owned()),
            llm_calls: 3,
            cost_usd: Some(0.25),
            ..UsageLine::default()
        };
        let text = table(UsageBy::Model, &[model]);
        let row = text.lines().nth(1).unwrap_or_default();
        assert!(row.contains("$0.2500") && !row.contains('\x1b'), "{text}");
        let day = UsageLine { day: "2026-11-22".parse().ok(), tool_calls: Some(7), ..UsageLine::default() };
        let words: Vec<String> =
            table(UsageBy::Day, &[day]).lines().flat_map(str::split_whitespace).map(str::to_owned).collect();
        assert_eq!(words[..3], ["day", "calls", "tools"]);
        assert_eq!(words[7..10], ["2026-11-22", "0", "7"]);
    }
}
