//! Sums of usage, and how they are grouped.

use std::{fmt, str::FromStr};

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};

use crate::{JobId, RoutineId, names::wire_enum};

/// What `GET /api/usage` groups its sums by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UsageGroup {
    /// The day in UTC, the newest first.
    Day,
    /// The job, the newest first.
    Job,
    /// The model, in the order of their names.
    Model,
    /// The user, in the order of their names.
    User,
    /// The routine whose runs and jobs it was, in the order of their ids.
    Routine,
    /// The value that jobs have for a label with this key, in the order of the values.
    Label(String),
}

impl UsageGroup {
    /// Groups that are named together, separated by a comma: one, or two that are summed up together. A job stands
    /// alone, and of routines and labels there can be one.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, ParseUsageGroupError> {
        let groups: Vec<Self> = text.split(',').map(|name| name.trim().parse()).collect::<Result<_, _>>()?;
        let is_allowed = match groups.as_slice() {
            [_] => true,
            [first, second] => {
                let is_job = |group: &Self| *group == Self::Job;
                let has_value = |group: &Self| matches!(group, Self::Routine | Self::Label(_));
                first != second && ![first, second].into_iter().any(is_job) && !(has_value(first) && has_value(second))
            }
            _ => false,
        };
        if is_allowed { Ok(groups) } else { Err(ParseUsageGroupError::Combination) }
    }
}

impl fmt::Display for UsageGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Day => f.write_str("day"),
            Self::Job => f.write_str("job"),
            Self::Model => f.write_str("model"),
            Self::User => f.write_str("user"),
            Self::Routine => f.write_str("routine"),
            Self::Label(key) => write!(f, "label:{key}"),
        }
    }
}

/// The text does not name groups of usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseUsageGroupError {
    /// A name is unknown.
    Name,
    /// The groups cannot be summed up together.
    Combination,
}

impl fmt::Display for ParseUsageGroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "must be one of day, job, model, user, routine, label:KEY",
            Self::Combination => {
                "must be one group, or two of day, model, user and one of routine and label:KEY, separated by a comma"
            }
        })
    }
}

impl std::error::Error for ParseUsageGroupError {}

impl FromStr for UsageGroup {
    type Err = ParseUsageGroupError;

    fn from_str(text: &str) -> Result<Self, ParseUsageGroupError> {
        match text {
            "day" => Ok(Self::Day),
            "job" => Ok(Self::Job),
            "model" => Ok(Self::Model),
            "user" => Ok(Self::User),
            "routine" => Ok(Self::Routine),
            other => match other.strip_prefix("label:") {
                Some(key) if !key.is_empty() => Ok(Self::Label(key.to_owned())),
                _ => Err(ParseUsageGroupError::Name),
            },
        }
    }
}

wire_enum! {
    /// The order of the lines of `GET /api/usage`.
    #[derive(Default)]
    pub enum UsageSort {
        /// In the order of the groups.
        #[default]
        Group,
        /// The dearest first; what had no price counts nothing.
        Cost,
    }
}

/// One line of `GET /api/usage`: the sums of a group, or of two. It has the fields of its groups; a job's line also has
/// the job's user.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "as in a job's usage")]
pub struct UsageLine {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<NaiveDate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routine_id: Option<RoutineId>,
    /// The routine's name, also once it is deleted, as long as runs of it are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routine_name: Option<String>,
    /// The value of the label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_write_tokens: u64,
    /// The sum of all calls; null when any of them had no price.
    pub cost_usd: Option<f64>,
    pub llm_calls: u64,
    /// Absent in sums by model: a tool call belongs to no model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_as_they_are_written() {
        for text in ["day", "job", "model", "user", "routine", "label:team", "day,model", "label:a/b,user"] {
            let groups = UsageGroup::parse_list(text).unwrap();
            let names: Vec<String> = groups.iter().map(ToString::to_string).collect();
            assert_eq!(names.join(","), text);
        }
        assert_eq!(UsageGroup::parse_list("day, user"), Ok(vec![UsageGroup::Day, UsageGroup::User]));
    }

    #[test]
    fn other_names_and_groups_that_have_no_common_sums_are_refused() {
        for text in ["", "hour", "label:", "label", "day,", "Day"] {
            assert_eq!(UsageGroup::parse_list(text), Err(ParseUsageGroupError::Name), "{text}");
        }
        for text in ["day,day", "job,model", "day,job", "routine,label:a", "label:a,label:b", "day,model,user"] {
            assert_eq!(UsageGroup::parse_list(text), Err(ParseUsageGroupError::Combination), "{text}");
        }
    }
}
