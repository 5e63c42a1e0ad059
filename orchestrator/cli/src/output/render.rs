//! Renders events as text for a terminal.
//!
//! Owns the layout. Never prints. Text from a job is escaped.

mod ending;
mod log;
mod tool;

use ending::ending;
pub(crate) use ending::{partial, usage};
pub(crate) use tool::{arguments, outcome};

use log::LogLines;
use protocol::{EgressDecision, Event, EventData, Job, JobState, MessageRole, PlanStep, ReportedOutcome};
use serde_json::Value;

use super::{
    Paint,
    text::{escape_control_chars, one_line, truncate, wrapped_lines},
};

const MAX_INPUT_CHARS: usize = 140;
const MAX_OUTPUT_LINES: usize = 8;
const MAX_LINE_CHARS: usize = 200;
/// Columns of `agent  ` and the other labels.
const LABEL_COLUMNS: usize = 7;

/// The level of detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Messages and tool calls.
    Usual,
    /// Reasoning, model calls and whole outputs as well.
    Verbose,
}

/// Renders the events of one job in order.
pub(crate) struct Renderer {
    paint: Paint,
    detail: Detail,
    /// Columns of what people and models write. `None`: unlimited.
    width: Option<usize>,
    /// How the job ends is shown by `ending`.
    is_followed: bool,
    /// The agent's last message, which the result usually repeats.
    last_said: String,
    log: LogLines,
}

impl Renderer {
    /// A renderer for one job.
    pub(crate) fn new(paint: Paint, detail: Detail) -> Self {
        Self { paint, detail, width: None, is_followed: false, last_said: String::new(), log: LogLines::default() }
    }

    /// Breaks the lines of messages at this width.
    pub(crate) const fn with_width(mut self, width: Option<usize>) -> Self {
        self.width = width;
        self
    }

    /// Leaves out how the job ends: `ending` shows it.
    pub(crate) const fn followed(mut self) -> Self {
        self.is_followed = true;
        self
    }

    /// Renders an event. `None` if it is not shown at this level of detail.
    pub(crate) fn event(&mut self, event: &Event) -> Option<String> {
        self.data(&event.data)
    }

    /// Renders the content of an event.
    pub(crate) fn data(&mut self, data: &EventData) -> Option<String> {
        if let EventData::Log { stream, text, call_id } = data {
            let lines = self.log.add(call_id.as_ref(), *stream, text, self.max_lines());
            return self.log_lines(&lines);
        }
        let before = self.flush();
        let text = self.other_than_log(data);
        match (before, text) {
            (Some(before), Some(text)) => Some(format!("{before}\n{text}")),
            (before, text) => before.or(text),
        }
    }

    /// Renders output that has not ended its line.
    pub(crate) fn flush(&mut self) -> Option<String> {
        let lines = self.log.flush(self.max_lines());
        self.log_lines(&lines)
    }

    pub(crate) fn ending(&self, job: &Job) -> String {
        ending(self.paint, job, &self.last_said, self.width)
    }

    fn other_than_log(&mut self, data: &EventData) -> Option<String> {
        let paint = self.paint;
        match data {
            EventData::State { to, .. } if self.is_followed && is_end(*to) => None,
            EventData::State { to, reason, message, .. } => {
                let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
                let message = message.as_ref().map(|text| format!(": {}", one_line(text))).unwrap_or_default();
                Some(format!("{} {}{reason}{message}", paint.dim("●"), state(paint, *to)))
            }
            EventData::Message { role, content } => self.message(*role, content),
            EventData::Reasoning { content } => self.verbose(|| indented("think  ", content)),
            EventData::Plan { goal, steps, .. } => Some(plan(paint, goal, steps)),
            EventData::ToolUse { tool, input, .. } => {
                let arguments = truncate(&one_line(&tool::arguments(tool, input)), MAX_INPUT_CHARS);
                let head = format!("{} {} {arguments}", paint.cyan("→"), paint.bold(&one_line(tool)));
                Some(format!("{}{}", head.trim_end(), self.content(tool, input)))
            }
            EventData::ToolResult { call_id, tool, success, output, truncated, duration_ms } => {
                let arrow = if *success { paint.green("←") } else { paint.red("←") };
                let (outcome, output) = tool::outcome(tool, *success, output);
                let cut_mark = if *truncated { ", cut by the worker" } else { "" };
                let head = format!("{arrow} {} {}, {duration_ms} ms{cut_mark}", one_line(tool), one_line(&outcome));
                let (lines, shown) = self.log.end_call(call_id);
                let rest = match (lines, shown) {
                    // The output was shown as it came.
                    (1.., _) if lines == shown => String::new(),
                    (1.., _) => self.more_lines(lines - shown),
                    (0, _) => self.folded(output, |line| self.paint.dim(line)),
                };
                Some(format!("{head}{rest}"))
            }
            EventData::LlmCall { model, input_tokens, output_tokens, duration_ms, finish_reason, .. } => {
                self.verbose(|| {
                    let (model, why) = (one_line(model), one_line(finish_reason));
                    format!("model  {model}: {input_tokens}+{output_tokens} tokens, {duration_ms} ms, {why}")
                })
            }
            EventData::Status { message, iteration } => {
                // The server does not know the number of the call that it reports a wait of.
                let call = if *iteration == 0 { String::new() } else { format!(" (model call {iteration})") };
                Some(paint.dim(&format!("status {}{call}", one_line(message))))
            }
            // Of the second, only bytes are added.
            EventData::Log { .. } | EventData::Egress { count: 0, .. } => None,
            EventData::Egress { host, port, decision, rule, count, .. } => {
                let times = if *count > 1 { format!(" {count}×") } else { String::new() };
                let by =
                    if *decision == EgressDecision::Denied { format!(" by {}", one_line(rule)) } else { String::new() };
                Some(paint.dim(&format!("↗ {}:{port} {decision}{times}{by}", one_line(host))))
            }
            EventData::Limit { limit, value } => {
                Some(paint.yellow(&format!("! limit {} reached: {}", limit.as_str(), one_line(&value.to_string()))))
            }
            // The ending shows a partial result.
            EventData::Result { outcome, .. } if self.is_followed && *outcome != ReportedOutcome::Completed => None,
            EventData::Result { text, .. } => self.result(text),
        }
    }

    /// The lines shown of a text at this level of detail.
    const fn max_lines(&self) -> usize {
        match self.detail {
            Detail::Usual => MAX_OUTPUT_LINES,
            Detail::Verbose => usize::MAX,
        }
    }

    /// What a call writes: the lines of a patch, and in detail the content of a file.
    fn content(&self, tool: &str, input: &Value) -> String {
        if let Some(patch) = tool::patch_lines(tool, input) {
            return self.folded(&patch, |line| match line.as_bytes().first() {
                Some(b'+') => self.paint.green(line),
                Some(b'-') => self.paint.red(line),
                _ => self.paint.dim(line),
            });
        }
        match tool::written_text(tool, input) {
            Some(text) if self.detail == Detail::Verbose => self.folded(text, |line| self.paint.green(line)),
            _ => String::new(),
        }
    }

    /// The lines of a text below what it belongs to; unless in detail, the first ones.
    fn folded(&self, text: &str, style: impl Fn(&str) -> String) -> String {
        let max_chars = if self.detail == Detail::Verbose { usize::MAX } else { MAX_LINE_CHARS };
        let text = escape_control_chars(text.trim_end());
        let all = text.lines().count();
        let mut shown = String::new();
        for line in text.lines().take(self.max_lines()) {
            shown.push_str("\n    ");
            shown.push_str(&style(&truncate(line, max_chars)));
        }
        if all > self.max_lines() {
            shown.push_str(&self.more_lines(all - self.max_lines()));
        }
        shown
    }

    fn more_lines(&self, count: usize) -> String {
        let lines = if count == 1 { "line" } else { "lines" };
        format!("\n{}", self.paint.dim(&format!("    … {count} more {lines} (-v shows them)")))
    }

    fn log_lines(&self, lines: &[String]) -> Option<String> {
        let line = |line: &String| self.paint.dim(&format!("    │ {}", escape_control_chars(line)));
        (!lines.is_empty()).then(|| lines.iter().map(line).collect::<Vec<_>>().join("\n"))
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
        Some(format!("{label}{}", written(content, self.width)))
    }

    fn result(&self, text: &str) -> Option<String> {
        let repeated = text.trim().is_empty() || text.trim() == self.last_said;
        (!repeated).then(|| format!("{}{}", self.paint.bold("result "), written(text, self.width)))
    }
}

/// Whether the events of a followed job end with this state.
const fn is_end(state: JobState) -> bool {
    match state {
        JobState::Pending | JobState::InProgress | JobState::Stuck => false,
        JobState::Completed | JobState::Submitted | JobState::Accepted | JobState::Failed | JobState::Cancelled => true,
    }
}

/// A state in its color.
pub(crate) fn state(paint: Paint, state: JobState) -> String {
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

/// A text after a label of this width.
fn written(text: &str, width: Option<usize>) -> String {
    wrapped_lines(&escape_control_chars(text.trim_end()), LABEL_COLUMNS, width)
}

#[cfg(test)]
mod tests;
