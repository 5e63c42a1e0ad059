//! Renders events as text for a terminal.
//!
//! Owns the layout. Never prints. Text from a job is escaped.

mod tool;

pub(super) use tool::arguments;

use protocol::{Event, EventData, Job, JobState, MessageRole, PlanStep};

use super::{
    output::Paint,
    text::{escape_control_chars, one_line, truncate},
};

const MAX_INPUT_CHARS: usize = 140;
const MAX_OUTPUT_LINES: usize = 8;
const MAX_LINE_CHARS: usize = 200;

/// The level of detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// Messages and tool calls.
    Usual,
    /// Reasoning, model calls and whole outputs as well.
    Verbose,
}

/// Renders the events of one job in order.
pub(super) struct Renderer {
    paint: Paint,
    detail: Detail,
    /// The agent's last message, which the result usually repeats.
    last_said: String,
}

impl Renderer {
    /// A renderer for one job.
    pub(super) const fn new(paint: Paint, detail: Detail) -> Self {
        Self { paint, detail, last_said: String::new() }
    }

    /// Renders an event. `None` if it is not shown at this level of detail.
    pub(super) fn event(&mut self, event: &Event) -> Option<String> {
        let paint = self.paint;
        match &event.data {
            EventData::State { to, reason, message, .. } => {
                let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
                let message = message.as_ref().map(|text| format!(": {}", one_line(text))).unwrap_or_default();
                Some(format!("{} {}{reason}{message}", paint.dim("●"), state(paint, *to)))
            }
            EventData::Message { role, content } => self.message(*role, content),
            EventData::Reasoning { content } => self.verbose(|| indented("think  ", content)),
            EventData::Plan { goal, steps, .. } => Some(plan(paint, goal, steps)),
            EventData::ToolUse { tool, input, .. } => {
                let input = truncate(&one_line(&tool::arguments(tool, input)), MAX_INPUT_CHARS);
                Some(format!("{} {} {input}", paint.cyan("→"), paint.bold(&one_line(tool))))
            }
            EventData::ToolResult { tool, success, output, truncated, duration_ms, .. } => {
                let arrow = if *success { paint.green("←") } else { paint.red("←") };
                let (outcome, output) = tool::outcome(tool, *success, output);
                let cut_mark = if *truncated { ", cut by the worker" } else { "" };
                let head = format!("{arrow} {} {}, {duration_ms} ms{cut_mark}", one_line(tool), one_line(&outcome));
                Some(format!("{head}{}", self.output_lines(output)))
            }
            EventData::LlmCall { model, input_tokens, output_tokens, duration_ms, finish_reason, .. } => {
                self.verbose(|| {
                    let (model, why) = (one_line(model), one_line(finish_reason));
                    format!("model  {model}: {input_tokens}+{output_tokens} tokens, {duration_ms} ms, {why}")
                })
            }
            EventData::Status { message, iteration } => {
                self.verbose(|| format!("status {} (model call {iteration})", one_line(message)))
            }
            EventData::Log { text, .. } => Some(paint.dim(&indented("│ ", text.trim_end_matches('\n')))),
            EventData::Egress { host, port, decision, .. } => {
                Some(paint.dim(&format!("↗ {}:{port} {}", one_line(host), decision)))
            }
            EventData::Limit { limit, value } => {
                Some(paint.yellow(&format!("! limit {} reached: {}", limit.as_str(), one_line(&value.to_string()))))
            }
            EventData::Result { text, .. } => self.result(text),
        }
    }

    /// The output of a tool; unless in detail, its first lines.
    fn output_lines(&self, output: &str) -> String {
        let (max_lines, max_chars) = match self.detail {
            Detail::Usual => (MAX_OUTPUT_LINES, MAX_LINE_CHARS),
            Detail::Verbose => (usize::MAX, usize::MAX),
        };
        let output = escape_control_chars(output.trim_end());
        let all = output.lines().count();
        let mut text = String::new();
        for line in output.lines().take(max_lines) {
            text.push('\n');
            text.push_str(&self.paint.dim(&format!("    {}", truncate(line, max_chars))));
        }
        if all > max_lines {
            text.push('\n');
            text.push_str(&self.paint.dim(&format!("    … {} more lines (-v shows them)", all - max_lines)));
        }
        text
    }

    fn verbose(&self, text: impl FnOnce() -> String) -> Option<String> {
        (self.detail == Detail::Verbose).then(|| self.paint.dim(&text()))
    }

    fn message(&mut self, role: MessageRole, content: &str) -> Option<String> {
        if content.trim().is_empty() {
            return None;
        }
        let label = match role {
            MessageRole::Assistant => {
                content.trim().clone_into(&mut self.last_said);
                self.paint.bold("agent  ")
            }
            MessageRole::User => self.paint.cyan("you    "),
            MessageRole::System => self.paint.dim("system "),
        };
        Some(format!("{label}{}", rest_indented(content.trim_end(), 7)))
    }

    fn result(&self, text: &str) -> Option<String> {
        let repeated = text.trim().is_empty() || text.trim() == self.last_said;
        (!repeated).then(|| format!("{}{}", self.paint.bold("result "), rest_indented(text.trim_end(), 7)))
    }
}

/// The last line of a followed job.
pub(super) fn summary(paint: Paint, job: &Job) -> String {
    let usage = &job.usage;
    let seconds = match (job.started_at, job.finished_at) {
        (Some(from), Some(to)) => format!(" in {} s", (to - from).num_seconds()),
        _ => String::new(),
    };
    let cost = match usage.cost_usd {
        Some(cost) if cost > 0.0 => format!(", ${cost:.4}"),
        Some(_) => String::new(),
        None => ", unknown cost".to_owned(),
    };
    format!(
        "{} {}{seconds}: {}, {}, {} tokens in, {} out{cost}  {}",
        paint.dim("●"),
        state(paint, job.state),
        counted(usage.llm_calls, "model call"),
        counted(usage.tool_calls, "tool call"),
        usage.input_tokens,
        usage.output_tokens,
        paint.dim(&job.id.to_string()),
    )
}

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A state in its color.
pub(super) fn state(paint: Paint, state: JobState) -> String {
    match state {
        JobState::Completed | JobState::Accepted => paint.green(state.as_str()),
        JobState::Failed => paint.red(state.as_str()),
        JobState::Stuck | JobState::Cancelled => paint.yellow(state.as_str()),
        JobState::Pending | JobState::InProgress | JobState::Submitted => paint.bold(state.as_str()),
    }
}

fn plan(paint: Paint, goal: &str, steps: &[PlanStep]) -> String {
    let mut text = format!("{}{}", paint.bold("plan   "), one_line(goal));
    for (index, step) in steps.iter().enumerate() {
        let step = format!("\n       {}. {}: {}", index + 1, one_line(&step.tool), one_line(&step.reasoning));
        text.push_str(&truncate(&step, MAX_LINE_CHARS));
    }
    text
}

fn indented(prefix: &str, text: &str) -> String {
    escape_control_chars(text).lines().map(|line| format!("{prefix}{line}")).collect::<Vec<_>>().join("\n")
}

fn rest_indented(text: &str, by: usize) -> String {
    escape_control_chars(text).replace('\n', &format!("\n{}", " ".repeat(by)))
}

#[cfg(test)]
mod tests;
