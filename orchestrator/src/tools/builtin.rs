//! The built-in orchestrator-domain tools: which of them a job is offered, and the admission of a call.

use std::{sync::Arc, time::Duration};

use agent::{
    Admission, ApprovalContext, ApprovalRequirement, RegisterError, Tool, ToolContext, ToolExecutor, ToolOrigin,
    ToolPolicy, ToolRegistry, ToolSpec, container_tool_requirement,
};
use protocol::{CallId, EgressView, JobId, ToolDefinition, ToolDomain, UserId};
use serde_json::Value;

use super::{
    echo::Echo, http::Http, json::Json, memory::memory_tools, message::Message, rate_limited::RateLimited,
    secret_list::SecretList, time::Time,
};
use crate::{
    clock::Clock,
    domain::job::JobRecord,
    egress::EgressClient,
    rate_limit::{Rate, RateLimits},
    store::{Store, StoreError},
};

/// Default time limit of one call (contract: agent, Tools).
const TIMEOUT: Duration = Duration::from_mins(1);

/// The built-in tools, compiled once.
pub struct BuiltinTools {
    registry: ToolRegistry,
    store: Store,
}

impl BuiltinTools {
    /// Registers every built-in tool; `http` only if the operator allows a destination. Each user's calls of each tool are held
    /// to `rates`.
    pub fn new(store: Store, clock: &Clock, rates: Vec<Rate>, egress: EgressClient) -> Result<Self, RegisterError> {
        let memory = memory_tools(&store, clock);
        let (secret_list, message) =
            (SecretList(store.clone()), Message { store: store.clone(), clock: clock.clone() });
        let mut tools: Vec<Box<dyn Tool>> = vec![
            Box::new(Echo),
            Box::new(Time(clock.clone())),
            Box::new(Json),
            Box::new(message),
            Box::new(secret_list),
        ];
        if !egress.policy().is_empty() {
            tools.push(Box::new(Http(egress)));
        }
        let limits = Arc::new(RateLimits::new(rates));
        let mut registry = ToolRegistry::new();
        for tool in tools.into_iter().chain(memory) {
            registry.register(Box::new(RateLimited::new(tool, Arc::clone(&limits), clock.clone())))?;
        }
        Ok(Self { registry, store })
    }

    /// The context of a job's calls, with what the operator and the owner allow at this moment.
    pub async fn context_of(&self, job: &JobRecord) -> Result<ToolContext, StoreError> {
        let policy = self.store.tool_policy_of(&job.brief.user_id).await?;
        Ok(ToolContext { policy, ..job_context(job) })
    }

    /// The definitions that a job's model is offered: the orchestrator's tools and the container's own that the context allows.
    pub fn offered(&self, context: ToolContext) -> Vec<ToolDefinition> {
        let mut container = agent::container_tools();
        container.retain(|tool| context.offers_name(&tool.name, container_tool_requirement(&tool.name)));
        let executor = ToolExecutor::new(self.registry.clone(), context);
        let mut tools: Vec<_> = executor.offered().map(|tool| tool.spec().to_wire()).collect();
        tools.append(&mut container);
        tools
    }

    /// The names of all tools of a job.
    pub fn names_for_jobs(&self) -> Vec<String> {
        self.offered(unrestricted()).into_iter().map(|tool| tool.name).collect()
    }

    /// Every tool, with the approval that a call without arguments needs, ordered by name.
    pub fn all(&self) -> Vec<(ToolDefinition, ApprovalRequirement)> {
        let built_in = self.registry.iter().map(|tool| (tool.spec().definition.clone(), tool.default_requirement()));
        let container = agent::container_tools().into_iter().map(|tool| {
            let requirement = container_tool_requirement(&tool.name);
            (tool, requirement)
        });
        let mut all: Vec<_> = built_in.chain(container).collect();
        all.sort_by(|(one, _), (other, _)| one.name.cmp(&other.name));
        all
    }

    /// Checks one call under this context. The caller records it, then lets it finish.
    pub fn admit(&self, context: ToolContext, call_id: CallId, name: &str, arguments: Value) -> Admission {
        ToolExecutor::new(self.registry.clone(), context).admit(call_id, name, arguments)
    }
}

/// The context of a job's calls, without policy and permissions: no person is there to approve.
fn job_context(job: &JobRecord) -> ToolContext {
    let brief = &job.brief;
    ToolContext {
        owner: UserId(brief.user_id.clone()),
        origin: ToolOrigin::Job(job.id),
        egress: brief.egress(),
        max_children: brief.limits.max_children,
        only: brief.tools.clone(),
        approval: ApprovalContext::Autonomous { levels: vec![brief.approve.iter().cloned().collect()] },
        ..unrestricted()
    }
}

/// The context of a job that narrows nothing.
fn unrestricted() -> ToolContext {
    ToolContext {
        owner: UserId::default(),
        origin: ToolOrigin::Job(JobId::nil()),
        approval: ApprovalContext::autonomous(),
        policy: ToolPolicy::default(),
        only: None,
        egress: EgressView::default(),
        max_children: 0,
    }
}

/// The specification of an orchestrator-domain tool with the defaults that they share.
pub(super) fn spec(name: &str, description: &str, parameters: Value) -> ToolSpec {
    ToolSpec {
        definition: ToolDefinition::new(name, description, parameters, ToolDomain::Orchestrator),
        timeout: TIMEOUT,
        sensitive: Vec::new(),
        parallel: true,
        estimated_cost_micro_usd: 0,
    }
}

#[cfg(test)]
mod tests {
    use protocol::JobState;

    use super::*;
    use crate::domain::job::sample;

    #[test]
    fn the_context_of_a_call_is_its_jobs() {
        let job = sample::job(JobState::InProgress).with_brief(|brief| {
            brief.limits.max_children = 2;
            brief.tools = Some(vec!["echo".to_owned()]);
        });
        let context = job_context(&job);
        assert_eq!(context.owner.as_str(), job.brief.user_id);
        assert_eq!((context.origin, context.max_children), (ToolOrigin::Job(job.id), 2));
        assert_eq!((context.only, context.egress), (job.brief.tools.clone(), EgressView::default()));
    }
}
