//! A user of the API, with one connection.

use std::time::Instant;

use reqwest::{Client, Method, StatusCode, header::ACCEPT};
use serde_json::Value;

use crate::{Failure, installation::Installation};

/// Items of the largest page.
const PAGE: usize = 200;

/// A user or an admin.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) name: String,
    client: Client,
    base: String,
    token: String,
}

/// What a request was answered with.
pub(super) struct Answer {
    pub(super) ms: f64,
    pub(super) status: StatusCode,
    pub(super) body: String,
}

impl Caller {
    pub(super) async fn new(installation: &Installation, user: &str, role: &str) -> Result<Self, Failure> {
        let (base, token) = (format!("http://{}", installation.address), installation.token(user, role).await?);
        let client = Client::builder().pool_max_idle_per_host(1).build()?;
        let name = if role == "admin" { role } else { user }.to_owned();
        Ok(Self { name, client, base, token })
    }

    /// The same user on another connection.
    pub(super) fn on_another_connection(&self) -> Result<Self, Failure> {
        Ok(Self { client: Client::builder().pool_max_idle_per_host(1).build()?, ..self.clone() })
    }

    pub(super) async fn get(&self, path: &str) -> Result<Answer, Failure> {
        self.request(Method::GET, path, None).await
    }

    pub(super) async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Answer, Failure> {
        let mut request = self.client.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token);
        // Events are a stream for those that do not ask for a page.
        request = request.header(ACCEPT, "application/json");
        if let Some(body) = body {
            request = request.json(body);
        }
        let started = Instant::now();
        let response = request.send().await?;
        let (status, body) = (response.status(), response.text().await?);
        Ok(Answer { ms: started.elapsed().as_secs_f64() * 1_000.0, status, body })
    }

    /// The JSON of a successful answer.
    pub(super) async fn json(&self, path: &str) -> Result<Value, Failure> {
        let answer = self.get(path).await?;
        answer.success(path)?;
        Ok(serde_json::from_str(&answer.body)?)
    }

    /// The items of a list, from all of its pages.
    pub(super) async fn items(&self, path: &str) -> Result<Vec<Value>, Failure> {
        let (mut items, mut position) = (Vec::new(), String::new());
        loop {
            let joined = if path.contains('?') { '&' } else { '?' };
            let page = self.json(&format!("{path}{joined}limit={PAGE}{position}")).await?;
            items.extend(page["items"].as_array().into_iter().flatten().cloned());
            position = match (&page["next_cursor"], &page["next_after"]) {
                (Value::String(cursor), _) => format!("&cursor={cursor}"),
                (_, Value::Number(after)) => format!("&after={after}"),
                _ => return Ok(items),
            };
        }
    }
}

impl Answer {
    pub(super) fn success(&self, path: &str) -> Result<(), Failure> {
        if self.status.is_success() {
            return Ok(());
        }
        Err(format!("{path}: {}: {}", self.status, self.body).into())
    }
}
