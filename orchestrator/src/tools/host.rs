//! The orchestrator's tools for a job: what is offered, and the call through the guarded path.

use std::{sync::Arc, time::Duration};

use agent::{
    ApprovalContext, CallerId, Rate, RateLimits, Reach, RegisterError, Tool, ToolPath, ToolRegistry, ToolSpec,
};
use protocol::{CallId, JobId, ToolCallReply, ToolDefinition, ToolDomain};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{echo::Echo, json::Json, message::Message, time::Time};
use crate::{clock::Clock, store::Store};

/// How long a tool may take unless it says otherwise (contract: agent, Tools).
const TIMEOUT: Duration = Duration::from_mins(1);

/// The tools.
pub struct HostTools {
    registry: Arc<ToolRegistry>,
    limits: Arc<RateLimits>,
    clock: Clock,
}

/// Who calls a tool.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// Whose worker.
    pub job: JobId,
    /// Who made the job.
    pub user: &'a str,
    /// The job's own list, which narrows.
    pub narrowing: Option<&'a [String]>,
}

/// A call, over.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    /// Redacted.
    pub input_shown: Value,
    /// As the model reads it.
    pub output: String,
    /// For the worker.
    pub reply: ToolCallReply,
}

impl HostTools {
    /// All that are built in, each user's calls of each held to `rates`.
    pub fn new(store: Store, clock: Clock, rates: Vec<Rate>) -> Result<Self, RegisterError> {
        let message = Message { store, clock: clock.clone() };
        let tools: Vec<Box<dyn Tool>> =
            vec![Box::new(Echo), Box::new(Time(clock.clone())), Box::new(Json), Box::new(message)];
        let mut registry = ToolRegistry::new();
        for tool in tools {
            registry.register(tool)?;
        }
        Ok(Self { registry: Arc::new(registry), limits: Arc::new(RateLimits::new(rates)), clock })
    }

    /// What a job's model may see: the orchestrator's tools in its reach and the container's own.
    pub fn offered(&self, narrowing: Option<&[String]>) -> Vec<ToolDefinition> {
        let mut tools = self.path(narrowing).definitions();
        let container = agent::container_tools().into_iter();
        tools.extend(container.filter(|tool| narrowing.is_none_or(|list| list.contains(&tool.name))));
        tools
    }

    /// One call. A refusal is an answer.
    pub async fn call(&self, caller: &Caller<'_>, call_id: &CallId, name: &str, arguments: Value) -> Done {
        let path = self.path(caller.narrowing).on_behalf_of(CallerId { job: Some(caller.job) });
        let path = path.limited(Arc::clone(&self.limits), caller.user, self.clock.monotonic());
        let record = path.call(&call_id.0, name, arguments, &CancellationToken::new()).await;
        let reply = ToolCallReply {
            success: record.success,
            output: record.error.is_none().then(|| Value::String(record.output.clone())),
            truncated: record.truncated,
            duration_ms: u64::try_from(record.duration.as_millis()).unwrap_or(u64::MAX),
            error: record.error,
        };
        Done { input_shown: record.input_shown, output: record.output, reply }
    }

    fn path(&self, narrowing: Option<&[String]>) -> ToolPath {
        let reach = Reach {
            only: narrowing.map(<[String]>::to_vec),
            ..Reach::of(ApprovalContext::Autonomous { allow: vec![] })
        };
        ToolPath::new(Arc::clone(&self.registry), reach)
    }
}

/// A tool's own description, with what is common to all of them.
pub(super) fn spec(name: &str, description: &str, parameters: Value) -> ToolSpec {
    ToolSpec {
        definition: ToolDefinition {
            name: name.to_owned(),
            description: description.to_owned(),
            parameters,
            domain: ToolDomain::Orchestrator,
        },
        timeout: TIMEOUT,
        sensitive: &[],
        parallel: true,
    }
}
