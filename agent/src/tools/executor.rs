//! The tool executor: the one way from a call that a model asked for to its result.
//!
//! Owns the order of the checks. Never decides what becomes of a result: the loop, or the orchestrator's tools endpoint,
//! records and delivers it.

use std::sync::{Arc, OnceLock};

use protocol::{CallId, ToolDefinition};
use serde_json::Value;

use super::{
    approval::ApprovalDecision,
    call::{Admission, Admitted, NeedsApproval, Rejected},
    coerce,
    context::ToolContext,
    registry::{RegisteredTool, ToolRegistry},
};
use crate::{ToolError, size::definition_bytes};

/// Executes tool calls from one registry under one context.
#[derive(Debug)]
pub struct ToolExecutor {
    registry: ToolRegistry,
    context: Arc<ToolContext>,
    definitions: OnceLock<Definitions>,
}

/// The definitions that the model is offered, and their size as it reads them.
#[derive(Debug)]
struct Definitions {
    list: Vec<ToolDefinition>,
    bytes: usize,
}

impl ToolExecutor {
    /// Creates an executor for one context.
    pub fn new(registry: ToolRegistry, context: ToolContext) -> Self {
        Self { registry, context: Arc::new(context), definitions: OnceLock::new() }
    }

    /// The definitions that the model is offered, ordered by name.
    pub fn definitions(&self) -> &[ToolDefinition] {
        &self.offered_definitions().list
    }

    /// The size of those definitions as a model reads them, in bytes.
    pub(crate) fn definition_bytes(&self) -> usize {
        self.offered_definitions().bytes
    }

    fn offered_definitions(&self) -> &Definitions {
        self.definitions.get_or_init(|| {
            let list: Vec<_> = self.offered().map(|tool| tool.spec().definition.clone()).collect();
            let bytes = list.iter().map(definition_bytes).sum();
            Definitions { list, bytes }
        })
    }

    /// Iterates over the tools that the model is offered, ordered by name.
    pub fn offered(&self) -> impl Iterator<Item = &Arc<RegisteredTool>> {
        self.registry.iter().filter(|tool| self.context.offers(tool))
    }

    /// Whether the model is offered a tool of this name.
    pub fn offers(&self, name: &str) -> bool {
        self.registry.get(name).is_some_and(|tool| self.context.offers(tool))
    }

    /// Makes every check that precedes the run: resolve, policy, permission, deny-list and narrowing, coerce, validate, approval.
    pub fn admit(&self, call_id: CallId, name: &str, arguments: Value) -> Admission {
        let arguments = match self.registry.get(name) {
            Some(tool) => coerce::to_schema(arguments, &tool.spec().definition.parameters),
            None => arguments,
        };
        let checked = self.check(name, &arguments).and_then(|tool| {
            // Judged on the coerced arguments, which are the ones that run.
            Ok((tool, self.context.approval(tool, &arguments)?))
        });
        match checked {
            Ok((tool, ApprovalDecision::Run)) => Admission::Admitted(self.admitted(tool, call_id, arguments)),
            Ok((tool, ApprovalDecision::Ask { can_be_remembered })) => {
                let redacted_input = tool.redact(&arguments);
                Admission::NeedsApproval(NeedsApproval { redacted_input, arguments, can_be_remembered })
            }
            Err(error) => self.rejected(name, arguments, error),
        }
    }

    /// Admits a call that a person has approved, with exactly the arguments that were approved. Policy, permission, deny-list and
    /// schema are checked again: they may have changed since.
    pub fn admit_approved(&self, call_id: CallId, name: &str, arguments: Value) -> Admission {
        let checked = self.check(name, &arguments).and_then(|tool| {
            self.context.approval(tool, &arguments)?;
            Ok(tool)
        });
        match checked {
            Ok(tool) => Admission::Admitted(self.admitted(tool, call_id, arguments)),
            Err(error) => self.rejected(name, arguments, error),
        }
    }

    fn check(&self, name: &str, arguments: &Value) -> Result<&Arc<RegisteredTool>, ToolError> {
        let tool = self.context.resolve(&self.registry, name)?;
        tool.validate(arguments)?;
        Ok(tool)
    }

    fn admitted(&self, tool: &Arc<RegisteredTool>, call_id: CallId, arguments: Value) -> Admitted {
        Admitted { tool: Arc::clone(tool), context: Arc::clone(&self.context), call_id, arguments }
    }

    fn rejected(&self, name: &str, arguments: Value, error: ToolError) -> Admission {
        let redacted_input = match self.registry.get(name) {
            Some(tool) => tool.redact(&arguments),
            None => arguments,
        };
        Admission::Rejected(Rejected::new(redacted_input, error))
    }
}
