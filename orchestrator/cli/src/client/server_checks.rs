//! Checks of `gantry doctor` about the server that the command line uses, as its user sees it: reachable, same version,
//! token, ready.

use chrono::{DateTime, Utc};
use protocol::{ActorRole, CronStatus, ErrorCode, JobCounts};
use secrecy::ExposeSecret as _;
use serde::Serialize;
use serde_json::{Value, json};

use base::{Environment, Zone, mask_urls};

use crate::{
    client::{Client, claims::UnverifiedClaims, connection::Connection, rpc},
    exit::CliError,
    output::{duration, local_time, one_line},
};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A token that expires sooner is worth a note.
const SOON: chrono::Duration = chrono::Duration::days(3);
/// What a person does about dialects, if anything.
const DIALECT_ADVICE: &str = "if a provider refuses requests for a field, set the field's property in llm.dialect (gantry.toml); docs/models.md \
                              lists the properties";
const DIALECT_COMMAND: &str =
    "to see it: GANTRY_TOKEN=\"$(gantry token create --user NAME --role admin --ttl 5m)\" gantry doctor";
const TOKEN_ADVICE: &str = "create a token with `gantry token create --user NAME` where the server runs, then run `gantry login`; for the \
                            Compose stack use docker/gantry, which manages the token";

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Ok,
    /// No problem, but worth knowing.
    Note,
    Failed,
    /// Not checked because an earlier check failed.
    NotChecked,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub verdict: Verdict,
    pub found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Check {
    #[must_use]
    pub fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    #[must_use]
    pub fn note(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Note, found: found.into(), advice: Some(advice.into()) }
    }

    #[must_use]
    pub fn failed(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Failed, found: found.into(), advice: Some(advice.into()) }
    }

    #[must_use]
    pub fn not_checked(name: &'static str) -> Self {
        Self { name, verdict: Verdict::NotChecked, found: "not checked".to_owned(), advice: None }
    }
}

/// Runs the checks. A missing token is a failure unless the server is installed here: its operator needs none.
pub async fn checks(
    environment: &Environment,
    is_installed_here: bool,
    (now, zone): (DateTime<Utc>, Zone),
) -> Vec<Check> {
    let connection = match Connection::from_environment(environment) {
        Ok(connection) => connection,
        Err(error) => return vec![Check::failed("server", error.to_string(), "fix the option, variable or file")],
    };
    let client = match Client::new(&connection.url, connection.token.clone()) {
        Ok(client) => client,
        Err(error) => return vec![Check::failed("server", error.to_string(), "fix the URL")],
    };
    let has_token = connection.token.is_some();
    let mut checks = Vec::new();
    let reached = reach(&client, &connection, &mut checks).await;
    if reached && !has_token && is_installed_here {
        // Where a server is installed, no token is needed for the other checks.
        checks.push(dialect("what the model's provider takes of a request is shown to admins", DIALECT_COMMAND));
    }
    if reached && (has_token || !is_installed_here) {
        checks.push(token(&client, &connection, (now, zone)).await);
        checks.extend(readiness(&client).await);
    }
    if !reached && has_token {
        checks.extend([Check::not_checked("token"), Check::not_checked("readiness")]);
    }
    checks
}

/// Whether the server answers.
async fn reach(client: &Client, connection: &Connection, checks: &mut Vec<Check>) -> bool {
    let place = format!("{} ({})", mask_urls(&connection.url), connection.source);
    match client.probe("/healthz").await {
        Ok((200, health)) if health["status"] == "ok" => {
            let version = one_line(health["version"].as_str().unwrap_or_default());
            let found = format!("{place}, gantry {version}");
            checks.push(if version == VERSION {
                Check::ok("server", found)
            } else {
                let advice = format!("this command line is gantry {VERSION}: use the same version as the server");
                Check::note("server", found, advice)
            });
            true
        }
        Ok((status, _)) => {
            let found = format!("{place}: is not a Gantry server (status {status})");
            checks.push(Check::failed(
                "server",
                found,
                "set the URL with --url, GANTRY_URL or `gantry login --url URL`",
            ));
            false
        }
        Err(CliError::Unreachable { cause, .. }) => {
            let advice = "start the server, or set its URL with --url, GANTRY_URL or `gantry login --url URL`";
            checks.push(Check::failed("server", format!("{place}: {cause}"), advice));
            false
        }
        Err(error) => {
            let advice = "set the URL with --url, GANTRY_URL or `gantry login --url URL`";
            checks.push(Check::failed("server", error.to_string(), advice));
            false
        }
    }
}

/// Whether the server accepts the token, and whose it is.
async fn token(client: &Client, connection: &Connection, (now, zone): (DateTime<Utc>, Zone)) -> Check {
    let Some(token) = &connection.token else { return Check::failed("token", "there is none", TOKEN_ADVICE) };
    let claims = UnverifiedClaims::of(token.expose_secret());
    let found = claims.as_ref().map_or_else(
        || "unknown user".to_owned(),
        |claims| {
            let role = claims.role.map_or("unknown", ActorRole::as_str);
            let expires = claims.expires_at.map(|at| format!(", expires {}", local_time(at, zone))).unwrap_or_default();
            format!("{}, role {role}{expires}", claims.user)
        },
    );
    match client.get::<JobCounts>("/api/jobs/summary", &[]).await {
        Ok(_) => match claims.and_then(|claims| claims.expires_at).filter(|at| *at - now < SOON) {
            Some(at) => Check::note("token", found, format!("it expires in {}; create a new one", duration(at - now))),
            None => Check::ok("token", found),
        },
        Err(CliError::Refused(problem)) if problem.code == ErrorCode::Unauthorized => {
            Check::failed("token", format!("{found}: {}", problem.detail), TOKEN_ADVICE)
        }
        Err(error) => Check::failed("token", format!("{found}: {error}"), "check the server's log"),
    }
}

/// Whether the server can run jobs, and what it knows of the model providers.
async fn readiness(client: &Client) -> Vec<Check> {
    match client.probe("/readyz").await {
        Ok((_, answer)) => {
            let mut checks = vec![sandbox(&answer)];
            checks.extend(automation(client).await);
            checks.extend(dialects(&answer));
            checks
        }
        Err(error) => vec![Check::failed("readiness", error.to_string(), "check the server's log")],
    }
}

/// That automation is switched off, if it is.
async fn automation(client: &Client) -> Option<Check> {
    let status: CronStatus = rpc::call(client, "cron.status", &json!({})).await.ok()?;
    let found = "switched off: no schedule, event or webhook starts a run";
    let advice = "an admin switches it on with the call cron.set_enabled {\"enabled\": true}, unless GANTRY_CRON_ENABLED=false is set";
    (!status.enabled).then(|| Check::note("automation", found, advice))
}

/// What the providers take: what the operator has set, what refusals taught, and what is known of the model beforehand; each
/// comes before the next. Nothing for who is no admin.
fn dialects(answer: &Value) -> Vec<Check> {
    let mut checks = Vec::new();
    for provider in answer["models"].as_array().into_iter().flatten() {
        let name = one_line(provider["name"].as_str().unwrap_or_default());
        let model = one_line(provider["model"].as_str().unwrap_or_default());
        let mut add = |of: &str, origin: &str, dialect: &Value| {
            let found = format!("what {name} takes, {of}: {origin}: {}", one_line(&dialect.to_string()));
            checks.push(Check::ok("dialect", found));
        };
        if provider["pinned"].is_object() {
            add("all models", "set by llm.dialect", &provider["pinned"]);
        }
        for (model, dialect) in provider["learned"].as_object().into_iter().flatten() {
            add(&one_line(model), "learned from refusals", dialect);
        }
        if provider["preset"].is_object() {
            add(&model, "known beforehand", &provider["preset"]);
        }
    }
    if let Some(last) = checks.last_mut() {
        last.advice = Some(DIALECT_ADVICE.to_owned());
    }
    checks
}

fn dialect(found: &str, command: &str) -> Check {
    Check { advice: Some(format!("{DIALECT_ADVICE}; {command}")), ..Check::ok("dialect", found) }
}

fn sandbox(answer: &Value) -> Check {
    let sandbox = &answer["sandbox"];
    let text = |value: &Value| value.as_str().map(one_line).unwrap_or_default();
    if answer["status"] == "ready" && sandbox["state"] == "not_ready" {
        return Check::note(
            "readiness",
            "the sandbox is disabled",
            "no jobs run; set GANTRY_SANDBOX=docker to run jobs",
        );
    }
    if answer["status"] == "ready" {
        return Check::ok("readiness", format!("jobs can run (sandbox {})", text(&sandbox["state"])));
    }
    let disk = &answer["disk"];
    let reasons = [text(&sandbox["reason"]), text(&sandbox["detail"]), text(&disk["detail"])];
    let reason = reasons.into_iter().filter(|part| !part.is_empty());
    let found = format!("not ready: {}", reason.collect::<Vec<_>>().join(": "));
    Check::failed("readiness", found, "run `gantry doctor` where the server runs")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("ready", json!({"state": "ready"}), Verdict::Ok, "jobs can run (sandbox ready)")]
    #[case("ready", json!({"state": "not_ready", "reason": "disabled_by_config"}), Verdict::Note, "the sandbox is disabled")]
    #[case(
        "not_ready",
        json!({"state": "not_ready", "reason": "image_missing", "detail": "why"}),
        Verdict::Failed,
        "not ready: image_missing: why"
    )]
    fn jobs_can_run_if_the_sandbox_is_ready(
        #[case] status: &str,
        #[case] part: Value,
        #[case] verdict: Verdict,
        #[case] found: &str,
    ) {
        let check = sandbox(&json!({"status": status, "sandbox": part}));
        assert_eq!((check.verdict, check.found.as_str()), (verdict, found));
    }

    #[test]
    fn a_dialect_comes_with_what_it_is_for_and_its_setting() {
        let provider = json!({
            "name": "openai", "model": "m1",
            "pinned": {"temperature": "omit"}, "learned": {"m2": {"effort": "omit"}}, "preset": {"system": "one_first"},
        });
        let checks = dialects(&json!({"models": [provider]}));
        let found: Vec<&str> = checks.iter().map(|check| check.found.as_str()).collect();
        let expected = [
            r#"what openai takes, all models: set by llm.dialect: {"temperature":"omit"}"#,
            r#"what openai takes, m2: learned from refusals: {"effort":"omit"}"#,
            r#"what openai takes, m1: known beforehand: {"system":"one_first"}"#,
        ];
        assert_eq!(found, expected);
        let advice: Vec<&str> = checks.iter().filter_map(|check| check.advice.as_deref()).collect();
        assert_eq!(advice, [DIALECT_ADVICE], "once");
        let without_token = dialect("not shown", DIALECT_COMMAND).advice.unwrap();
        for part in ["a field", "llm.dialect", "docs/models.md", "--role admin"] {
            assert!(without_token.contains(part), "{part} in {without_token}");
        }
    }
}
