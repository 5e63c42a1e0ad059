//! The built-in orchestrator-domain tools: which of them a job is offered, and the executor of its calls.

mod selection;

use std::{sync::Arc, time::Duration};

use agent::{
    AllowList, ApprovalContext, ApprovalRequirement, RecordError, RegisterError, RegisteredTool, Tool, ToolContext,
    ToolExecutor, ToolPolicy, ToolRegistry, ToolSpec, Unrecorded, container_tool_requirement,
};
use protocol::{EgressView, Execution, JobId, LightweightAction, RunId, ToolDefinition, ToolDomain, UserId, WorkId};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::selection::servers_of;
use super::{
    call_host::{self, CallServices, ToolCallHost, not_recorded},
    echo::Echo,
    event_emit::EventEmit,
    http::{self, EgressLog, Http},
    jobs::{JobAccess, NAMES_FOR_JOBS, job_tools},
    json::Json,
    mcp::McpTools,
    memory::memory_tools,
    message::Message,
    nothing_to_report::NothingToReport,
    routines::{self, routine_tools},
    secret_list::SecretList,
    time::Time,
    tool_list::{TOOL_LIST, ToolList},
};
use base::{
    clock::Clock,
    rate_limit::{ToolRateLimits, ToolRates},
};
use dispatch::RoutineEditor;
use domain::{job::JobRecord, request::ToolSelection};
use egress::EgressClient;
use hooks::Hooks;
use secrets::LeakDetectors;
use store::{ClosedToolCall, Store, StoreError, TurnKey, WaitingTurn};

/// Default time limit of one call.
const TIMEOUT: Duration = Duration::from_mins(1);

/// Where the tools that are part of Gantry come from.
const BUILTIN: &str = "builtin";

/// A tool of a user's chats and jobs.
#[derive(Debug, Clone, PartialEq)]
pub struct UserTool {
    pub definition: ToolDefinition,
    /// The approval that a call without arguments needs.
    pub requirement: ApprovalRequirement,
    /// `builtin`, or `mcp:` and the server's name.
    pub source: String,
}

/// What the built-in tools and the host of their calls use.
pub struct ToolServices {
    /// Where calls are recorded, and what tools store.
    pub store: Store,
    pub clock: Clock,
    /// How often each user may call each tool.
    pub rates: ToolRates,
    /// Outgoing connections.
    pub egress: EgressClient,
    /// The tools of MCP servers.
    pub mcp: McpTools,
    /// Find the owners' secrets in what calls show and send.
    pub detectors: LeakDetectors,
    /// Asked before and after calls.
    pub hooks: Arc<Hooks>,
    /// Cancelled when the process drains.
    pub drain: CancellationToken,
}

/// The built-in tools, compiled once, and the host of their calls.
pub struct BuiltinTools {
    registry: ToolRegistry,
    /// Offered to runs of routines only.
    nothing_to_report: Arc<RegisteredTool>,
    calls: Arc<CallServices>,
    mcp: McpTools,
}

impl BuiltinTools {
    /// Registers every built-in tool but those for jobs; `http` only if the operator allows a destination.
    pub fn new(services: ToolServices) -> Result<Self, RegisterError> {
        let ToolServices { store, clock, rates, egress, mcp, detectors, hooks, drain } = services;
        let memory = memory_tools(&store, &clock, &detectors);
        let (secret_list, message) =
            (SecretList(store.clone()), Message { store: store.clone(), clock: clock.clone() });
        let mut tools: Vec<Box<dyn Tool>> = vec![
            Box::new(Echo),
            Box::new(Time(clock.clone())),
            Box::new(Json),
            Box::new(message),
            Box::new(EventEmit { store: store.clone(), clock: clock.clone() }),
            Box::new(secret_list),
        ];
        if !egress.policy().is_empty() {
            let log = EgressLog { store: store.clone(), clock: clock.clone(), detectors: detectors.clone() };
            tools.push(Box::new(Http { client: egress, log }));
        }
        let mut registry = ToolRegistry::new();
        for tool in tools.into_iter().chain(memory) {
            registry.register(tool)?;
        }
        let calls =
            Arc::new(CallServices { store, clock, limits: ToolRateLimits::new(rates), detectors, hooks, drain });
        let nothing_to_report = Arc::new(RegisteredTool::new(Box::new(NothingToReport))?);
        Ok(Self { registry, nothing_to_report, calls, mcp })
    }

    /// Registers the tools for jobs and routines, and `tool_list`, which lists them with all others. They create jobs,
    /// which needs the names of all tools: see [`Self::names_for_jobs`].
    pub fn with_job_tools(mut self, access: &JobAccess, routines: &Arc<RoutineEditor>) -> Result<Self, RegisterError> {
        for tool in job_tools(access).into_iter().chain(routine_tools(routines)) {
            self.registry.register(tool)?;
        }
        let (registry, mcp, store) = (self.registry.clone(), self.mcp.clone(), self.calls.store.clone());
        self.registry.register(Box::new(ToolList { registry, mcp, store }))?;
        Ok(self)
    }

    /// The tools of MCP servers.
    pub const fn mcp(&self) -> &McpTools {
        &self.mcp
    }

    /// The executor of the calls of a job's attempt: they are checked, held to the owner's rates and recorded in the
    /// job's list of calls. There are no container tools. For the call of one tool, of the tools of MCP servers it has
    /// this one only, so that the call waits for no other server.
    pub async fn executor_for_job(
        &self,
        job: &JobRecord,
        attempt: u32,
        tool: Option<&str>,
    ) -> Result<ToolExecutor, RecordError> {
        let context = self.context_of(job).await.map_err(not_recorded)?;
        let built_in = self.built_in(&context);
        let registry = match tool {
            Some(tool) => self.mcp.registry_for_call(&built_in, &context, tool).await,
            None => self.mcp.registry(&built_in, &context).await,
        };
        Ok(self.executor(registry, context, attempt, Some(job.brief.limits.max_tool_calls)))
    }

    /// The executor of the calls of a chat turn, with the policy and permissions of this moment: make one for each run
    /// of the loop. Calls are checked, held to the user's rates and recorded with the thread. A call that needs
    /// approval parks the loop; it is recorded once it is answered, under the turn that made it, and runs at most once.
    /// Without a person, for whom `remembered` says what they always allow, such calls are not offered and are refused.
    /// There are no container tools.
    pub async fn executor_for_turn(
        &self,
        owner: &str,
        turn: TurnKey,
        remembered: Option<AllowList>,
    ) -> Result<ToolExecutor, RecordError> {
        let policy = self.calls.store.tool_policy_of(owner).await.map_err(not_recorded)?;
        // Without children `create_job` is denied, as everything on the deny-list is where no person can approve it.
        let max_children = u32::from(remembered.is_some());
        let context = ToolContext { policy, max_children, ..turn_context(owner, turn, remembered) };
        let registry = self.mcp.registry(&self.registry, &context).await;
        Ok(self.executor(registry, context, turn.turn, None))
    }

    /// The executor of the calls of an attempt of a routine's run, in the autonomous context of the routine's owner:
    /// what needs a person's approval is neither offered nor run, unless the action approves it. There are no container
    /// tools; without `use_tools` there are none at all.
    pub async fn executor_for_run(
        &self,
        owner: &str,
        run: RunId,
        attempt: u32,
        action: &LightweightAction,
    ) -> Result<ToolExecutor, RecordError> {
        let context = self.run_context(owner, run, action).await.map_err(not_recorded)?;
        if !action.use_tools {
            return Ok(self.executor(ToolRegistry::new(), context, attempt, None));
        }
        let mut registry = self.mcp.registry(&self.built_in(&context), &context).await;
        // A server's tool of this name is not offered: the run would not know what a call of it means.
        registry = registry.without(self.nothing_to_report.name());
        if registry.add(Arc::clone(&self.nothing_to_report)).is_err() {
            tracing::warn!(run.id = %run, "a tool has a name that resembles nothing_to_report, which is not offered");
        }
        Ok(self.executor(registry, context, attempt, None))
    }

    /// The context of the calls of a routine's run, with what the operator and the owner allow at this moment, and all tools
    /// that servers have now where the action names a server.
    async fn run_context(
        &self,
        owner: &str,
        run: RunId,
        action: &LightweightAction,
    ) -> Result<ToolContext, StoreError> {
        let context = ToolContext {
            approval: ApprovalContext::Autonomous { levels: vec![action.approve.iter().cloned().collect()] },
            owner: UserId(owner.to_owned()),
            work: run.into(),
            max_children: 0,
            policy: self.calls.store.tool_policy_of(owner).await?,
            ..unrestricted()
        };
        let Some(list) = &action.tools else { return Ok(context) };
        let selection = ToolSelection::of(list);
        let of_servers = self.mcp.names_of(&context, servers_of(&selection)).await;
        let mut only = self.names(&selection, of_servers);
        only.push(self.nothing_to_report.name().to_owned());
        Ok(ToolContext { only: Some(only), ..context })
    }

    /// The rows of the calls of a parked turn, which its user stopped before they ran. No server is asked for its tools: what is shown of a call
    /// does not depend on its tool.
    pub async fn stopped_calls(&self, stopped: &WaitingTurn) -> Vec<ClosedToolCall> {
        let turn = stopped.key;
        let context = turn_context(&stopped.user, turn, Some(AllowList::new()));
        let host = ToolCallHost { services: Arc::clone(&self.calls), execution: turn.into(), max_calls: None };
        let executor = self.executor(self.registry.clone(), context, turn.turn, None);
        call_host::stopped_calls(&executor, &host, stopped).await
    }

    fn built_in(&self, context: &ToolContext) -> ToolRegistry {
        usable_in(&self.registry, context)
    }

    /// The executor of the calls of an attempt, or turn, of the context's work.
    fn executor(
        &self,
        registry: ToolRegistry,
        context: ToolContext,
        attempt: u32,
        max_calls: Option<u32>,
    ) -> ToolExecutor {
        let execution = Execution { work: context.work, attempt };
        let host = ToolCallHost { services: Arc::clone(&self.calls), execution, max_calls };
        ToolExecutor::new(registry, context, Arc::new(host))
    }

    /// The context of a job's calls, with what the operator and the owner allow at this moment. Where its list names a
    /// server, it has all tools that the server had when the attempt asked first.
    pub async fn context_of(&self, job: &JobRecord) -> Result<ToolContext, StoreError> {
        let policy = self.calls.store.tool_policy_of(&job.brief.user_id).await?;
        let context = ToolContext { policy, ..job_context(job) };
        let Some(list) = &job.brief.tools else { return Ok(context) };
        let selection = ToolSelection::of(list);
        let of_servers = self.attempt_tools(job, &context, servers_of(&selection)).await?;
        Ok(ToolContext { only: Some(self.names(&selection, of_servers)), ..context })
    }

    /// The definitions that a job's model is offered: the orchestrator's tools, those of MCP servers, and the
    /// container's own that the context allows.
    pub async fn offered(&self, context: ToolContext) -> Vec<ToolDefinition> {
        let registry = self.mcp.registry(&self.built_in(&context), &context).await;
        offered_of(registry, context)
    }

    /// The names of all tools that a job can be allowed to use, in order, without those of MCP servers. The tools for
    /// jobs need not be registered yet.
    pub fn names_for_jobs(&self) -> Vec<String> {
        let mut names: Vec<String> =
            offered_of(self.registry.clone(), unrestricted()).into_iter().map(|tool| tool.name).collect();
        names.extend(NAMES_FOR_JOBS.into_iter().chain(routines::NAMES_FOR_JOBS).chain([TOOL_LIST]).map(str::to_owned));
        names.sort();
        names.dedup();
        names
    }

    /// Every tool that the user has, ordered by name.
    pub async fn all_of(&self, user: &str) -> Vec<UserTool> {
        let registered = |tool: &RegisteredTool, source: String| UserTool {
            definition: tool.spec().definition.clone(),
            requirement: tool.default_requirement(),
            source,
        };
        let built_in = self.registry.iter().map(|tool| registered(tool, BUILTIN.to_owned()));
        let container = agent::container_tools().into_iter().map(|definition| UserTool {
            requirement: container_tool_requirement(&definition.name),
            definition,
            source: BUILTIN.to_owned(),
        });
        let mut all: Vec<_> = built_in.chain(container).chain(self.mcp.of_user(user).await).collect();
        all.sort_by(|one, other| one.definition.name.cmp(&other.definition.name));
        all
    }
}

/// The tools that are of use in a context: a job that may reach no host has none for `http`.
pub(super) fn usable_in(registry: &ToolRegistry, context: &ToolContext) -> ToolRegistry {
    let is_offline = matches!(context.work, WorkId::Job(_)) && !context.egress.enabled;
    if is_offline { registry.without(http::NAME) } else { registry.clone() }
}

/// The definitions that a context's model is offered, those of container tools included.
pub(super) fn offered_of(registry: ToolRegistry, context: ToolContext) -> Vec<ToolDefinition> {
    let mut container = agent::container_tools();
    container.retain(|tool| context.offers_name(&tool.name, container_tool_requirement(&tool.name)));
    let executor = ToolExecutor::new(registry, context, Arc::new(Unrecorded));
    let mut tools: Vec<_> = executor.offered().map(|tool| tool.spec().to_wire()).collect();
    tools.append(&mut container);
    tools
}

/// The context of a job's calls, without policy and permissions, and with its list of tools as it was written: no person
/// is there to approve.
fn job_context(job: &JobRecord) -> ToolContext {
    let brief = &job.brief;
    ToolContext {
        owner: UserId(brief.user_id.clone()),
        work: job.id.into(),
        egress: brief.egress_view(),
        max_children: brief.limits.max_children,
        only: brief.tools.clone(),
        approval: ApprovalContext::Autonomous { levels: vec![brief.approve.iter().cloned().collect()] },
        ..unrestricted()
    }
}

/// The context of the calls of a chat turn, without policy and permissions. Without `remembered` no person is there to
/// approve.
fn turn_context(owner: &str, turn: TurnKey, remembered: Option<AllowList>) -> ToolContext {
    ToolContext {
        owner: UserId(owner.to_owned()),
        work: turn.thread.into(),
        approval: remembered
            .map_or_else(ApprovalContext::autonomous, |remembered| ApprovalContext::Interactive { remembered }),
        ..unrestricted()
    }
}

/// The context of a job that narrows nothing and may create children.
fn unrestricted() -> ToolContext {
    ToolContext {
        owner: UserId::default(),
        work: JobId::nil().into(),
        approval: ApprovalContext::autonomous(),
        policy: ToolPolicy::default(),
        only: None,
        egress: EgressView::default(),
        max_children: 1,
    }
}

/// The schema of arguments: an object with these properties, some of which are required, and no others.
pub(super) fn object(required: &[&str], properties: Value) -> Value {
    let mut schema = json!({"type": "object"});
    schema["properties"] = properties;
    schema["required"] = json!(required);
    schema["additionalProperties"] = json!(false);
    schema
}

/// The specification of an orchestrator-domain tool with the defaults that they share.
pub(super) fn spec(name: &str, description: &str, parameters: Value) -> ToolSpec {
    ToolSpec::new(ToolDefinition::new(name, description, parameters, ToolDomain::Orchestrator), TIMEOUT)
}

#[cfg(test)]
mod tests;
