//! `gantry gate`: tool calls of chats that wait for a person.

use clap::{Args, Subcommand};
use protocol::{Gate, GateDecision, GateId, GateResolution, GateScope, GateState, ResolveGate};
use serde_json::Value;

use crate::{
    client::{Client, List, Nothing, PageArgs, zones},
    exit::CliError,
    ids::IdArg,
    input::one_of_explained,
    output::{Column, Output, Paint, escape_control_chars, local_time, one_line},
};
use base::Zone;

#[derive(Debug, Subcommand)]
pub enum GateCommand {
    /// List calls that wait for approval, newest first
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show what a call would run
    Show {
        /// Gate id
        id: IdArg<GateId>,
    },
    /// Let a call run
    Approve(ApproveArgs),
    /// Refuse a call; the agent goes on without it
    Deny {
        /// Gate id
        id: IdArg<GateId>,
        /// Why; the agent reads it
        #[arg(long)]
        reason: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// State, or several separated by commas: pending, approved, denied, expired
    #[arg(long, default_value = "pending")]
    state: String,
    /// Only gates whose id starts or ends with this; at least 4 characters
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Args)]
pub struct ApproveArgs {
    /// Gate id
    id: IdArg<GateId>,
    /// Also let later calls of the tool run without asking
    #[arg(long)]
    always: bool,
    /// Where --always applies
    #[arg(long, value_parser = one_of_explained(SCOPES), default_value = "thread", requires = "always")]
    scope: GateScope,
    /// Refuse to approve if the parameters have another digest than this
    #[arg(long, value_name = "SHA256")]
    digest: Option<String>,
    /// Why
    #[arg(long)]
    reason: Option<String>,
}

/// Where `--always` applies.
const SCOPES: &[(GateScope, &str)] =
    &[(GateScope::Thread, "In the thread of the call"), (GateScope::User, "In all your threads")];

pub(crate) async fn run(command: GateCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        GateCommand::List(args) => list(client, args, output).await,
        GateCommand::Show { id } => {
            let id = id.resolve(client).await?;
            let gate: Gate = client.get(&format!("/api/gates/{id}"), &[]).await?;
            let zone = zones::shown(client, output).await;
            output.either(&gate, |paint| describe(paint, &gate, zone))
        }
        GateCommand::Approve(args) => {
            let decision = if args.always { GateDecision::Always } else { GateDecision::Approve };
            let scope = args.always.then_some(args.scope);
            let body = ResolveGate { decision, reason: args.reason, scope, parameters_digest: args.digest };
            resolve(client, args.id.resolve(client).await?, &body, output).await
        }
        GateCommand::Deny { id, reason } => {
            let body = ResolveGate { decision: GateDecision::Deny, reason, scope: None, parameters_digest: None };
            resolve(client, id.resolve(client).await?, &body, output).await
        }
    }
}

async fn list(client: &Client, args: ListArgs, output: &mut Output) -> Result<(), CliError> {
    let is_filtered = args.id.is_some() || args.state != GateState::Pending.as_str();
    let matches = if is_filtered { GATES.none.matches } else { GATES.none.yet };
    let mut query = vec![("state", args.state)];
    query.extend(args.id.map(|part| ("id", part)));
    let gates = List { none: Nothing { matches, ..GATES.none }, ..GATES };
    gates.print(client, ("/api/gates", &query), &args.page, output).await
}

async fn resolve(client: &Client, id: GateId, body: &ResolveGate, output: &mut Output) -> Result<(), CliError> {
    let done: GateResolution = client.post(&format!("/api/gates/{id}/resolve"), body, None).await?;
    output.either(&done, |_| {
        let remembered = match (body.decision, done.remembered) {
            (GateDecision::Always, true) => "; later calls run without asking",
            (GateDecision::Always, false) => "; later calls will ask again",
            _ => "",
        };
        format!("{} {}{remembered}", one_line(&done.gate.tool), done.gate.state)
    })
}

const GATES: List<Gate> = List {
    columns: &[
        Column::text("id", |gate, view| view.id(&gate.id)),
        Column::text("state", |gate, _| gate.state.to_string()),
        Column::user(|gate, _| one_line(&gate.user_id)),
        Column::text("tool", |gate, _| one_line(&gate.tool)),
        Column::text("expires", |gate, view| view.time(gate.expires_at)),
        Column::flexible("arguments", |gate, _| one_line(&gate.parameters.to_string())),
    ],
    id: |gate| gate.id.to_string(),
    none: Nothing { yet: "no tool call waits for your approval", matches: "no gate matches" },
};

/// All that a person needs to decide.
fn describe(paint: Paint, gate: &Gate, zone: Zone) -> String {
    let state = match gate.state {
        GateState::Pending => paint.yellow(gate.state.as_str()),
        GateState::Approved => paint.green(gate.state.as_str()),
        GateState::Denied | GateState::Expired => paint.red(gate.state.as_str()),
    };
    let mut lines = vec![
        format!("{} {state}", paint.bold(&one_line(&gate.tool))),
        format!("gate     {}", gate.id),
        format!("thread   {}", gate.thread_id),
        format!("user     {}", one_line(&gate.user_id)),
        format!("created  {}", local_time(gate.created_at, zone)),
        format!("expires  {}", local_time(gate.expires_at, zone)),
        format!("digest   {}", one_line(&gate.parameters_digest)),
        format!("always   {}", if gate.can_be_remembered { "can be remembered" } else { "cannot be remembered" }),
    ];
    if let (Some(by), Some(at)) = (&gate.resolved_by, gate.resolved_at) {
        let reason = gate.reason.as_ref().map(|reason| format!(": {}", one_line(reason))).unwrap_or_default();
        lines.push(format!("resolved {} by {}{reason}", local_time(at, zone), one_line(by)));
    }
    if !gate.reasoning.is_empty() {
        lines.push(format!("\n{}", escape_control_chars(gate.reasoning.trim_end())));
    }
    lines.push(format!("\nwould run with\n{}", call_arguments(gate)));
    lines.join("\n")
}

/// The arguments of the call, and what follows from them that is easily missed: tools of MCP servers act outside of the
/// container of the job that gets them.
pub(super) fn call_arguments(gate: &Gate) -> String {
    let parameters = serde_json::to_string_pretty(&gate.parameters).unwrap_or_default();
    let mut text = escape_control_chars(&parameters);
    let tools = gate.parameters.get("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let names = tools.iter().filter_map(Value::as_str).map(|entry| entry.strip_prefix('+').unwrap_or(entry));
    let outside: Vec<String> = names.filter(|name| name.contains("__")).map(one_line).collect();
    if gate.tool == "create_job" && !outside.is_empty() {
        text.push_str("\nThe job can use these tools, which act outside of its container: ");
        text.push_str(&outside.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use protocol::{GateKind, ThreadId};
    use serde_json::json;

    use super::*;
    use crate::output::table::{View, table};

    #[test]
    fn a_job_that_gets_tools_of_mcp_servers_is_told() {
        let gate = |tool: &str, tools: &[&str]| Gate {
            tool: tool.to_owned(),
            parameters: json!({"prompt": "p", "tools": tools}),
            ..gate()
        };
        let outside = "outside of its container: tracker__close, mail__send";
        assert!(call_arguments(&gate("create_job", &["shell", "tracker__close", "mail__send"])).ends_with(outside));
        assert!(
            call_arguments(&gate("create_job", &["+tracker__*"])).ends_with("outside of its container: tracker__*")
        );
        assert!(!call_arguments(&gate("create_job", &["shell"])).contains("outside"));
        assert!(!call_arguments(&gate("http", &["a__b"])).contains("outside"));
    }

    fn gate() -> Gate {
        Gate {
            id: GateId::nil(),
            kind: GateKind::Approval,
            state: GateState::Pending,
            thread_id: ThreadId::nil(),
            user_id: "ada".to_owned(),
            call_id: None,
            tool: "http".to_owned(),
            parameters: json!({"url": "https://example.com/\u{1b}[2J", "body": "x".repeat(100)}),
            parameters_digest: "d1".to_owned(),
            reasoning: "I need\x1b[2J it".to_owned(),
            can_be_remembered: false,
            created_at: DateTime::UNIX_EPOCH,
            expires_at: DateTime::UNIX_EPOCH,
            resolved_at: None,
            resolved_by: None,
            decision: None,
            reason: None,
        }
    }

    #[test]
    fn a_person_sees_what_would_run_and_nothing_moves_the_cursor() {
        let gate = gate();
        let text = describe(Paint::Plain, &gate, Zone::UTC);
        for part in [
            "http pending",
            "digest   d1",
            "cannot be remembered",
            "I need␛[2J it",
            "https://example.com/",
            &"x".repeat(100),
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let rows = table(GATES.columns, &[gate], &View { width: Some(80), ..View::unlimited() });
        assert!(rows.contains("http") && rows.contains('…'), "{rows}");
        assert!(![text, rows].concat().contains('\x1b'));
    }
}
