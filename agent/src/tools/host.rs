//! The host of tool calls: what the process around the executor contributes to each call.
//!
//! Owns the interface between the two: hooks, the screening of arguments that leave, rates, the audit row and the redaction of
//! what is shown. The order belongs to the executor; a host never runs a tool.

use std::{error::Error, fmt, future::ready, sync::Arc};

use protocol::{CallId, ToolCallReply};
use serde_json::Value;

use super::{context::ToolContext, policy::ToolPolicy};
use crate::{BoxFuture, ToolError};

use super::call::{CallResult, CheckedCall};

/// Whether a call that is recorded may run.
#[derive(Debug, Clone, PartialEq)]
pub enum OpenedRow {
    /// Its row is written; it runs, once.
    New,
    /// It ran before, with this reply, and does not run again.
    Recorded(ToolCallReply),
    /// The owner of the calls may make no more. There is no row.
    LimitReached(ToolError),
}

/// A call that could not be recorded. It was not run, or its result is withheld.
#[derive(Debug, Clone, thiserror::Error)]
pub enum RecordError {
    /// The id is that of another call.
    #[error("the call id was used for another call")]
    IdReused,
    /// The record cannot be written.
    #[error("the call could not be recorded")]
    Unavailable {
        /// The cause.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
        /// Whether the same call may succeed later.
        is_transient: bool,
    },
}

/// The host of the calls of one job's attempt, chat turn or run. Every method has a default that does nothing, for hosts whose
/// calls are guarded elsewhere.
pub trait CallHost: fmt::Debug + Send + Sync {
    /// Identifies what is asked for, so that a repeated call is recognised. `arguments` are as the caller sent them.
    fn request_digest(&self, tool: &str, arguments: &Value) -> String {
        let _ = (tool, arguments);
        String::new()
    }

    /// The id that the tool gets: unique beyond the attempt or turn, since tools use it as an idempotency key.
    fn invocation_id(&self, call_id: &CallId) -> CallId {
        call_id.clone()
    }

    /// What the operator and the owner decide about tools at this moment. `None`: what the context says, which is of the moment
    /// when the executor was made.
    fn current_policy<'a>(&'a self, context: &'a ToolContext) -> BoxFuture<'a, Result<Option<ToolPolicy>, ToolError>> {
        let _ = context;
        Box::pin(ready(Ok(None)))
    }

    /// Removes the owner's secrets from arguments that are shown or stored.
    fn redact_input<'a>(&'a self, context: &'a ToolContext, input: Value) -> BoxFuture<'a, Result<Value, ToolError>> {
        let _ = context;
        Box::pin(ready(Ok(input)))
    }

    /// The hook before a call. It may deny the call, or return other arguments: what it leaves as it was shown keeps its value.
    fn before_call<'a>(&'a self, call: &'a CheckedCall) -> BoxFuture<'a, Result<Option<Value>, ToolError>> {
        let _ = call;
        Box::pin(ready(Ok(None)))
    }

    /// Screens arguments that leave this installation. Returns those that may, or refuses the call.
    fn screen_arguments<'a>(
        &'a self,
        context: &'a ToolContext,
        arguments: Value,
    ) -> BoxFuture<'a, Result<Value, ToolError>> {
        let _ = context;
        Box::pin(ready(Ok(arguments)))
    }

    /// Counts a call against the owner's rate. A refused call counts for nothing.
    fn take_rate(&self, context: &ToolContext, tool: &str) -> Result<(), ToolError> {
        let _ = (context, tool);
        Ok(())
    }

    /// Takes back [`Self::take_rate`] for a call that did not run after all.
    fn return_rate(&self, context: &ToolContext, tool: &str) {
        let _ = (context, tool);
    }

    /// Writes the call's row, before the call has any effect.
    fn open<'a>(&'a self, call: &'a CheckedCall) -> BoxFuture<'a, Result<OpenedRow, RecordError>> {
        let _ = call;
        Box::pin(ready(Ok(OpenedRow::New)))
    }

    /// The hook after a call, which gets its text as it is shown. It may return another text, which is cleaned again, or an error that
    /// replaces the result.
    fn after_call<'a>(
        &'a self,
        call: &'a CheckedCall,
        text: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, ToolError>> {
        let _ = (call, text);
        Box::pin(ready(Ok(None)))
    }

    /// Removes the owner's secrets from a result. With `is_complete` false the text was cut: what could be the beginning of a
    /// secret at its end is removed as well. An error withholds the result.
    fn redact_output<'a>(
        &'a self,
        context: &'a ToolContext,
        text: String,
        is_complete: bool,
    ) -> BoxFuture<'a, Result<String, ToolError>> {
        let _ = (context, is_complete);
        Box::pin(ready(Ok(text)))
    }

    /// Writes the result into the call's row. A call that was refused was not run.
    fn close<'a>(
        &'a self,
        call: &'a CheckedCall,
        result: &'a CallResult,
        was_run: bool,
    ) -> BoxFuture<'a, Result<(), RecordError>> {
        let _ = (call, result, was_run);
        Box::pin(ready(Ok(())))
    }
}

/// A host without guards or a record, and a journal that keeps nothing. In a container the orchestrator records the calls from the
/// worker's events, and guards its tools itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unrecorded;

impl CallHost for Unrecorded {}
