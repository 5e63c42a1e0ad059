//! The server of a webhook.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, Uri},
    response::{IntoResponse as _, Response},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::{net::TcpListener, task::JoinSet};

/// 32 bytes.
const KEY: &[u8] = b"a webhook's own key for this test";

/// A webhook's server. It checks the signature of each request and stops when it is dropped.
pub(crate) struct Receiver {
    url: String,
    bodies: Arc<Mutex<Vec<Value>>>,
    _server: JoinSet<()>,
}

impl Receiver {
    /// `answer` gets the parameters of each request.
    pub(crate) async fn start(answer: impl Fn(&Value) -> Response + Clone + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/hook?x=1", listener.local_addr().unwrap());
        let bodies = Arc::<Mutex<Vec<Value>>>::default();
        let received = Arc::clone(&bodies);
        let handle = move |uri: Uri, headers: HeaderMap, body: Bytes| {
            let (answer, received) = (answer.clone(), Arc::clone(&received));
            async move {
                assert_eq!(uri.path_and_query().unwrap(), "/hook?x=1");
                check_signature(&headers, &body);
                let body: Value = serde_json::from_slice(&body).unwrap();
                received.lock().unwrap().push(body.clone());
                let parameters = &body["data"]["parameters"];
                if parameters.to_string().contains("be slow") {
                    tokio::time::sleep(Duration::from_mins(1)).await;
                }
                answer(parameters)
            }
        };
        let router = Router::new().fallback(handle);
        let mut server = JoinSet::new();
        server.spawn(async move { drop(axum::serve(listener, router).await) });
        Self { url, bodies, _server: server }
    }

    /// The table of a hook that asks this server.
    pub(crate) fn hook(&self, point: &str, more: &str) -> String {
        let secret = format!("whsec_{}", BASE64_STANDARD.encode(KEY));
        format!(
            "[[hooks]]\nname = 'guard'\npoint = '{point}'\nurl = '{}'\nsecret = '{secret}'\ntimeout_seconds = 1\n{more}\n",
            self.url
        )
    }

    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.bodies.lock().unwrap().clone()
    }
}

fn check_signature(headers: &HeaderMap, body: &[u8]) {
    let header = |name: &str| headers[name].to_str().unwrap();
    let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp"));
    assert!(id.starts_with("msg_"), "{id}");
    let age = orchestrator::clock::Clock::system().now().timestamp() - timestamp.parse::<i64>().unwrap();
    assert!((0..60).contains(&age), "{age} s old");
    let mut mac = Hmac::<Sha256>::new_from_slice(KEY).unwrap();
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    let expected = format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()));
    assert_eq!(header("webhook-signature"), expected);
    assert_eq!(header("content-type"), "application/json");
}

pub(crate) fn json_answer(answer: &Value) -> Response {
    axum::Json(answer.clone()).into_response()
}

pub(crate) fn allow() -> Response {
    json_answer(&json!({"decision": "allow"}))
}
