//! The hooks of each point, asked in the order of the configuration.
//!
//! Owns what an answer means: a hook's change is what the next hook sees, `deny` ends the matter, `allow` of a rule
//! ends it as well, and a webhook without a valid answer refuses unless it fails open. A hook sees no stored secret of
//! the owner. What callers do with changes is their part.

use std::{borrow::Cow, collections::BTreeMap, net::SocketAddr};

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{
    error::{HookRefused, InvalidHook},
    event::HookEvent,
    rule,
    webhook::{Answer, Decision, Webhook, WebhookError},
};
use base::clock::Clock;
use config::{HookAction, HookFilter, HookPoint, HookSettings};
use egress::system_look_up;
use secrets::{LeakDetectors, search};

/// Requests to webhooks at the same time: each is a connection. Others wait for their turn.
const MAX_REQUESTS: usize = 64;

/// The name of the parameter that holds a message.
const CONTENT: &str = "content";

pub struct Hooks {
    points: BTreeMap<HookPoint, Vec<Hook>>,
    detectors: LeakDetectors,
    clock: Clock,
    requests: Semaphore,
}

struct Hook {
    name: String,
    filter: HookFilter,
    action: Action,
}

enum Action {
    Allow,
    Deny(Option<String>),
    Redact,
    Webhook(Box<Webhook>),
}

/// What one hook decides.
enum HookOutcome {
    /// The next hook is asked.
    Continue,
    /// The next hook is asked about these parameters.
    Change(Value),
    /// No other hook is asked.
    Accept,
}

impl Hook {
    fn new(settings: &HookSettings, own: &[SocketAddr]) -> Result<Self, InvalidHook> {
        let HookSettings { name, point: _, filter, action } = settings;
        let action = match action {
            HookAction::Allow => Action::Allow,
            HookAction::Deny { reason } => Action::Deny(reason.clone()),
            HookAction::Redact => Action::Redact,
            HookAction::Webhook(settings) => {
                let webhook = Webhook::new(settings, own.to_vec(), system_look_up());
                Action::Webhook(Box::new(webhook.map_err(|cause| InvalidHook { hook: name.clone(), cause })?))
            }
        };
        Ok(Self { name: name.clone(), filter: filter.clone(), action })
    }
}

impl Hooks {
    /// Checks the URLs of webhooks. `own` are the orchestrator's addresses, which no webhook may have.
    pub fn new(
        settings: &[HookSettings],
        own: &[SocketAddr],
        detectors: LeakDetectors,
        clock: Clock,
    ) -> Result<Self, InvalidHook> {
        let mut points: BTreeMap<HookPoint, Vec<Hook>> = BTreeMap::new();
        for hook in settings {
            points.entry(hook.point).or_default().push(Hook::new(hook, own)?);
        }
        Ok(Self { points, detectors, clock, requests: Semaphore::new(MAX_REQUESTS) })
    }

    /// Checks the URL of a webhook.
    pub fn check(settings: &HookSettings) -> Result<(), InvalidHook> {
        Hook::new(settings, &[]).map(drop)
    }

    /// Whether there is a hook at this point.
    pub fn has(&self, point: HookPoint) -> bool {
        self.points.contains_key(&point)
    }

    /// Asks about parameters. Returns what they become, if a hook changes them; they are as a hook saw them then,
    /// without the owner's secrets.
    pub async fn ask(&self, event: &HookEvent<'_>, parameters: &Value) -> Result<Option<Value>, HookRefused> {
        let hooks = self.of(event);
        if hooks.is_empty() {
            return Ok(None);
        }
        let shown = self.redacted(event.user, parameters.clone()).await?;
        let mut current = Cow::Borrowed(&shown);
        for hook in hooks {
            if !rule::matches_text(&hook.filter, &current) {
                continue;
            }
            match self.decide(hook, event, &current).await? {
                HookOutcome::Continue => {}
                HookOutcome::Change(changed) => current = Cow::Owned(changed),
                HookOutcome::Accept => break,
            }
        }
        Ok((*current != shown).then(|| current.into_owned()))
    }

    /// Asks about a message. Returns its text, if a hook changes it, without the owner's secrets: a webhook may know
    /// them from elsewhere.
    pub async fn ask_about_text(&self, event: &HookEvent<'_>, text: &str) -> Result<Option<String>, HookRefused> {
        if !self.has(event.point) {
            return Ok(None);
        }
        let Some(changed) = self.ask(event, &json!({ CONTENT: text })).await? else { return Ok(None) };
        let mut changed = self.redacted(event.user, changed).await?;
        // The form of a change was checked.
        Ok(match changed[CONTENT].take() {
            Value::String(text) => Some(text),
            _ => None,
        })
    }

    /// Asks about a message to a person. Returns the text that the person gets instead, if it is another one: what the hooks make of
    /// the message, or why it is withheld.
    pub async fn replacement(&self, event: &HookEvent<'_>, text: &str) -> Option<String> {
        self.ask_about_text(event, text).await.unwrap_or_else(|refused| Some(format!("[withheld: {refused}]")))
    }

    /// Tells the webhooks of a point. No answer is read.
    pub(super) async fn notify(&self, event: &HookEvent<'_>, parameters: Value) -> Result<(), HookRefused> {
        let parameters = self.redacted(event.user, parameters).await?;
        for hook in self.of(event) {
            let Action::Webhook(webhook) = &hook.action else { continue };
            if !rule::matches_text(&hook.filter, &parameters) {
                continue;
            }
            let (_permit, at) = self.turn().await;
            if let Err(error) = webhook.notify(at, event.body(&hook.name, at, &parameters)).await {
                log_failure(hook, event, &error);
            }
        }
        Ok(())
    }

    /// The hooks of the event's point whose conditions on its caller hold.
    fn of(&self, event: &HookEvent<'_>) -> Vec<&Hook> {
        let hooks = self.points.get(&event.point).into_iter().flatten();
        hooks.filter(|hook| rule::matches_caller(&hook.filter, event.user, event.tool)).collect()
    }

    async fn redacted(&self, user: &str, mut parameters: Value) -> Result<Value, HookRefused> {
        let unknown = |error| {
            tracing::error!(
                user,
                error = &error as &dyn std::error::Error,
                "no hook is asked: the secrets are not known"
            );
            HookRefused::SecretsUnknown
        };
        let detector = self.detectors.of(user).await.map_err(unknown)?;
        let bytes = text_bytes(&parameters);
        let redact = move || {
            detector.redact_json(&mut parameters);
            parameters
        };
        search(bytes, redact).await.map_err(unknown)
    }

    async fn decide(&self, hook: &Hook, event: &HookEvent<'_>, parameters: &Value) -> Result<HookOutcome, HookRefused> {
        let denied = |reason| HookRefused::Denied { hook: hook.name.clone(), reason };
        let webhook = match &hook.action {
            Action::Allow => return Ok(HookOutcome::Accept),
            Action::Deny(reason) => return Err(denied(reason.clone())),
            Action::Redact => return Ok(HookOutcome::Change(rule::redact(&hook.filter, parameters.clone()))),
            Action::Webhook(webhook) => webhook,
        };
        let (_permit, at) = self.turn().await;
        let answer = webhook.ask(at, event.body(&hook.name, at, parameters)).await;
        let error = match answer {
            Ok(answer) if answer.decision == Decision::Deny => return Err(denied(answer.shown_reason())),
            Ok(Answer { parameters: None, .. }) => return Ok(HookOutcome::Continue),
            Ok(Answer { parameters: Some(changed), .. }) if has_form_of(event.point, parameters, &changed) => {
                return Ok(HookOutcome::Change(changed));
            }
            Ok(_) => WebhookError::Invalid,
            Err(error) => error,
        };
        log_failure(hook, event, &error);
        if webhook.fails_open {
            Ok(HookOutcome::Continue)
        } else {
            Err(HookRefused::Failed { hook: hook.name.clone() })
        }
    }

    /// Waits until another request may be made.
    async fn turn(&self) -> (Option<tokio::sync::SemaphorePermit<'_>>, DateTime<Utc>) {
        // The semaphore is never closed.
        let permit = self.requests.acquire().await.ok();
        (permit, self.clock.now())
    }
}

fn log_failure(hook: &Hook, event: &HookEvent<'_>, error: &WebhookError) {
    let error = error as &dyn std::error::Error;
    tracing::warn!(hook = hook.name, point = event.point.as_str(), error, "a hook could not be asked");
}

/// Whether a hook may change parameters into these. Those of a tool call are validated by the executor.
fn has_form_of(point: HookPoint, parameters: &Value, changed: &Value) -> bool {
    match (point, parameters.as_object(), changed.as_object()) {
        (HookPoint::BeforeToolCall, _, Some(_)) => true,
        (_, Some(before), Some(after)) if point.allows_changes() => {
            before.len() == after.len() && before.keys().all(|name| after.get(name).is_some_and(Value::is_string))
        }
        _ => false,
    }
}

/// The size of all strings of a value, about.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + text_bytes(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use regex::Regex;
    use rstest::rstest;

    use super::*;
    use secrets::{KeySource, Secrets};
    use store::Store;

    const SECRET: &str = "correct-horse-battery";

    /// The conditions of a rule on the text.
    fn rule(name: &str, text: &str, action: HookAction) -> HookSettings {
        let text = (!text.is_empty()).then(|| Regex::new(text).unwrap());
        let filter = HookFilter { text, ..HookFilter::default() };
        HookSettings { name: name.to_owned(), point: HookPoint::InboundMessage, filter, action }
    }

    fn deny(name: &str, text: &str) -> HookSettings {
        rule(name, text, HookAction::Deny { reason: Some("no".to_owned()) })
    }

    async fn hooks(settings: &[HookSettings]) -> (tempfile::TempDir, Hooks) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        let secrets = Secrets::open(store, &KeySource::DataDir(directory.path().to_owned())).await.unwrap();
        let detectors = LeakDetectors::new(std::sync::Arc::new(secrets)).unwrap();
        detectors.store_for_test("ada", SECRET).await;
        (directory, Hooks::new(settings, &[], detectors, Clock::system()).unwrap())
    }

    async fn ask(settings: &[HookSettings], text: &str) -> Result<Option<String>, HookRefused> {
        let (_directory, hooks) = hooks(settings).await;
        hooks.ask_about_text(&HookEvent::new(HookPoint::InboundMessage, "ada"), text).await
    }

    fn refused(hook: &str) -> Result<Option<String>, HookRefused> {
        Err(HookRefused::Denied { hook: hook.to_owned(), reason: Some("no".to_owned()) })
    }

    #[rstest]
    #[case::none(vec![], "x", Ok(None))]
    #[case::no_match(vec![deny("a", "y")], "x", Ok(None))]
    #[case::denied(vec![deny("a", "x")], "x", refused("a"))]
    #[case::without_condition(vec![deny("a", "")], "x", refused("a"))]
    #[case::in_order(vec![deny("a", "y"), deny("b", "x"), deny("c", "x")], "x", refused("b"))]
    #[case::allow_ends_it(vec![rule("a", "x", HookAction::Allow), deny("b", "x")], "x", Ok(None))]
    #[case::allow_of_something_else(vec![rule("a", "y", HookAction::Allow), deny("b", "x")], "x", refused("b"))]
    #[case::allow_after_deny(vec![deny("b", "x"), rule("a", "x", HookAction::Allow)], "x", refused("b"))]
    #[case::redacted(vec![rule("a", "x", HookAction::Redact)], "axb", Ok(Some("a[redacted]b".to_owned())))]
    #[case::the_next_sees_the_change(vec![rule("a", "x", HookAction::Redact), deny("b", "x")], "x", Ok(Some("[redacted]".to_owned())))]
    #[case::a_change_is_kept_by_allow(
        vec![rule("a", "x", HookAction::Redact), rule("b", "", HookAction::Allow), deny("c", "")],
        "x",
        Ok(Some("[redacted]".to_owned()))
    )]
    #[case::a_secret_is_not_seen(vec![deny("a", "horse")], "correct-horse-battery", Ok(None))]
    #[case::and_goes_with_a_change(
        vec![rule("a", "x", HookAction::Redact)],
        "x correct-horse-battery",
        Ok(Some("[redacted] [redacted]".to_owned()))
    )]
    #[tokio::test]
    async fn rules_are_asked_in_their_order(
        #[case] settings: Vec<HookSettings>,
        #[case] text: &str,
        #[case] expected: Result<Option<String>, HookRefused>,
    ) {
        assert_eq!(ask(&settings, text).await, expected);
    }

    #[tokio::test]
    async fn a_hook_is_asked_at_its_point_and_about_its_users_only() {
        let mut only_bob = deny("a", "");
        only_bob.filter.users = vec!["bob".to_owned()];
        let (_directory, hooks) = hooks(&[only_bob]).await;
        let ask = async |point, user| hooks.ask_about_text(&HookEvent::new(point, user), "x").await.is_ok();
        assert!(ask(HookPoint::InboundMessage, "ada").await);
        assert!(!ask(HookPoint::InboundMessage, "bob").await);
        assert!(ask(HookPoint::OutboundMessage, "bob").await);
    }

    #[rstest]
    #[case(HookPoint::BeforeToolCall, json!({"any": [1]}), true)]
    #[case(HookPoint::BeforeToolCall, json!("text"), false)]
    #[case(HookPoint::AfterToolCall, json!({"content": "x"}), true)]
    #[case(HookPoint::InboundMessage, json!({"content": "x"}), true)]
    #[case(HookPoint::InboundMessage, json!({"content": "x", "more": "y"}), false)]
    #[case(HookPoint::InboundMessage, json!({"text": "x"}), false)]
    #[case(HookPoint::InboundMessage, json!({"content": 1}), false)]
    #[case(HookPoint::OutboundMessage, json!(["x"]), false)]
    #[case(HookPoint::JobStart, json!({"content": "x"}), false)]
    fn changes_have_the_form_of_what_they_change(
        #[case] point: HookPoint,
        #[case] changed: Value,
        #[case] expected: bool,
    ) {
        assert_eq!(has_form_of(point, &json!({"content": "before"}), &changed), expected);
    }
}
