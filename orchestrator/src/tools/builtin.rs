//! The built-in orchestrator-domain tools: which of them a job is offered, and the admission of a call.

use std::{sync::Arc, time::Duration};

use agent::{
    Admission, ApprovalContext, RegisterError, Tool, ToolContext, ToolExecutor, ToolOrigin, ToolRegistry, ToolSpec,
};
use protocol::{CallId, JobId, ToolDefinition, ToolDomain, UserId};
use serde_json::Value;

use super::{echo::Echo, json::Json, message::Message, rate_limited::RateLimited, time::Time};
use crate::{
    clock::Clock,
    rate_limit::{Rate, RateLimits},
    store::Store,
};

/// Default time limit of one call (contract: agent, Tools).
const TIMEOUT: Duration = Duration::from_mins(1);

/// The built-in tools, compiled once.
pub struct BuiltinTools {
    registry: ToolRegistry,
}

impl BuiltinTools {
    /// Registers every built-in tool. Each user's calls of each tool are held to `rates`.
    pub fn new(store: Store, clock: &Clock, rates: Vec<Rate>) -> Result<Self, RegisterError> {
        let message = Message { store, clock: clock.clone() };
        let tools: [Box<dyn Tool>; 4] =
            [Box::new(Echo), Box::new(Time(clock.clone())), Box::new(Json), Box::new(message)];
        let limits = Arc::new(RateLimits::new(rates));
        let mut registry = ToolRegistry::new();
        for tool in tools {
            registry.register(Box::new(RateLimited::new(tool, Arc::clone(&limits), clock.clone())))?;
        }
        Ok(Self { registry })
    }

    /// The definitions that a job's model is offered: the orchestrator's tools that an autonomous context allows, and the
    /// container's own. `only` narrows both.
    pub fn offered(&self, only: Option<&[String]>) -> Vec<ToolDefinition> {
        let executor = ToolExecutor::new(self.registry.clone(), autonomous(JobId::nil(), "", only));
        let mut tools: Vec<_> = executor.offered().map(|tool| tool.spec().to_wire()).collect();
        let container = agent::container_tools().into_iter();
        tools.extend(container.filter(|tool| only.is_none_or(|list| list.contains(&tool.name))));
        tools
    }

    /// Checks one call under this context. The caller records it, then lets it finish.
    pub fn admit(&self, context: ToolContext, call_id: CallId, name: &str, arguments: Value) -> Admission {
        ToolExecutor::new(self.registry.clone(), context).admit(call_id, name, arguments)
    }
}

/// The context of a job's calls: no person is there to approve.
pub fn autonomous(job: JobId, owner: &str, only: Option<&[String]>) -> ToolContext {
    ToolContext {
        owner: UserId(owner.to_owned()),
        origin: ToolOrigin::Job(job),
        approval: ApprovalContext::Autonomous { allow: vec![] },
        only: only.map(<[String]>::to_vec),
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
    }
}
