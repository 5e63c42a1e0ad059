//! The tool executor: the one way from a call that a model asked for to its result.
//!
//! Owns the order of the checks; the steps after them are in `call`. The host contributes hooks, screening, rates and
//! the record. Never decides what becomes of a result: the loop, or the orchestrator's tools endpoint, delivers it.

use std::sync::{Arc, OnceLock};

use protocol::{CallId, ToolDefinition, ToolErrorKind};
use serde_json::Value;

use super::{
    approval::ApprovalDecision,
    call::{Admission, CheckedCall, Decision},
    coerce,
    context::ToolContext,
    credentials::without_credentials,
    host::CallHost,
    registry::{RegisteredTool, ToolRegistry},
};
use crate::{ToolError, safety::tool_sends_arguments, transcript::size::definition_bytes};

/// Why a call is refused whose approved arguments would now be redacted.
const NO_LONGER_SAFE: &str = "not run: its arguments contain a secret that was stored after they were approved";

/// Executes tool calls from one registry under one context, for one host.
#[derive(Debug)]
pub struct ToolExecutor {
    registry: ToolRegistry,
    context: Arc<ToolContext>,
    host: Arc<dyn CallHost>,
    definitions: OnceLock<Definitions>,
}

/// The definitions that the model is offered, and their size as it reads them.
#[derive(Debug)]
struct Definitions {
    list: Vec<ToolDefinition>,
    bytes: usize,
}

impl ToolExecutor {
    /// Creates an executor for one context. `host` guards and records the calls.
    pub fn new(registry: ToolRegistry, context: ToolContext, host: Arc<dyn CallHost>) -> Self {
        Self { registry, context: Arc::new(context), host, definitions: OnceLock::new() }
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

    /// Makes every check that precedes the run: resolve, policy, permission, deny-list and narrowing, coerce, validate,
    /// hook, screening, approval. Before a person is asked, the tool's own check.
    pub async fn admit(&self, call_id: CallId, name: &str, arguments: Value) -> Admission {
        let mut call = self.begin(call_id, name, &arguments);
        let decision = self.decide(&mut call, arguments).await.unwrap_or_else(Decision::Reject);
        Admission { call, decision }
    }

    async fn decide(&self, call: &mut CheckedCall, mut arguments: Value) -> Result<Decision, ToolError> {
        self.renew_policy(call).await?;
        if let Some(tool) = self.registry.get(&call.tool) {
            arguments = coerce::to_schema(arguments, &tool.spec().definition.parameters);
        }
        self.show(call, &arguments).await?;
        let tool = self.check(call, &arguments)?;
        self.change(call, tool, &mut arguments).await?;
        // Decided on the final arguments, which are the ones that run.
        Ok(match call.context.approval(tool, &arguments)? {
            ApprovalDecision::Run => Decision::Run(Arc::clone(tool), arguments),
            ApprovalDecision::Ask { can_be_remembered } => {
                tool.tool().check(&arguments)?;
                Decision::Ask { arguments, can_be_remembered }
            }
        })
    }

    /// Admits a call that a person has approved, with exactly the arguments that were approved. Policy, permission,
    /// deny-list and schema are checked again: they may have changed since. Hooks are not asked again.
    pub async fn admit_approved(&self, call_id: CallId, name: &str, arguments: Value) -> Admission {
        let mut call = self.begin(call_id, name, &arguments);
        let decision = match self.check_approved(&mut call, &arguments).await {
            Ok(tool) => Decision::Run(Arc::clone(tool), arguments),
            Err(error) => Decision::Reject(error),
        };
        Admission { call, decision }
    }

    /// Rejects a call without checking it. It is recorded like any other.
    pub async fn refuse(&self, call_id: CallId, name: &str, arguments: Value, error: ToolError) -> Admission {
        let mut call = self.begin(call_id, name, &arguments);
        // Without its arguments, if they cannot be shown.
        let _ = self.show(&mut call, &arguments).await;
        Admission { call, decision: Decision::Reject(error) }
    }

    fn begin(&self, call_id: CallId, name: &str, arguments: &Value) -> CheckedCall {
        let tool = self.registry.get(name);
        CheckedCall {
            host: Arc::clone(&self.host),
            context: Arc::clone(&self.context),
            call_id,
            tool: name.to_owned(),
            input: Value::Null,
            reasoning: None,
            request_digest: self.host.request_digest(name, arguments),
            estimated_cost_micro_usd: tool.map_or(0, |tool| tool.spec().estimated_cost_micro_usd),
            is_repeatable: tool.is_some_and(|tool| tool.spec().is_repeatable),
        }
    }

    /// Sets the arguments that are shown: without credentials in headers, and without secrets.
    async fn show(&self, call: &mut CheckedCall, arguments: &Value) -> Result<(), ToolError> {
        call.input = self.host.redact_input(&self.context, without_credentials(arguments.clone())).await?;
        Ok(())
    }

    /// Gives the call the policy of this moment: it may have changed since the executor was made.
    async fn renew_policy(&self, call: &mut CheckedCall) -> Result<(), ToolError> {
        if let Some(policy) = self.host.current_policy(&self.context).await?
            && policy != self.context.policy
        {
            call.context = Arc::new(ToolContext { policy, ..ToolContext::clone(&self.context) });
        }
        Ok(())
    }

    fn check(&self, call: &CheckedCall, arguments: &Value) -> Result<&Arc<RegisteredTool>, ToolError> {
        let tool = call.context.resolve(&self.registry, &call.tool)?;
        tool.validate(arguments)?;
        Ok(tool)
    }

    async fn check_approved(
        &self,
        call: &mut CheckedCall,
        arguments: &Value,
    ) -> Result<&Arc<RegisteredTool>, ToolError> {
        self.renew_policy(call).await?;
        self.show(call, arguments).await?;
        let tool = self.check(call, arguments)?;
        call.context.approval(tool, arguments)?;
        if self.screen(&call.tool, arguments).await?.is_some() {
            return Err(ToolError::new(ToolErrorKind::NotAuthorized, NO_LONGER_SAFE));
        }
        Ok(tool)
    }

    /// Asks the hook, then screens the arguments. Whatever they change is validated again.
    async fn change(
        &self,
        call: &mut CheckedCall,
        tool: &RegisteredTool,
        arguments: &mut Value,
    ) -> Result<(), ToolError> {
        if let Some(changed) = self.host.before_call(call).await? {
            let changed = restore(arguments, &call.input, changed);
            tool.validate(&changed)?;
            *arguments = changed;
            self.show(call, arguments).await?;
        }
        if let Some(screened) = self.screen(tool.name(), arguments).await? {
            tool.validate(&screened)?;
            *arguments = screened;
            self.show(call, arguments).await?;
        }
        Ok(())
    }

    /// The arguments without what must not leave this installation, where that differs.
    async fn screen(&self, name: &str, arguments: &Value) -> Result<Option<Value>, ToolError> {
        if !tool_sends_arguments(name) {
            return Ok(None);
        }
        let screened = self.host.screen_arguments(&self.context, arguments.clone()).await?;
        Ok(Some(screened).filter(|screened| screened != arguments))
    }
}

/// The arguments that a hook has changed. Each part that is as it was shown keeps its value, which may have been
/// redacted.
fn restore(original: &Value, shown: &Value, changed: Value) -> Value {
    if changed == *shown {
        return original.clone();
    }
    match (original, shown, changed) {
        (Value::Object(original), Value::Object(shown), Value::Object(changed)) => {
            let field = |(name, value): (String, Value)| {
                let value = match (original.get(&name), shown.get(&name)) {
                    (Some(original), Some(shown)) => restore(original, shown, value),
                    _ => value,
                };
                (name, value)
            };
            changed.into_iter().map(field).collect()
        }
        (Value::Array(original), Value::Array(shown), Value::Array(changed)) if shown.len() == changed.len() => {
            let items = original.iter().zip(shown).zip(changed);
            items.map(|((original, shown), changed)| restore(original, shown, changed)).collect()
        }
        (_, _, changed) => changed,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::nothing(json!({"a": "s", "b": 1}), json!({"a": "[redacted]", "b": 1}), json!({"a": "[redacted]", "b": 1}), json!({"a": "s", "b": 1}))]
    #[case::another(json!({"a": "s", "b": 1}), json!({"a": "[redacted]", "b": 1}), json!({"a": "[redacted]", "b": 2}), json!({"a": "s", "b": 2}))]
    #[case::inside(json!({"a": {"k": "s", "n": 1}}), json!({"a": {"k": "[redacted]", "n": 1}}), json!({"a": {"k": "[redacted]", "n": 2}}), json!({"a": {"k": "s", "n": 2}}))]
    #[case::of_a_list(json!(["s", 1]), json!(["[redacted]", 1]), json!(["[redacted]", 2]), json!(["s", 2]))]
    #[case::a_longer_list(json!(["s", 1]), json!(["[redacted]", 1]), json!(["[redacted]", 1, 2]), json!(["[redacted]", 1, 2]))]
    #[case::elsewhere(json!({"a": "s"}), json!({"a": "[redacted]"}), json!({"b": "[redacted]"}), json!({"b": "[redacted]"}))]
    #[case::removed(json!({"a": "s", "b": 1}), json!({"a": "[redacted]", "b": 1}), json!({"b": 1}), json!({"b": 1}))]
    #[case::part_of_a_text(json!({"a": "x s"}), json!({"a": "x [redacted]"}), json!({"a": "y [redacted]"}), json!({"a": "y [redacted]"}))]
    fn a_part_that_a_hook_leaves_as_it_was_shown_keeps_its_value(
        #[case] original: Value,
        #[case] shown: Value,
        #[case] changed: Value,
        #[case] expected: Value,
    ) {
        assert_eq!(restore(&original, &shown, changed), expected);
    }
}
