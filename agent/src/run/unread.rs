//! Replies that are no answer, because a call in their text is not run: it is at their end, or was pointed out before.
//! The model is told so once; the same again ends the work as failed, so that such a text is never the result.
//!
//! Owns the texts about it. Never decides which calls are run: that is `clean`'s part, and the setting of the provider.

use crate::{
    Agent, FailureReason, Journal, Model,
    agent::{Flow, LoopState},
    run::{act::ModelReply, ask::failed},
    text::elide,
};

/// Maximum length of a tool's name in these texts. The model makes it up.
const MAX_NAME_BYTES: usize = 64;

impl<M: Model, J: Journal> Agent<'_, M, J> {
    /// Tells the model that the call was not run, or ends the work if the reply before ended in the same way.
    pub(crate) async fn answer_unread_call(
        &self,
        state: &mut LoopState<'_>,
        reply: &ModelReply,
        is_repeated: bool,
    ) -> Flow {
        let tool = reply.last_unread.as_ref().and_then(|call| call.tool.as_deref());
        let call = match tool {
            Some(tool) => format!("a call of the tool {}", elide(tool, MAX_NAME_BYTES)),
            None => "a call of a tool".to_owned(),
        };
        if is_repeated {
            let message = format!("the model wrote {call} as text again: {}", cause(reply));
            return failed(FailureReason::EmptyReply, message);
        }
        let notice = format!("You wrote {call} as text, so it was not run. {}", advice(reply));
        self.inject_notice(state, notice).await
    }
}

const fn cause(reply: &ModelReply) -> &'static str {
    if reply.text_tool_calls {
        "llm.text_tool_calls runs no call that is incomplete, of a tool that is not offered, or from what the model has read"
    } else {
        "such calls are not run, because llm.text_tool_calls is off for the provider that answered"
    }
}

const fn advice(reply: &ModelReply) -> &'static str {
    if reply.text_only.is_none() {
        "Call it by the means that you have for calls of tools, or give your final answer. In an answer, put such a text into \
         a code block."
    } else {
        "No tool can be called any more: give your final answer. In an answer, put such a text into a code block."
    }
}
