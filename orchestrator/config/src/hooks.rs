//! The hooks: `[[hooks]]` tables of the configuration file.
//!
//! Owns their grammar: where a hook is asked, what it matches, and what it does. No error repeats a value, since a
//! value may be a secret that is in the wrong place.

use std::{collections::BTreeSet, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use regex::Regex;
use secrecy::{SecretSlice, zeroize::Zeroizing};
use serde::Deserialize;
use toml::Value;

use super::{
    setting::{Kind, SettingSpec},
    setting_value::{RawValue, SettingValue, invalid_table},
};

/// Maximum number of hooks: each of them can delay a call.
const MAX_HOOKS: usize = 64;
/// Maximum length of a hook's name.
const MAX_NAME_BYTES: usize = 64;
/// Maximum number of tools or users that a hook names.
const MAX_LIST_ITEMS: usize = 64;
/// Maximum length of a reason.
const MAX_REASON_BYTES: usize = 500;
/// Default time limit of a webhook.
const DEFAULT_TIMEOUT_SECONDS: u64 = 5;
/// Maximum time limit of a webhook: a call or a request waits for it.
const MAX_TIMEOUT_SECONDS: u64 = 60;
/// Length of a signing key in bytes (Standard Webhooks, "Signature scheme").
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Before the base64 of a signing key (Standard Webhooks, "Signature scheme").
const KEY_PREFIX: &str = "whsec_";

/// Where a hook is asked.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, strum::IntoStaticStr, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum HookPoint {
    /// Before a tool call is approved and run.
    BeforeToolCall,
    /// When a tool call has a result that the model has not read yet.
    AfterToolCall,
    /// When a person sends a text to a job or a thread.
    InboundMessage,
    /// When a model's text is given to a person: a job's result, an answer in a thread, a notification.
    OutboundMessage,
    /// Before the first attempt of a job.
    JobStart,
    /// When a job has ended.
    JobEnd,
}

impl HookPoint {
    /// The name in the configuration and in the bodies of webhooks.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    const fn is_of_tools(self) -> bool {
        matches!(self, Self::BeforeToolCall | Self::AfterToolCall)
    }

    /// Whether a hook may change what it is asked about.
    pub const fn allows_changes(self) -> bool {
        !matches!(self, Self::JobStart | Self::JobEnd)
    }

    /// Whether a hook may refuse what it is asked about.
    pub(crate) const fn allows_denial(self) -> bool {
        !matches!(self, Self::JobEnd)
    }
}

/// One hook.
#[derive(Debug, Clone)]
pub struct HookSettings {
    /// Its name, which is part of what a refused caller reads.
    pub name: String,
    /// Where it is asked.
    pub point: HookPoint,
    /// What it is asked about there.
    pub filter: HookFilter,
    /// What it does.
    pub action: HookAction,
}

/// What a hook is asked about. Every condition that is set must hold.
#[derive(Debug, Clone, Default)]
pub struct HookFilter {
    /// Names of tools; one that ends with `*` is the beginning of names. All tools if empty.
    pub tools: Vec<String>,
    /// Names of users. All users if empty.
    pub users: Vec<String>,
    /// The only parameter whose text is searched.
    pub parameter: Option<String>,
    /// Found in the text of the parameters.
    pub text: Option<Regex>,
}

/// What a hook does.
#[derive(Debug, Clone)]
pub enum HookAction {
    /// Allows what it matches, and no later hook is asked.
    Allow,
    /// Refuses what it matches.
    Deny {
        /// Tells the caller why.
        reason: Option<String>,
    },
    /// Removes the text that it matches.
    Redact,
    /// Asks a server.
    Webhook(WebhookSettings),
}

/// A server that decides.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// Its URL.
    pub url: String,
    /// Signs the requests.
    pub key: SecretSlice<u8>,
    /// The time limit of a request.
    pub timeout: Duration,
    /// Whether what it is asked about goes on without its answer.
    pub fails_open: bool,
}

/// One table as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    point: HookPoint,
    #[serde(rename = "match", default)]
    filter: FilterTable,
    action: Option<RuleAction>,
    reason: Option<String>,
    url: Option<String>,
    secret: Option<String>,
    secret_file: Option<String>,
    timeout_seconds: Option<u64>,
    on_failure: Option<OnFailure>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilterTable {
    tool: Option<OneOrMany>,
    user: Option<OneOrMany>,
    parameter: Option<String>,
    text: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RuleAction {
    Allow,
    Deny,
    Redact,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnFailure {
    Open,
    Closed,
}

impl Table {
    fn into_hook(self) -> Result<HookSettings, String> {
        check_name(&self.name)?;
        let (name, point) = (self.name.clone(), self.point);
        let of_hook = |message: String| format!("{name}: {message}");
        let has_text = self.filter.text.is_some();
        let filter = self.filter.check(point).map_err(of_hook)?;
        let action = match (self.action, self.url) {
            (Some(action), None) => {
                let is_webhook_key = self.secret.is_some() || self.secret_file.is_some();
                if is_webhook_key || self.timeout_seconds.is_some() || self.on_failure.is_some() {
                    return Err(of_hook("secret, timeout_seconds and on_failure are for hooks with a url".to_owned()));
                }
                rule(action, point, has_text, self.reason).map_err(of_hook)?
            }
            (None, Some(url)) => {
                if self.reason.is_some() {
                    return Err(of_hook("reason is for hooks with an action".to_owned()));
                }
                if !point.allows_denial() && self.on_failure.is_some() {
                    return Err(of_hook("on_failure has no meaning at job_end; leave it out".to_owned()));
                }
                let timeout = self.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
                if !(1..=MAX_TIMEOUT_SECONDS).contains(&timeout) {
                    return Err(of_hook(format!("timeout_seconds must be from 1 to {MAX_TIMEOUT_SECONDS}")));
                }
                HookAction::Webhook(WebhookSettings {
                    url,
                    key: key(self.secret, self.secret_file).map_err(of_hook)?,
                    timeout: Duration::from_secs(timeout),
                    fails_open: self.on_failure == Some(OnFailure::Open),
                })
            }
            _ => return Err(of_hook("must have either action or url".to_owned())),
        };
        Ok(HookSettings { name: self.name, point, filter, action })
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(format!("the name of a hook must be 1 to {MAX_NAME_BYTES} letters, digits, _ - ."))
}

fn rule(action: RuleAction, point: HookPoint, has_text: bool, reason: Option<String>) -> Result<HookAction, String> {
    if !point.allows_denial() {
        return Err("job_end has no rules, since the job has ended; use a url".to_owned());
    }
    if reason.is_some() && !matches!(action, RuleAction::Deny) {
        return Err("reason is for action = \"deny\"".to_owned());
    }
    if reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON_BYTES) {
        return Err(format!("reason must be at most {MAX_REASON_BYTES} bytes"));
    }
    match action {
        RuleAction::Allow => Ok(HookAction::Allow),
        RuleAction::Deny => Ok(HookAction::Deny { reason }),
        RuleAction::Redact if !point.allows_changes() => Err(format!("nothing is redacted at {}", point.as_str())),
        RuleAction::Redact if !has_text => Err("action = \"redact\" needs match.text".to_owned()),
        RuleAction::Redact => Ok(HookAction::Redact),
    }
}

impl FilterTable {
    fn check(self, point: HookPoint) -> Result<HookFilter, String> {
        if self.tool.is_some() && !point.is_of_tools() {
            return Err(format!("match.tool has no meaning at {}", point.as_str()));
        }
        if self.parameter.is_some() && self.text.is_none() {
            return Err("match.parameter needs match.text".to_owned());
        }
        let text = self.text.map(|text| Regex::new(&text)).transpose();
        Ok(HookFilter {
            tools: list("match.tool", self.tool)?,
            users: list("match.user", self.user)?,
            parameter: self.parameter,
            text: text.map_err(|_| "match.text must be a regular expression".to_owned())?,
        })
    }
}

/// An empty list would match everything.
fn list(field: &str, names: Option<OneOrMany>) -> Result<Vec<String>, String> {
    let names = match names {
        None => return Ok(Vec::new()),
        Some(OneOrMany::One(name)) => vec![name],
        Some(OneOrMany::Many(names)) => names,
    };
    if !(1..=MAX_LIST_ITEMS).contains(&names.len()) || names.iter().any(String::is_empty) {
        return Err(format!("{field} must have 1 to {MAX_LIST_ITEMS} names"));
    }
    Ok(names)
}

fn key(secret: Option<String>, file: Option<String>) -> Result<SecretSlice<u8>, String> {
    let text = match (secret, file) {
        (Some(secret), None) => Zeroizing::new(secret),
        (None, Some(file)) => {
            let read = std::fs::read_to_string(&file);
            Zeroizing::new(read.map_err(|error| format!("secret_file cannot be read: {error}"))?)
        }
        (Some(_), Some(_)) => return Err("must have secret or secret_file, not both".to_owned()),
        (None, None) => return Err("must have a secret, which signs the requests".to_owned()),
    };
    let text = text.trim();
    let bytes = BASE64_STANDARD.decode(text.strip_prefix(KEY_PREFIX).unwrap_or(text));
    let bytes = bytes.ok().filter(|bytes| KEY_BYTES.contains(&bytes.len()));
    bytes.map(SecretSlice::from).ok_or_else(|| {
        format!("secret must be {KEY_PREFIX} and 24 to 64 bytes in base64 (try: echo {KEY_PREFIX}$(openssl rand -base64 32))")
    })
}

impl SettingValue for Vec<HookSettings> {
    const KIND: Kind = Kind::Table;

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        let RawValue::Toml(Value::Array(tables)) = raw else {
            return Err("can only be set in the configuration file, as [[hooks]]".to_owned());
        };
        if tables.len() > MAX_HOOKS {
            return Err(format!("there can be at most {MAX_HOOKS} hooks"));
        }
        let mut names = BTreeSet::new();
        let mut hooks = Self::new();
        for (index, table) in tables.iter().enumerate() {
            let table: Table = table.clone().try_into().map_err(|error| invalid_table("hook", index, &error))?;
            let hook = table.into_hook()?;
            if !names.insert(hook.name.clone()) {
                return Err(format!("there are two hooks with the name {}", hook.name));
            }
            hooks.push(hook);
        }
        Ok(hooks)
    }

    fn unset() -> Option<Self> {
        Some(Self::new())
    }
}

#[cfg(test)]
mod tests;
