//! The MCP servers: `[[mcp]]` tables of the configuration file.
//!
//! Owns the grammar of their names and headers. A header names a secret and never contains one; no error repeats a
//! header.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use protocol::{ApprovalRequirement, is_secret_name};
use serde::Deserialize;
use toml::Value;

use super::{
    setting::{Kind, SettingSpec},
    setting_value::{RawValue, SettingValue, invalid_table},
};

/// Maximum number of servers: each of them can have a connection for each user.
const MAX_SERVERS: usize = 32;
/// A tool's whole name has at most 64 characters, of which this leaves most to the server's own part.
const MAX_NAME_BYTES: usize = 32;
/// Maximum number of headers of a server, and of arguments of a command.
const MAX_LIST_ITEMS: usize = 32;
const TIMEOUT_SECONDS: RangeInclusive<u64> = 1..=3_600;
const DEFAULT_TIMEOUT_SECONDS: u64 = 60;
/// Separates a server's name from its tool's.
const SEPARATOR: &str = "__";
/// Headers of the protocol itself, in lower case. Those of the connection are refused by the egress client.
const PROTOCOL_HEADERS: [&str; 5] =
    ["accept", "content-type", "last-event-id", "mcp-protocol-version", "mcp-session-id"];

/// One MCP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServerSettings {
    /// Its name, the first part of its tools' names.
    pub name: String,
    /// How it is reached.
    pub transport: McpTransport,
    /// The approval that a call of its tools needs.
    pub requirement: ApprovalRequirement,
    /// Time for a call in which the server gives no sign of life.
    pub timeout: Duration,
}

/// How an MCP server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpTransport {
    /// Streamable HTTP.
    Http {
        /// The endpoint.
        url: String,
        /// Headers of every request, by name.
        headers: BTreeMap<String, HeaderTemplate>,
        /// The user whose secrets the headers name; without one, the user who calls.
        secrets_of: Option<String>,
    },
    /// Standard input and output of a command in a container.
    Stdio {
        /// The image.
        image: String,
        /// The program and its arguments.
        command: Vec<String>,
    },
}

/// The value of a header, with the name of a secret in place of its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderTemplate {
    /// Text before the secret's value, such as `Bearer `.
    pub prefix: String,
    /// The secret's name.
    pub secret: String,
    /// Text after it.
    pub suffix: String,
}

impl HeaderTemplate {
    /// Parses `NAME` or text with `{NAME}`.
    fn parse(text: &str) -> Option<Self> {
        let (prefix, rest) = match text.split_once('{') {
            None => ("", text),
            Some((prefix, rest)) => (prefix, rest.split_once('}').map(|_| rest)?),
        };
        let (secret, suffix) = rest.split_once('}').unwrap_or((rest, ""));
        let is_plain = |text: &str| text.chars().all(|c| matches!(c, ' '..='~') && c != '{' && c != '}');
        let is_valid = is_secret_name(secret) && is_plain(prefix) && is_plain(suffix);
        is_valid.then(|| Self { prefix: prefix.to_owned(), secret: secret.to_owned(), suffix: suffix.to_owned() })
    }
}

/// One table as it is written. Headers are checked by hand, because the errors of a deserializer repeat values.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    url: Option<String>,
    headers: Option<Value>,
    secrets_of: Option<String>,
    image: Option<String>,
    command: Option<Vec<String>>,
    requirement: Option<ApprovalRequirement>,
    timeout_seconds: Option<u64>,
}

impl Table {
    fn into_server(self) -> Result<McpServerSettings, String> {
        let name = check_name(self.name)?;
        let of_server = |message: &str| format!("{name}: {message}");
        let transport = match (self.url, self.image, self.command) {
            (Some(url), None, None) => {
                let headers = headers(self.headers).map_err(|message| of_server(&message))?;
                McpTransport::Http { url, headers, secrets_of: self.secrets_of }
            }
            (None, Some(image), Some(command)) => {
                if self.headers.is_some() || self.secrets_of.is_some() {
                    return Err(of_server("headers and secrets_of are for servers with a url"));
                }
                let is_command = !image.is_empty()
                    && (1..=MAX_LIST_ITEMS).contains(&command.len())
                    && command.iter().all(|part| !part.is_empty() && !part.contains('\0'));
                if !is_command {
                    return Err(of_server("image and command must not be empty"));
                }
                McpTransport::Stdio { image, command }
            }
            _ => return Err(of_server("must have either url, or image and command")),
        };
        let requirement = self.requirement.unwrap_or(ApprovalRequirement::UnlessAutoApproved);
        let seconds = self.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        if !TIMEOUT_SECONDS.contains(&seconds) {
            let (min, max) = (TIMEOUT_SECONDS.start(), TIMEOUT_SECONDS.end());
            return Err(format!("{name}: timeout_seconds must be {min} to {max}"));
        }
        Ok(McpServerSettings { name, transport, requirement, timeout: Duration::from_secs(seconds) })
    }
}

fn check_name(name: String) -> Result<String, String> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-');
    let is_valid = (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.contains(SEPARATOR)
        // Otherwise the name of a tool could be split in two ways.
        && !name.starts_with('_')
        && !name.ends_with('_');
    if is_valid {
        return Ok(name);
    }
    let rule = "must be 1 to 32 of a-z 0-9 _ -, not begin or end with _, and not contain __";
    Err(format!("the name of a server {rule}"))
}

fn headers(table: Option<Value>) -> Result<BTreeMap<String, HeaderTemplate>, String> {
    let table = match table {
        None => return Ok(BTreeMap::new()),
        Some(Value::Table(table)) if table.len() <= MAX_LIST_ITEMS => table,
        Some(_) => return Err(format!("headers must be a table of at most {MAX_LIST_ITEMS} headers")),
    };
    table
        .into_iter()
        .map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            if PROTOCOL_HEADERS.contains(&name.as_str()) {
                return Err(format!("the header {name} is set by the client; leave it out"));
            }
            let expected =
                "must be the name of a secret, such as \"token\", or text with one, such as \"Bearer {token}\"";
            let template = value.as_str().and_then(HeaderTemplate::parse);
            template.map(|template| (name.clone(), template)).ok_or_else(|| format!("the header {name} {expected}"))
        })
        .collect()
}

impl SettingValue for Vec<McpServerSettings> {
    const KIND: Kind = Kind::Table;

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        let RawValue::Toml(Value::Array(tables)) = raw else {
            return Err("can only be set in the configuration file, as [[mcp]]".to_owned());
        };
        let mut names = BTreeSet::new();
        let mut servers = Self::new();
        for (index, table) in tables.iter().enumerate() {
            let table: Table = table.clone().try_into().map_err(|error| invalid_table("server", index, &error))?;
            let server = table.into_server()?;
            // Names of tools are compared without the kind of their separators.
            if !names.insert(server.name.replace('-', "_")) {
                return Err(format!(
                    "there are two servers with the name {}, or names that differ in - and _ only",
                    server.name
                ));
            }
            servers.push(server);
        }
        if servers.len() > MAX_SERVERS {
            return Err(format!("there can be at most {MAX_SERVERS} servers"));
        }
        Ok(servers)
    }

    fn unset() -> Option<Self> {
        Some(Self::new())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::setting::setting;

    fn parse(file: &str) -> Result<Vec<McpServerSettings>, String> {
        let table: toml::Table = file.parse().unwrap();
        Vec::parse(&RawValue::Toml(table["mcp"].clone()), &setting("mcp"))
    }

    #[test]
    fn servers_are_read() {
        let servers = parse(
            "[[mcp]]\nname = 'git-hub'\nurl = 'https://a.example/mcp'\nrequirement = 'always'\ntimeout_seconds = 3600\nsecrets_of = 'ops'\n\
             [mcp.headers]\nAuthorization = 'Bearer {token}'\nX-Key = 'key'\n\
             [[mcp]]\nname = 'time'\nimage = 'mcp:1'\ncommand = ['mcp-server-time', '--local-timezone=UTC']",
        );
        let template = |prefix: &str, secret: &str| HeaderTemplate {
            prefix: prefix.to_owned(),
            secret: secret.to_owned(),
            suffix: String::new(),
        };
        let http = McpServerSettings {
            name: "git-hub".to_owned(),
            transport: McpTransport::Http {
                url: "https://a.example/mcp".to_owned(),
                headers: BTreeMap::from([
                    ("authorization".to_owned(), template("Bearer ", "token")),
                    ("x-key".to_owned(), template("", "key")),
                ]),
                secrets_of: Some("ops".to_owned()),
            },
            requirement: ApprovalRequirement::Always,
            timeout: Duration::from_hours(1),
        };
        let stdio = McpServerSettings {
            name: "time".to_owned(),
            transport: McpTransport::Stdio {
                image: "mcp:1".to_owned(),
                command: vec!["mcp-server-time".to_owned(), "--local-timezone=UTC".to_owned()],
            },
            requirement: ApprovalRequirement::UnlessAutoApproved,
            timeout: Duration::from_mins(1),
        };
        assert_eq!(servers, Ok(vec![http, stdio]));
    }

    #[rstest]
    #[case("name = 'A'\nurl = 'x'", "name of a server")]
    #[case("name = 'a__b'\nurl = 'x'", "name of a server")]
    #[case("name = 'a_'\nurl = 'x'", "name of a server")]
    #[case("name = ''\nurl = 'x'", "name of a server")]
    #[case("name = 'a b'\nurl = 'x'", "name of a server")]
    #[case("name = 'a'", "either url, or image and command")]
    #[case("name = 'a'\nimage = 'i'", "either url, or image and command")]
    #[case("name = 'a'\nurl = 'x'\nimage = 'i'\ncommand = ['c']", "either url, or image and command")]
    #[case("name = 'a'\nimage = 'i'\ncommand = []", "must not be empty")]
    #[case("name = 'a'\nimage = 'i'\ncommand = ['c']\nheaders = {a = 'b'}", "servers with a url")]
    #[case("name = 'a'\nurl = 'x'\nheaders = {Accept = 'b'}", "set by the client")]
    #[case("name = 'a'\nurl = 'x'\nrequirement = '`, expected hunter2'", "must be one of")]
    #[case("name = 'a'\nurl = 'x'\ntimeout_seconds = 0", "timeout_seconds must be 1 to 3600")]
    #[case("name = 'a'\nurl = 'x'\ntimeout_seconds = 3601", "timeout_seconds must be 1 to 3600")]
    #[case("name = 'a'\nurl = 'x'\nwhere = 'hunter2'", "unknown field `where`")]
    #[case("name = 'a'\nurl = 'x'\nheaders = 'hunter2'", "must be a table")]
    #[case("name = 'a'\nurl = 'x'\nheaders = {Authorization = 'Bearer hunter2'}", "name of a secret")]
    #[case("name = 'a'\nurl = 'x'\nheaders = {Authorization = ['hunter2']}", "name of a secret")]
    #[case("name = 'a'\nurl = 'x'\nheaders = {Authorization = '{a}{hunter2}'}", "name of a secret")]
    #[case("name = 'a'\nurl = 'x'\n[[mcp]]\nname = 'a'\nurl = 'y'", "two servers")]
    #[case("name = 'a-b'\nurl = 'x'\n[[mcp]]\nname = 'a_b'\nurl = 'y'", "differ in - and _")]
    fn other_servers_are_refused_without_their_values(#[case] table: &str, #[case] expected: &str) {
        let error = parse(&format!("[[mcp]]\n{table}")).unwrap_err();
        assert!(error.contains(expected) && !error.contains("hunter2"), "{error}");
    }

    #[test]
    fn there_is_a_maximum_number_of_servers() {
        let many: Vec<String> = (0..=MAX_SERVERS).map(|n| format!("[[mcp]]\nname = 's{n}'\nurl = 'x'\n")).collect();
        assert!(parse(&many.concat()).unwrap_err().contains("at most 32"));
    }
}
