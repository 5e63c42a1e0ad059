//! The parts of the document that are not about a single operation: title, servers, tags, authentication.

use serde_json::{Value, json};

const DESCRIPTION: &str = "Gantry runs AI-agent jobs in sandboxed containers.

Send a token with each request: `Authorization: Bearer TOKEN`. `gantry token create --user NAME --role user` creates one where the \
server runs.

Errors are problem details (RFC 9457) with a stable `code`. Lists answer `items` and `next_cursor`, which is passed as `cursor` to \
get the next page. Unknown fields and parameters are refused. Features that this version does not have are refused with 422 \
`not_available`.";

/// The tags in the order in which they are shown.
const TAGS: &[(&str, &str)] = &[
    ("jobs", "Create jobs, follow their events, send prompts to them and cancel them."),
    ("files", "The files in the workspaces of jobs."),
    ("events", "The events of all jobs, routines, chats, gates and notifications of the caller."),
    ("chat", "Conversations with the agent."),
    ("gates", "Tool calls that wait for the approval of a person."),
    ("routines", "Work that is started by a schedule, an event or a webhook."),
    ("memory", "Documents that agents and their users share."),
    ("notifications", "Messages of routines and jobs to their user."),
    ("tools", "The tools of agents, and who may use them."),
    ("secrets", "Secrets of users, such as tokens for other services."),
    ("settings", "The settings of the caller."),
    ("operation", "Usage, audit log and metrics."),
    ("health", "The state of the server."),
];

pub(super) fn add(document: &mut Value) {
    document["info"] = json!({
        "title": "Gantry",
        "version": env!("CARGO_PKG_VERSION"),
        "description": DESCRIPTION,
        "contact": {"name": "Gantry"},
        "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
    });
    document["servers"] = json!([{"url": "/", "description": "The server that this document comes from."}]);
    let tag = |(name, description): &(&str, &str)| json!({"name": name, "description": description});
    document["tags"] = TAGS.iter().map(tag).collect();
    document["components"]["securitySchemes"] = json!({
        "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "A token of `gantry token create`."},
    });
    document["security"] = json!([{"bearer": []}]);
    sort_paths(document);
}

/// Operations are listed in the order of their tags.
fn sort_paths(document: &mut Value) {
    let Some(paths) = document["paths"].as_object_mut().map(std::mem::take) else { return };
    let mut paths: Vec<(String, Value)> = paths.into_iter().collect();
    paths.sort_by_cached_key(|(path, item)| {
        let operation = item.as_object().and_then(|methods| methods.values().next());
        let tag = operation.and_then(|operation| operation["tags"][0].as_str()).unwrap_or_default();
        (TAGS.iter().position(|(name, _)| *name == tag), path.clone())
    });
    document["paths"] = paths.into_iter().collect();
}
