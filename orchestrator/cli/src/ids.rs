//! Ids on the command line: whole, a part of one, or `latest`.
//!
//! Owns finding the object that a part names, through the filter `id` of its list, and the short form that tables show.

use std::{fmt, str::FromStr};

use protocol::{GateId, JobId, NotificationId, Page, RoutineId, RunId, ThreadId};
use serde_json::Value;

use super::{
    client::Client,
    exit::CliError,
    output::{one_line, truncate},
};

/// Shortest part of an id that the API accepts.
const MIN_PART_CHARS: usize = 4;
/// Digits that tables show. The last ones, because UUIDv7 begins with the time.
const SHORT_DIGITS: usize = 8;
/// Most candidates that an error lists.
const MAX_CANDIDATES: usize = 10;
const MAX_TITLE_CHARS: usize = 60;
/// Objects among which the beginning of a short id is looked for: a page of the API.
const NEWEST: usize = 200;
/// The newest object of the caller.
pub(super) const LATEST: &str = "latest";

/// The last digits of an id; they identify it wherever the command line takes an id.
pub(super) fn short_id(id: &str) -> String {
    let start = id.char_indices().rev().nth(SHORT_DIGITS - 1).map_or(0, |(start, _)| start);
    id[start..].to_owned()
}

/// Something that a list of the API returns by its id.
pub trait Identified: FromStr + fmt::Display + Copy {
    /// What it is called.
    const NOUN: &'static str;
    const LIST: &'static str;
    /// The filter that makes the list complete.
    const EVERY: &'static [(&'static str, &'static str)] = &[];
    /// Whether the list of an admin has the objects of all users, unless it is filtered by user.
    const HAS_USER_FILTER: bool = false;
}

impl Identified for JobId {
    const NOUN: &'static str = "job";
    const LIST: &'static str = "/api/jobs";
    const HAS_USER_FILTER: bool = true;
}

impl Identified for RunId {
    const NOUN: &'static str = "run";
    const LIST: &'static str = "/api/runs";
    const HAS_USER_FILTER: bool = true;
}

impl Identified for RoutineId {
    const NOUN: &'static str = "routine";
    const LIST: &'static str = "/api/routines";
}

impl Identified for NotificationId {
    const NOUN: &'static str = "notification";
    const LIST: &'static str = "/api/notifications";
}

impl Identified for ThreadId {
    const NOUN: &'static str = "thread";
    const LIST: &'static str = "/api/chat/threads";
}

impl Identified for GateId {
    const NOUN: &'static str = "gate";
    const LIST: &'static str = "/api/gates";
    const EVERY: &'static [(&'static str, &'static str)] = &[("state", "pending,approved,denied,expired")];
}

/// An id as an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdArg<T> {
    Whole(T),
    /// Its first or last characters.
    Part(String),
    /// The newest object of the caller.
    Latest,
}

impl<T: FromStr> FromStr for IdArg<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == LATEST {
            return Ok(Self::Latest);
        }
        if let Ok(id) = text.parse() {
            return Ok(Self::Whole(id));
        }
        let is_part = text.len() >= MIN_PART_CHARS && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
        if is_part {
            return Ok(Self::Part(text.to_owned()));
        }
        Err(format!("must be an id, at least {MIN_PART_CHARS} characters from its beginning or end, or latest"))
    }
}

impl<T: Identified> IdArg<T> {
    /// The id of the only object that matches.
    pub(super) async fn resolve(self, client: &Client) -> Result<T, CliError> {
        let part = match self {
            Self::Whole(id) => return Ok(id),
            Self::Latest => None,
            Self::Part(part) => Some(part),
        };
        let every: Vec<(&str, String)> = T::EVERY.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        let mut query = every.clone();
        if let Some(part) = &part {
            query.extend([("id", part.clone()), ("limit", (MAX_CANDIDATES + 1).to_string())]);
        } else {
            query.push(("limit", "1".to_owned()));
            query.extend(client.user().filter(|_| T::HAS_USER_FILTER).map(|user| ("user", user)));
        }
        let mut page: Page<Value> = client.get(T::LIST, &query).await?;
        if let Some(part) = part.as_deref().filter(|part| page.items.is_empty() && part.len() < SHORT_DIGITS) {
            // The beginning of what tables show, which the API's filter does not match.
            query = every;
            query.push(("limit", NEWEST.to_string()));
            page = client.get(T::LIST, &query).await?;
            page.items.retain(|item| short_id(item["id"].as_str().unwrap_or_default()).starts_with(part));
        }
        only::<T>(part.as_deref(), &page.items)
    }
}

/// The thread that an argument names: its key or whole id, a part of its id, or `latest`.
pub(super) async fn thread(client: &Client, text: String) -> Result<String, CliError> {
    match text.parse::<IdArg<ThreadId>>() {
        Ok(IdArg::Whole(_)) | Err(_) => Ok(text),
        Ok(part) => match part.resolve(client).await {
            Ok(id) => Ok(id.to_string()),
            // A key may look like a part of an id.
            Err(CliError::NotFound(_)) if text != LATEST => Ok(text),
            Err(error) => Err(error),
        },
    }
}

fn only<T: Identified>(part: Option<&str>, items: &[Value]) -> Result<T, CliError> {
    let noun = T::NOUN;
    let id_of = |item: &Value| item["id"].as_str().unwrap_or_default().to_owned();
    match (part, items) {
        (None, []) => Err(CliError::NotFound(format!("you have no {noun} yet"))),
        (Some(part), []) => Err(CliError::NotFound(format!("no {noun} has an id that starts or ends with {part}"))),
        (_, [item]) => id_of(item)
            .parse()
            .map_err(|_| CliError::Failed(format!("the server returned a {noun} with an invalid id"))),
        (part, items) => {
            let mut text = format!("{} matches several {noun}s; give more characters:", part.unwrap_or_default());
            for item in items.iter().take(MAX_CANDIDATES) {
                let name = ["title", "name", "routine_name", "tool"].iter().find_map(|field| item[*field].as_str());
                let name = truncate(&one_line(name.unwrap_or_default()), MAX_TITLE_CHARS);
                text.push_str(format!("\n  {}  {name}", id_of(item)).trim_end());
            }
            if items.len() > MAX_CANDIDATES {
                text.push_str("\n  …");
            }
            Err(CliError::Usage(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    const ID: &str = "01890000-0000-7000-8000-00000000abcd";

    #[rstest]
    #[case(ID, true)]
    #[case("latest", true)]
    #[case("abcd", true)]
    #[case("0189", true)]
    #[case("8000-00000000abcd", true)]
    #[case("abc", false)]
    #[case("last", false)]
    #[case("", false)]
    #[case("0189/../x", false)]
    fn an_id_is_whole_a_part_or_latest(#[case] text: &str, #[case] is_valid: bool) {
        assert_eq!(text.parse::<IdArg<JobId>>().is_ok(), is_valid);
    }

    #[test]
    fn the_short_form_is_the_end_of_the_id() {
        assert_eq!((short_id(ID).as_str(), short_id("å").as_str()), ("0000abcd", "å"));
    }

    #[test]
    fn an_ambiguous_part_lists_the_candidates() {
        let other = ID.replace("abcd", "1bcd");
        let items = [json!({"id": ID, "title": "one\x1b"}), json!({"id": other, "title": "two"})];
        let Err(error) = only::<JobId>(Some("bcd"), &items) else { panic!("it is ambiguous") };
        assert_eq!(
            error.to_string(),
            format!("bcd matches several jobs; give more characters:\n  {ID}  one␛\n  {other}  two")
        );
        assert_eq!(only::<JobId>(Some("abcd"), &items[..1]).unwrap().to_string(), ID);
        assert!(matches!(only::<JobId>(Some("abcd"), &[]), Err(CliError::NotFound(_))));
        assert!(matches!(only::<JobId>(None, &[]), Err(CliError::NotFound(_))));
    }
}
