//! A model provider that is as strict as a real one: it refuses what that refuses, with its status and its words, and answers
//! everything else by simple rules.
//!
//! Owns its listener and what it was asked. What it refuses is in `refusals`, how it reads and writes is in `wires`.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Write as _,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Router,
    extract::{DefaultBodyLimit, OriginalUri, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use orchestrator::{Environment, llm::preset};
use serde_json::Value;
use tests::{World, WorldBuilder};
use tokio::{net::TcpListener, task::JoinSet};

use crate::{
    families::{Family, Real},
    wires::{Item, Wire, items},
};

/// What a provider refuses a request with.
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// A request, as the checks of a family see it.
pub(crate) struct Asked<'a> {
    /// How many requests there were before.
    pub(crate) number: usize,
    /// Below the base URL.
    pub(crate) path: &'a str,
    pub(crate) body: &'a Value,
    pub(crate) items: &'a [Item],
    /// What each signature was made behind.
    pub(crate) signed: &'a BTreeMap<String, Value>,
}

/// What the model writes next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turn {
    pub(crate) text: String,
    /// Id, name and arguments.
    pub(crate) calls: Vec<(String, String, Value)>,
}

#[derive(Default)]
pub(crate) struct Recorded {
    pub(crate) requests: Vec<Value>,
    pub(crate) refusals: Vec<String>,
    pub(crate) signed: BTreeMap<String, Value>,
    calls: usize,
    /// What each request is refused with.
    outage: Option<(u16, &'static str)>,
}

/// The server. It stops when it is dropped.
pub(crate) struct Double {
    family: &'static Family,
    port: u16,
    kept: Arc<Mutex<Recorded>>,
    _server: JoinSet<()>,
}

impl Double {
    pub(crate) async fn start(family: &'static Family) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let kept = Arc::new(Mutex::new(Recorded::default()));
        let router = Router::new()
            .fallback(answer)
            .layer(DefaultBodyLimit::max(64 << 20))
            .with_state((family, Arc::clone(&kept)));
        let mut server = JoinSet::new();
        server.spawn(async move { drop(axum::serve(listener, router).await) });
        Self { family, port, kept, _server: server }
    }

    /// Unless the family is one of local servers, an address that is no local one by its name: what is known of local servers is
    /// not known of this one.
    pub(crate) fn base_url(&self) -> String {
        let host = if self.family.is_local { "127.0.0.1" } else { "[::ffff:127.0.0.1]" };
        format!("http://{host}:{}{}", self.port, self.family.path)
    }

    /// A world whose models are this one's.
    pub(crate) fn world(&self) -> WorldBuilder {
        World::builder()
            .set("GANTRY_LLM_SCRIPT", "")
            .set("GANTRY_LLM_PROVIDER", self.family.kind)
            .set("GANTRY_LLM_BASE_URL", self.base_url())
            .set("GANTRY_LLM_API_KEY", "sk-double-0123456789")
            .set("GANTRY_LLM_MODEL", self.family.model)
            .set("GANTRY_LLM_EFFORT", "high")
    }

    /// A world that knows of the model what the preset of the real one says, and learns nothing about that.
    pub(crate) fn world_of_preset(&self, real: &Real) -> WorldBuilder {
        let table = format!("[llm.dialect]\n{}", preset_properties(real));
        self.world().set("GANTRY_LLM_MODEL", real.model).config_file(table)
    }

    pub(crate) fn kept(&self) -> MutexGuard<'_, Recorded> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key is refused from now on.
    pub(crate) fn fail_from_now_on(&self) {
        self.refuse_from_now_on((401, r#"{"error": {"message": "Invalid API key"}}"#));
    }

    pub(crate) fn refuse_from_now_on(&self, outage: (u16, &'static str)) {
        self.kept().outage = Some(outage);
    }

    pub(crate) fn refusals(&self) -> Vec<String> {
        self.kept().refusals.clone()
    }
}

/// The preset of the real provider, as the properties of a table in the configuration.
pub(crate) fn preset_properties(real: &Real) -> String {
    let dialect = serde_json::json!(preset(real.host, real.path, real.model));
    let properties = dialect.as_object().into_iter().flatten();
    // The values are written alike in both formats.
    properties.fold(String::new(), |table, (name, value)| table + name + " = " + &value.to_string() + "\n")
}

type Shared = (&'static Family, Arc<Mutex<Recorded>>);

async fn answer(State((family, kept)): State<Shared>, OriginalUri(uri): OriginalUri, body: String) -> Response {
    let Ok(body) = serde_json::from_str::<Value>(&body) else { return StatusCode::BAD_REQUEST.into_response() };
    let Some(path) = uri.path().strip_prefix(family.path) else { return StatusCode::NOT_FOUND.into_response() };
    let path = path.trim_start_matches('/');
    let Some(wire) = Wire::of(path) else { return StatusCode::NOT_FOUND.into_response() };
    let items = items(wire, &body);
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((status, text)) = kept.outage {
        return (StatusCode::from_u16(status).expect("a status"), text).into_response();
    }
    let number = kept.requests.len();
    kept.requests.push(body.clone());
    let asked = Asked { number, path, body: &body, items: &items, signed: &kept.signed };
    if let Some(refusal) = family.checks.iter().find_map(|check| check(&asked)) {
        kept.refusals.push(refusal.body.clone());
        let status = StatusCode::from_u16(refusal.status).expect("a status");
        return (status, [(CONTENT_TYPE, "application/json")], refusal.body).into_response();
    }
    record(family, &body);
    let mut turn = next(&items, body["tool_choice"] == "none" || body["tool_choice"]["type"] == "none");
    for call in &mut turn.calls {
        call.0 = (family.call_id)(kept.calls, &call.1);
        kept.calls += 1;
    }
    let events = wire.events(&turn, family.reasoning, &body, &mut kept.signed);
    ([(CONTENT_TYPE, "text/event-stream")], events).into_response()
}

/// Adds a request that was taken to the file of its family, for the validators in `tests/providers`.
fn record(family: &Family, request: &Value) {
    let environment = Environment::from_process();
    let Some(directory) = environment.get("GANTRY_TEST_RECORD") else { return };
    let path = Path::new(directory).join(format!("{}.jsonl", family.name));
    let mut file = File::options().create(true).append(true).open(path).expect("a file for the family");
    // One write, since the tests run at the same time.
    file.write_all(format!("{request}\n").as_bytes()).expect("room for a request");
}

/// What a model that follows simple rules does next.
fn next(items: &[Item], may_not_call: bool) -> Turn {
    let say = |text: String| Turn { text, ..Turn::default() };
    let call = |calls: Vec<(&str, Value)>| Turn {
        calls: calls.into_iter().map(|(name, arguments)| (String::new(), name.to_owned(), arguments)).collect(),
        ..Turn::default()
    };
    if items.iter().any(|item| matches!(item, Item::System(text) if text.contains("You summarise"))) {
        return say("They spoke of ships.".to_owned());
    }
    let asked = items.iter().rev().find_map(|item| match item {
        Item::User(text) => Some(text.as_str()),
        _ => None,
    });
    let asked = asked.unwrap_or_default();
    let since = items.iter().rev().take_while(|item| !matches!(item, Item::User(_)));
    let results = since.filter(|item| matches!(item, Item::Result { .. })).count();
    let echo = |text: &str| ("echo", serde_json::json!({"message": text}));
    match () {
        () if may_not_call => say("Enough.".to_owned()),
        // The notice after the third failure, as a message or joined to the results.
        () if asked.contains("has now failed") => say("Given up.".to_owned()),
        () if asked.contains("insist") && items.iter().any(Item::has_notice) => say("Given up.".to_owned()),
        () if asked.contains("insist") && results < 4 => {
            call(vec![("memory_read", serde_json::json!({"path": "no/such.md"}))])
        }
        () if results > 0 => say(format!("{results} results.")),
        () if asked.contains("use two") => call(vec![echo("one"), echo("two")]),
        () if asked.contains("use echo") => call(vec![echo("hi")]),
        () if asked.contains("odd name") => {
            call(vec![("multi_tool_use.parallel", serde_json::json!({"tool_uses": []}))])
        }
        () if asked.contains("This is a heartbeat") => say("HEARTBEAT_OK".to_owned()),
        () => say("Hello.".to_owned()),
    }
}
