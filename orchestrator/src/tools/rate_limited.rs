//! A tool whose calls are held to a rate for each user.
//!
//! Owns the refusal. The limit belongs to the tool, so that it holds for a worker's call and for a loop in this process alike.

use std::sync::Arc;

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{ToolErrorKind, ToolFailure};
use serde_json::Value;

use crate::{clock::Clock, rate_limit::RateLimits};

/// Takes one token of the owner's bucket before each call.
pub(super) struct RateLimited {
    tool: Box<dyn Tool>,
    name: String,
    limits: Arc<RateLimits>,
    clock: Clock,
}

impl RateLimited {
    /// Limits `tool`; tools that share `limits` have a bucket each.
    pub(super) fn new(tool: Box<dyn Tool>, limits: Arc<RateLimits>, clock: Clock) -> Self {
        let name = tool.spec().definition.name;
        Self { tool, name, limits, clock }
    }

    fn take(&self, invocation: &Invocation) -> Result<(), ToolError> {
        let owner = invocation.context.owner.as_str();
        self.limits.take(owner, &self.name, self.clock.monotonic()).map_err(|wait| {
            let seconds = u64::try_from(wait.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
            ToolError(ToolFailure {
                kind: ToolErrorKind::RateLimited,
                message: format!("too many calls of {}; try again in {seconds} s", self.name),
                retry_after_seconds: Some(seconds),
            })
        })
    }
}

impl Tool for RateLimited {
    fn spec(&self) -> ToolSpec {
        self.tool.spec()
    }

    fn approval(&self, arguments: &Value) -> ApprovalRequirement {
        self.tool.approval(arguments)
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        match self.take(&invocation) {
            Ok(()) => self.tool.call(invocation),
            Err(error) => Box::pin(async { Err(error) }),
        }
    }
}
