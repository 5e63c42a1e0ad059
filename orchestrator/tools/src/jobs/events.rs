//! `job_events`: a part of a job's events, with long texts shortened.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec, elide};
use serde_json::{Value, json};

use super::access::{JobAccess, failed, job_id_schema};
use store::{EventPage, StoredEvent};

use crate::builtin::{object, spec};

const DEFAULT_LIMIT: u32 = 50;
/// Events at most.
const MAX_LIMIT: u32 = 200;
/// Longest text in an event; the REST API has the whole.
const MAX_TEXT_BYTES: usize = 2_000;
/// Size of all events of one call; a tool's whole output has at most 100 000 bytes.
const MAX_PAGE_BYTES: usize = 64 * 1024;

pub(super) struct JobEvents(pub(super) JobAccess);

impl Tool for JobEvents {
    fn spec(&self) -> ToolSpec {
        let properties = json!({
            "job_id": job_id_schema(),
            "after": {"type": "integer", "minimum": 0, "description": "Only events with a higher number; `next_after` of the call before."},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "description": "Maximum number of events; 50 when left out."}
        });
        let parameters = object(&["job_id"], properties);
        ToolSpec {
            is_repeatable: true,
            ..spec("job_events", "Returns a job's events in order, with long texts shortened.", parameters)
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let job = self.0.find(&invocation).await?;
            let number = |name: &str| invocation.arguments.get(name).and_then(Value::as_i64);
            let after = number("after").unwrap_or(0);
            let limit = number("limit").and_then(|limit| u32::try_from(limit).ok()).unwrap_or(DEFAULT_LIMIT);
            let page = self.0.store().events(job.id, after, limit, None).await.map_err(|error| failed(&error))?;
            Ok(ToolOutput::success(render(&page)))
        })
    }
}

/// The events that fit, and the number of the last one if more follow.
fn render(page: &EventPage) -> Value {
    let (mut items, mut bytes, mut last) = (Vec::new(), 0, None);
    for event in &page.items {
        let item = item(event);
        bytes += item.to_string().len();
        if bytes > MAX_PAGE_BYTES && last.is_some() {
            return json!({"items": items, "next_after": last});
        }
        last = Some(event.seq);
        items.push(item);
    }
    json!({"items": items, "next_after": last.filter(|_| page.more)})
}

fn item(event: &StoredEvent) -> Value {
    let mut whole = serde_json::to_value(event).unwrap_or_default();
    json!({
        "seq": event.seq,
        "at": whole["at"].take(),
        "kind": whole["kind"].take(),
        "data": shortened(whole["data"].take()),
    })
}

/// The value with each long text cut. An array or object that is still too long is replaced by its beginning as text.
fn shortened(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(elide(&text, MAX_TEXT_BYTES)),
        Value::Object(members) => {
            let members = members.into_iter().map(|(name, value)| (name, shortened(value)));
            within_page(Value::Object(members.collect()))
        }
        Value::Array(items) => within_page(Value::Array(items.into_iter().map(shortened).collect())),
        other => other,
    }
}

fn within_page(value: Value) -> Value {
    let text = value.to_string();
    if text.len() <= MAX_PAGE_BYTES / 2 { value } else { Value::String(elide(&text, MAX_TEXT_BYTES)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_wherever_they_are() {
        let long = "x".repeat(10_000);
        let cut = shortened(json!({"output": long, "input": {"list": [long, 1]}, "n": null}));
        assert_eq!(cut["output"].as_str().map(str::len), cut["input"]["list"][0].as_str().map(str::len));
        assert!(cut["output"].as_str().is_some_and(|text| text.len() <= MAX_TEXT_BYTES && text.starts_with('x')));
        assert_eq!((&cut["input"]["list"][1], &cut["n"]), (&json!(1), &Value::Null));
        let wide: Vec<String> = (0..10_000).map(|n| format!("item {n}")).collect();
        assert!(shortened(json!({"items": wide})).to_string().len() < MAX_PAGE_BYTES);
    }
}
