//! `gantry summary`: jobs by state, and usage today.

use protocol::JobCounts;
use serde_json::Value;

use crate::{
    client::Client,
    exit::CliError,
    output::{Output, cost},
};

pub(crate) async fn run(client: &Client, output: &mut Output) -> Result<(), CliError> {
    let counts: JobCounts = client.get("/api/jobs/summary", &[]).await?;
    output.either(&counts, |_| text(&counts))
}

fn text(counts: &JobCounts) -> String {
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
    use super::*;

    #[test]
    fn every_state_has_a_line_and_an_unknown_cost_is_a_dash() {
        let mut counts = JobCounts::default();
        counts.states.failed = 3;
        counts.usage_today.cost_usd = None;
        let text = text(&counts);
        assert_eq!(text.lines().count(), 9);
        assert!(text.contains("failed       3\n") && text.ends_with("0 tokens in, 0 out, —"), "{text}");
    }
}
