//! `routine_history`: the runs of a routine, newest first.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use serde_json::{Value, json};

use super::access::{RoutineAccess, failed, name_schema, run_brief};
use store::RunFilter;

use crate::builtin::{object, spec};

const DEFAULT_RUNS: u32 = 10;
const MAX_RUNS: u32 = 50;

pub(super) struct RoutineHistory(pub(super) RoutineAccess);

impl Tool for RoutineHistory {
    fn spec(&self) -> ToolSpec {
        let properties = json!({
            "name": name_schema(),
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_RUNS, "description": "Number of runs; 10 when left out."}
        });
        let parameters = object(&["name"], properties);
        ToolSpec {
            is_repeatable: true,
            ..spec("routine_history", "Lists the runs of a routine of the user, newest first.", parameters)
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let asked = invocation.arguments.get("limit").and_then(Value::as_u64);
            let limit = asked.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(DEFAULT_RUNS).clamp(1, MAX_RUNS);
            let routine = self.0.find(&invocation).await?;
            let filter = RunFilter { routine: Some(routine.id), limit, ..RunFilter::default() };
            let (runs, next) = self.0.store().runs(&filter).await.map_err(|error| failed(&error))?;
            let runs: Vec<Value> = runs.iter().map(run_brief).collect();
            Ok(ToolOutput::success(json!({"name": routine.name, "runs": runs, "truncated": next.is_some()})))
        })
    }
}
