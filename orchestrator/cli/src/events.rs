//! `gantry events`: the events of the instance that the caller may see.

use std::fmt;

use clap::Args;
use protocol::{AnyEventData, ChatContent, EventData, EventSubject, InstanceEvent, InstanceEventData};
use serde::Serialize;
use serde_json::Value;

use super::{
    client::{Client, EventFollower, Followed, StreamRequest, pages, zones},
    exit::{CliError, Exit},
    ids::short_id,
    output::{
        Format, Output, Paint, local_time, one_line,
        render::{arguments, outcome},
        truncate,
    },
};

use base::Zone;

const PATH: &str = "/api/events";
/// Longest summary of an event, in characters.
const MAX_SUMMARY_CHARS: usize = 160;
/// Shortest summary, on a narrow terminal.
const MIN_SUMMARY_CHARS: usize = 10;

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Follow: print events as they are written, until interrupted
    #[arg(long, short)]
    follow: bool,
    /// Only events after this cursor; by default all that are kept, with --follow those that are still to come
    #[arg(long, value_name = "CURSOR", value_parser = clap::value_parser!(i64).range(0..))]
    after: Option<i64>,
    /// Only events of these kinds, separated by commas
    #[arg(long, value_name = "KINDS")]
    kind: Option<String>,
}

pub(super) async fn run(args: EventsArgs, client: &Client, output: &mut Output) -> Result<Exit, CliError> {
    zones::shown(client, output).await;
    let query: Vec<_> = args.kind.map(|kind| ("kind", kind)).into_iter().collect();
    if args.follow {
        return follow(client, StreamRequest { path: PATH.to_owned(), query, after: args.after }, output).await;
    }
    let print = |event: Value| match output.format {
        Format::Json => output.json(&event),
        Format::Text => print(serde_json::from_value(event).ok().as_ref(), output),
    };
    pages::for_each_event(client, (PATH, &query), args.after.unwrap_or(0), print).await?;
    Ok(Exit::Success)
}

/// Prints events until the user interrupts.
async fn follow(client: &Client, request: StreamRequest, output: &mut Output) -> Result<Exit, CliError> {
    let mut stream = EventFollower::<InstanceEvent>::new(client, request);
    let mut is_loss_reported = false;
    loop {
        let item = tokio::select! {
            item = stream.next() => item?,
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Interrupted),
        };
        match item {
            Followed::Event { raw, event } => {
                is_loss_reported = false;
                match output.format {
                    Format::Json => output.line(&raw)?,
                    Format::Text => print(event.as_deref(), output)?,
                }
            }
            Followed::Resync { oldest } => {
                output.note(&format!("the requested events are not available; continuing at event {oldest}"));
            }
            Followed::Lost { cause } if !is_loss_reported => {
                is_loss_reported = true;
                output.note(&format!("connection lost ({cause}); retrying"));
            }
            Followed::Lost { .. } => {}
            Followed::End => return Ok(Exit::Success),
        }
    }
}

/// Prints an event that this version knows.
fn print(event: Option<&InstanceEvent>, output: &mut Output) -> Result<(), CliError> {
    match event {
        Some(event) => {
            let line = line(output.paint, event, output.zone(), output.width);
            output.line(&line)
        }
        None => Ok(()),
    }
}

/// An event on a line of at most `width` columns.
fn line(paint: Paint, event: &InstanceEvent, zone: Zone, width: Option<usize>) -> String {
    let at = local_time(event.at, zone);
    let (kind, summary) = match &event.data {
        AnyEventData::Job(data) => (data.kind().as_str(), of_job(data)),
        AnyEventData::Instance(data) => (data.kind().as_str(), of_instance(data)),
    };
    let (cursor, user, subject) = (event.cursor.to_string(), one_line(&event.user_id), subject(event.subject));
    let before = format!("{cursor} {at} {user} {subject}{kind} ").chars().count();
    // With room for the mark of a cut.
    let max_chars = width.map_or(MAX_SUMMARY_CHARS, |width| width.saturating_sub(before + 1).max(MIN_SUMMARY_CHARS));
    let summary = truncate(&one_line(&summary), max_chars.min(MAX_SUMMARY_CHARS));
    format!("{} {at} {user} {subject}{} {summary}", paint.dim(&cursor), paint.bold(kind)).trim_end().to_owned()
}

/// The most specific object that an event is about.
fn subject(subject: EventSubject) -> String {
    let EventSubject { job_id, run_id, routine_id, thread_id, gate_id } = subject;
    let named = |kind: &str, id: &dyn fmt::Display| format!("{kind}/{} ", short_id(&id.to_string()));
    let ids = [
        gate_id.map(|id| named("gate", &id)),
        job_id.map(|id| named("job", &id)),
        run_id.map(|id| named("run", &id)),
        routine_id.map(|id| named("routine", &id)),
        thread_id.map(|id| named("thread", &id)),
    ];
    ids.into_iter().flatten().next().unwrap_or_default()
}

fn of_job(data: &EventData) -> String {
    match data {
        EventData::State { to, reason, message, .. } => {
            let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            let message = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
            format!("{to}{reason}{message}")
        }
        EventData::Message { content, .. } | EventData::Reasoning { content } => content.clone(),
        EventData::ToolUse { tool, input, .. } => format!("{tool} {}", arguments(tool, input)),
        EventData::ToolResult { tool, success, output, duration_ms, .. } => {
            format!("{tool} {}, {duration_ms} ms", outcome(tool, *success, output).0)
        }
        EventData::LlmCall { model, input_tokens, output_tokens, duration_ms, .. } => {
            format!("{model}, {input_tokens} tokens in, {output_tokens} out, {duration_ms} ms")
        }
        EventData::Status { message, .. } => message.clone(),
        EventData::Log { text, .. } | EventData::Result { text, .. } => text.clone(),
        other => data_of(other),
    }
}

fn of_instance(data: &InstanceEventData) -> String {
    match data {
        InstanceEventData::GateRequired(gate) => format!("{} {}", gate.tool, gate.parameters),
        InstanceEventData::GateResolved(gate) => format!("{} {}", gate.tool, gate.state),
        InstanceEventData::ThreadState { state, .. } => state.to_string(),
        InstanceEventData::Job(job) => format!("{} {}", job.state, job.title),
        InstanceEventData::JobDeleted { .. } => String::new(),
        InstanceEventData::NotificationsRead { unread_count, .. } => format!("{unread_count} unread"),
        InstanceEventData::Notification(notification) => format!("{}: {}", notification.title, notification.text),
        InstanceEventData::ChatMessage { message, .. } => of_entry(&message.content),
        InstanceEventData::Run(run) => {
            let reason = run.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            format!("{} {}{reason}", run.routine_name, run.status)
        }
        InstanceEventData::Routine { change, routine } => {
            format!(
                "{} {}",
                routine.name,
                serde_json::to_value(change).unwrap_or_default().as_str().unwrap_or_default()
            )
        }
        InstanceEventData::Readiness(state) => {
            let reason = state.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
            format!("{}{reason}", if state.ready { "ready" } else { "not ready" })
        }
        InstanceEventData::Cron(event) => {
            let status = event.status.as_ref().map(|status| format!(" ({status})")).unwrap_or_default();
            format!("{}{status}", event.action)
        }
    }
}

/// Who wrote an entry of a chat, and what it says.
fn of_entry(content: &ChatContent) -> String {
    let text = match content {
        ChatContent::User { content } | ChatContent::Assistant { content } | ChatContent::System { content, .. } => {
            content.clone()
        }
        ChatContent::ToolUse { tool, input, .. } => format!("{tool} {input}"),
        ChatContent::ToolResult { tool, success, duration_ms, .. } => {
            format!("{tool} {}, {duration_ms} ms", if *success { "ok" } else { "failed" })
        }
        ChatContent::Job { job_id, state, title, .. } => format!("{job_id} {state}: {title}"),
        ChatContent::Error { reason, content } => format!("({reason}) {content}"),
    };
    format!("{} {text}", content.role())
}

/// The JSON of an event's data.
fn data_of(event: &impl Serialize) -> String {
    let whole = serde_json::to_value(event).unwrap_or_default();
    whole.get("data").map(Value::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(mut event: Value) -> String {
        event["v"] = json!(1);
        event["at"] = json!("2026-11-22T12:00:00Z");
        event["user_id"] = json!("ada");
        line(Paint::Plain, &serde_json::from_value(event).unwrap(), Zone::UTC, None)
    }

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let id = protocol::JobId::nil();
        let message = json!({"cursor": 7, "job_id": id, "kind": "message",
            "data": {"role": "assistant", "content": format!("a\nb\x1b[2J{}", "x".repeat(500))}});
        let text = shown(message);
        let expected =
            format!("7 2026-11-22 12:00:00 UTC ada job/00000000 message a b␛[2J{}…", "x".repeat(MAX_SUMMARY_CHARS - 7));
        assert_eq!(text, expected);
        let limit = json!({"cursor": 8, "job_id": id, "kind": "limit", "data": {"limit": "pids", "value": 3}});
        assert_eq!(
            shown(limit),
            format!("8 2026-11-22 12:00:00 UTC ada job/00000000 limit {{\"limit\":\"pids\",\"value\":3}}")
        );
        let thread = protocol::ThreadId::nil();
        let state = json!({"cursor": 9, "thread_id": thread, "kind": "thread_state",
            "data": {"thread_id": thread, "state": "idle"}});
        assert_eq!(shown(state), format!("9 2026-11-22 12:00:00 UTC ada thread/00000000 thread_state idle"));
        let entry = |content: Value| {
            let mut data =
                json!({"thread_id": thread, "id": protocol::MessageId::nil(), "seq": 1, "at": "2026-11-22T12:00:00Z"});
            data.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
            shown(json!({"cursor": 10, "thread_id": thread, "kind": "chat_message", "data": data}))
        };
        let begin = "10 2026-11-22 12:00:00 UTC ada thread/00000000 chat_message";
        assert_eq!(entry(json!({"role": "user", "content": "a\nb"})), format!("{begin} user a b"));
        let result = json!({"role": "tool_result", "call_id": "c", "tool": "echo", "success": false, "output": "{}",
            "truncated": false, "duration_ms": 3});
        assert_eq!(entry(result), format!("{begin} tool_result echo failed, 3 ms"));
    }
}
