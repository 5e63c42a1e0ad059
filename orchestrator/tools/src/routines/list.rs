//! `routine_list`: the routines of the user, newest first.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use serde_json::{Value, json};

use super::access::{RoutineAccess, brief, failed};
use store::RoutineFilter;

use crate::builtin::{object, spec};

/// Routines in a list: a page for a person.
const MAX_ITEMS: u32 = 100;

pub(super) struct ListRoutines(pub(super) RoutineAccess);

impl Tool for ListRoutines {
    fn spec(&self) -> ToolSpec {
        let parameters = object(&[], json!({}));
        ToolSpec {
            is_repeatable: true,
            ..spec("routine_list", "Lists the routines of the user, newest first.", parameters)
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let user = invocation.context.owner.as_str().to_owned();
            let filter = RoutineFilter { user: Some(user), limit: MAX_ITEMS, ..RoutineFilter::default() };
            let (routines, next) = self.0.store().routines(&filter).await.map_err(|error| failed(&error))?;
            let routines: Vec<Value> = routines.iter().map(brief).collect();
            Ok(ToolOutput::success(json!({"routines": routines, "truncated": next.is_some()})))
        })
    }
}
