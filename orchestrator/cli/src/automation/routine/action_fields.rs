//! The action of a routine from the command line.

use std::collections::BTreeMap;

use clap::Args;
use protocol::Effort;
use serde_json::{Map, Value, json};

use super::fields::given;
use crate::{
    exit::CliError,
    input::{one_of, text_or_stdin},
    job::create::{label, limits},
};

/// What a run does.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Action")]
pub(super) struct ActionFields {
    /// Run the agent's loop in the server with this prompt; - reads it from standard input
    #[arg(long, value_name = "TEXT", group = "action")]
    prompt: Option<String>,
    /// Run a job with this prompt; - reads it from standard input
    #[arg(long, value_name = "TEXT", group = "action")]
    job: Option<String>,
    /// Put this line into your main session; - reads it from standard input
    #[arg(long, value_name = "TEXT", group = "action")]
    text: Option<String>,
    /// With --prompt: let the model call tools
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    tools: Option<bool>,
    /// With --tools: rounds of tool calls
    #[arg(long, value_name = "N")]
    max_tool_rounds: Option<u32>,
    /// With --prompt: document of your memory that the model reads; can be repeated
    #[arg(long = "context-path", value_name = "PATH")]
    context: Vec<String>,
    /// With --prompt: output tokens of each model call
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// Model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// How much the model thinks
    #[arg(long, value_name = "LEVEL", value_parser = one_of(Effort::ALL))]
    effort: Option<Effort>,
    /// With --job: title of the job
    #[arg(long)]
    title: Option<String>,
    /// With --job: image, one of the operator's
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// With --job: begin with a plan
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    plan: Option<bool>,
    /// With --job: wait for a person to accept or reject the result
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    review: Option<bool>,
    /// With --job: jobs with a higher priority start first; -100 to 100
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    priority: Option<i32>,
    #[arg(
        long = "tool",
        value_name = "NAME",
        help = "Allow only this tool; SERVER__* is all tools of an MCP server, +NAME the built-in tools and this one; can be repeated; with --prompt, implies --tools"
    )]
    tool: Vec<String>,
    /// Let this tool run although it always requires approval; can be repeated; with --prompt, implies --tools
    #[arg(long = "approve", value_name = "TOOL")]
    approve: Vec<String>,
    /// With --job: host that the job may reach, or preset:NAME; can be repeated
    #[arg(long = "egress", value_name = "HOST[:PORT]")]
    egress: Vec<String>,
    #[arg(
        long = "limit",
        value_name = "NAME=NUMBER",
        help = "With --job: limit, such as timeout_seconds=600; can be repeated"
    )]
    limits: Vec<String>,
    /// With --job: label; can be repeated
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
}

impl ActionFields {
    /// The action that the flags ask for; `None` if they leave `current` as it is.
    pub(super) fn apply(mut self, current: Option<&Value>) -> Result<Option<Value>, CliError> {
        let base = self.base()?;
        let details = self.details()?;
        if base.is_none() && details.is_empty() {
            return Ok(None);
        }
        let mut action = match (base, current) {
            // Another text for the same type of action leaves its other fields as they are.
            (Some(Value::Object(base)), Some(Value::Object(current))) if base.get("type") == current.get("type") => {
                let mut action = current.clone();
                action.extend(base);
                Value::Object(action)
            }
            (Some(base), _) => base,
            (None, Some(current)) => current.clone(),
            (None, None) => {
                return Err(CliError::Usage(
                    "no action: add --prompt, --job or --text, or a file with --file".to_owned(),
                ));
            }
        };
        // Lists of tools have no effect on a run without tools.
        let names_tools = details.contains_key("tools") || details.contains_key("approve");
        if names_tools && !details.contains_key("use_tools") && action["type"] == "lightweight" {
            action["use_tools"] = json!(true);
        }
        for (name, value) in details {
            action[&name] = value;
        }
        Ok(Some(action))
    }

    fn base(&mut self) -> Result<Option<Value>, CliError> {
        Ok(if let Some(prompt) = self.prompt.take() {
            Some(json!({"type": "lightweight", "prompt": text_or_stdin(prompt)?}))
        } else if let Some(job) = self.job.take() {
            Some(json!({"type": "full_job", "description": text_or_stdin(job)?}))
        } else if let Some(text) = self.text.take() {
            Some(json!({"type": "system_event_text", "text": text_or_stdin(text)?}))
        } else {
            None
        })
    }

    fn details(self) -> Result<Map<String, Value>, CliError> {
        let list = |items: Vec<String>| (!items.is_empty()).then_some(items);
        let labels = self.labels.iter().map(|pair| label(pair)).collect::<Result<BTreeMap<_, _>, _>>()?;
        Ok(given(json!({
            "use_tools": self.tools,
            "max_tool_rounds": self.max_tool_rounds,
            "context_paths": list(self.context),
            "max_tokens": self.max_tokens,
            "model": self.model,
            "effort": self.effort,
            "title": self.title,
            "image": self.image,
            "plan": self.plan,
            "review": self.review,
            "priority": self.priority,
            "tools": list(self.tool),
            "approve": list(self.approve),
            "egress": {"allow": list(self.egress)},
            "limits": limits(&self.limits)?,
            "labels": labels,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_text_keeps_the_other_fields_of_the_action() {
        let current =
            json!({"type": "full_job", "description": "old", "limits": {"timeout_seconds": 3}, "labels": {"a": "b"}});
        let applied = |fields: ActionFields| fields.apply(Some(&current)).unwrap().unwrap();
        let job = ActionFields { job: Some("new".to_owned()), ..ActionFields::default() };
        let wanted =
            json!({"type": "full_job", "description": "new", "limits": {"timeout_seconds": 3}, "labels": {"a": "b"}});
        assert_eq!(applied(job), wanted);
        let prompt = ActionFields { prompt: Some("look".to_owned()), ..ActionFields::default() };
        assert_eq!(applied(prompt), json!({"type": "lightweight", "prompt": "look"}));
        let job = ActionFields { plan: Some(true), review: Some(false), priority: Some(-3), ..ActionFields::default() };
        let action = applied(job);
        assert_eq!(
            [&action["plan"], &action["review"], &action["priority"]],
            [&json!(true), &json!(false), &json!(-3)]
        );
        let effort = ActionFields { effort: Some(Effort::High), ..ActionFields::default() };
        assert_eq!(applied(effort)["effort"], json!("high"));
    }
}
