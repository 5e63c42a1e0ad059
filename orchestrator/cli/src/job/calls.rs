//! `gantry job actions`, `gantry job llm-calls` and `gantry job prompts`: the audit of a job's tool calls and model calls, and what people
//! sent to it.

use clap::Args;
use protocol::{JobId, JobPrompt, LlmCallRecord, ToolActionRecord};

use crate::{
    client::{Client, List, Nothing, PageArgs},
    exit::CliError,
    ids::IdArg,
    output::{Column, Output, cost, one_line, render},
};

#[derive(Debug, Args)]
pub struct CallsArgs {
    /// Job id
    id: IdArg<JobId>,
    #[command(flatten)]
    page: PageArgs,
}

/// Tool calls as a table.
pub(crate) const TOOL_CALLS: List<ToolActionRecord> = List {
    columns: &[
        Column::<ToolActionRecord>::text("call", |call, _| one_line(&call.call_id.0)).wide(),
        Column::<ToolActionRecord>::text("time", |call, view| view.time(call.at)).wide(),
        Column::text("tool", |call, _| one_line(&call.tool)),
        Column::text("outcome", |call, _| {
            match call.success {
                None => "running",
                Some(true) => "ok",
                Some(false) => "failed",
            }
            .to_owned()
        }),
        Column::number("took", |call, _| milliseconds(call.duration_ms)),
        Column::<ToolActionRecord>::number("attempt", |call, _| call.attempt.to_string()).wide(),
        Column::<ToolActionRecord>::number("cost", |call, _| cost(call.cost_usd)).wide(),
        Column::<ToolActionRecord>::text("reason", |call, _| one_line(call.reasoning.as_deref().unwrap_or_default()))
            .wide(),
        Column::flexible("arguments", |call, _| one_line(&render::arguments(&call.tool, &call.input))),
    ],
    id: |call| one_line(&call.call_id.0),
    none: Nothing { yet: "no tool calls yet", matches: "no tool call matches" },
};

/// Model calls as a table.
pub(crate) const LLM_CALLS: List<LlmCallRecord> = List {
    columns: &[
        Column::<LlmCallRecord>::text("call", |call, _| one_line(&call.call_id.0)).wide(),
        Column::<LlmCallRecord>::text("time", |call, view| view.time(call.at)).wide(),
        Column::text("model", |call, _| one_line(&call.model)),
        Column::<LlmCallRecord>::text("provider", |call, _| one_line(&call.provider)).wide(),
        Column::number("input", |call, _| call.usage.input_tokens.to_string()),
        Column::number("output", |call, _| call.usage.output_tokens.to_string()),
        Column::number("took", |call, _| milliseconds(Some(call.duration_ms))),
        Column::number("cost", |call, _| cost(call.cost_usd)),
        Column::flexible("ended", |call, _| {
            one_line(call.error.as_ref().or(call.finish_reason.as_ref()).map_or("", String::as_str))
        }),
    ],
    id: |call| one_line(&call.call_id.0),
    none: Nothing { yet: "no model calls yet", matches: "no model call matches" },
};

/// Prompts as a table.
const PROMPTS: List<JobPrompt> = List {
    columns: &[
        Column::text("sent", |prompt, view| view.time(prompt.created_at)),
        Column::text("read", |prompt, view| prompt.read_at.map(|at| view.time(at)).unwrap_or_default()),
        Column::text("mode", |prompt, _| prompt.mode.to_string()),
        Column::flexible("prompt", |prompt, _| one_line(&prompt.content)),
    ],
    id: |prompt| prompt.id.to_string(),
    none: Nothing { yet: "no prompts yet", matches: "no prompt matches" },
};

pub(super) async fn prompts(client: &Client, args: CallsArgs, output: &mut Output) -> Result<(), CliError> {
    let id = args.id.resolve(client).await?;
    PROMPTS.print(client, (&format!("/api/jobs/{id}/prompts"), &[]), &args.page, output).await
}

fn milliseconds(duration: Option<u64>) -> String {
    duration.map(|duration| format!("{duration} ms")).unwrap_or_default()
}

pub(super) async fn actions(client: &Client, args: CallsArgs, output: &mut Output) -> Result<(), CliError> {
    let id = args.id.resolve(client).await?;
    TOOL_CALLS.print(client, (&format!("/api/jobs/{id}/actions"), &[]), &args.page, output).await
}

pub(super) async fn llm_calls(client: &Client, args: CallsArgs, output: &mut Output) -> Result<(), CliError> {
    let id = args.id.resolve(client).await?;
    LLM_CALLS.print(client, (&format!("/api/jobs/{id}/llm-calls"), &[]), &args.page, output).await
}
