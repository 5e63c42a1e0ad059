//! What the messages of event streams contain. OpenAPI 3.1 describes a stream as a string, whose content has a schema.

use protocol::EventKind;
use serde_json::{Value, json};

use super::{operations, schemas};

/// The data of each stream's messages, by operation.
const STREAMS: &[(&str, &[&str])] = &[
    ("list_events", &["Event", "JobStreamPosition"]),
    ("list_instance_events", &["InstanceEvent", "LiveJobEvent", "ChatDelta", "ChatStatus", "StreamPosition"]),
    (
        "stream_chat_events",
        &[
            "ChatMessageInstanceEventData",
            "ThreadStateInstanceEventData",
            "Gate",
            "ChatDelta",
            "ChatStatus",
            "StreamPosition",
        ],
    ),
];

/// Adds the schema of the messages' data to the streams.
pub(super) fn describe(document: &mut Value) {
    operations::for_each(document, |_, operation| {
        let Some((_, names)) = STREAMS.iter().find(|(id, _)| operation["operationId"] == *id) else { return };
        let data: Vec<Value> = names.iter().map(|name| json!({"$ref": schemas::reference(name)})).collect();
        let data = if let [single] = data.as_slice() { single.clone() } else { json!({"anyOf": data}) };
        operation["responses"]["200"]["content"]["text/event-stream"]["schema"] = json!({
            "type": "string",
            "description": "Server-sent events. `data` of each is JSON.",
            "contentMediaType": "text/event-stream",
            "contentSchema": data,
        });
    });
}

/// The events of jobs always name their job.
pub(super) fn require_job_ids(document: &mut Value) {
    let Some(schemas) = schemas::of(document) else { return };
    for kind in EventKind::ALL {
        let target = schemas["InstanceEvent"]["discriminator"]["mapping"][kind.as_str()].as_str();
        let name = target.and_then(|target| target.strip_prefix(schemas::SCHEMA_PREFIX)).map(str::to_owned);
        let variant = name.and_then(|name| schemas.get_mut(&name));
        if let Some(required) = variant.and_then(|variant| variant["required"].as_array_mut()) {
            required.push(json!("job_id"));
        }
    }
}
