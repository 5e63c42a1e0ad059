//! Answers that the output limit of the model cut: one more call continues them, and people see it where that is not enough.
//!
//! Owns the texts about it. Never continues a reply with calls.

use protocol::{CUT_NOTE, MessageRole, TokenUsage};

use crate::{
    Agent, Journal, Model,
    agent::{Flow, LoopState},
    run::{
        act::ModelReply,
        ask::{ModelTurn, PromptContext},
        guard::TextOnlyReason,
    },
};

const CONTINUE: &str =
    "Your answer was cut at the output limit. Go on exactly where it ended, and repeat nothing of it.";

/// An answer with the line that says that it was cut.
pub(crate) fn with_note(text: &str) -> String {
    format!("{}\n\n{CUT_NOTE}", text.trim_end())
}

impl<M: Model, J: Journal> Agent<'_, M, J> {
    /// Continues the final answer once, and finishes with both parts as one. The transcript has them as they were made, so that
    /// it keeps its beginning.
    pub(crate) async fn continue_answer(
        &self,
        state: &mut LoopState<'_>,
        first: ModelReply,
        usage: TokenUsage,
    ) -> Flow {
        state.run.set_last_text(first.text.clone(), true);
        state.transcript.push_reply(first.text.clone(), Vec::new(), first.native);
        self.measure(state, usage);
        state.transcript.push_user(CONTINUE);
        let messages = state.transcript.messages().len();
        let context = PromptContext::Continuation(self.deltas.continuing(first.content.clone()));
        let mut turn = ModelTurn { context, text_only: Some(TextOnlyReason::NoTools) };
        let answer = match self.try_ask(state, &mut turn).await {
            Flow::Continue(answer) => answer,
            Flow::Break(outcome) => {
                // What the model has said is kept, whatever ends the work.
                self.record_message(MessageRole::Assistant, &first.text).await?;
                return Flow::Break(outcome);
            }
        };
        let second = match answer {
            Ok(mut completion) => {
                state.run.notice = completion.notice.take().or(state.run.notice.take());
                let usage = completion.usage;
                let reply = self.read(state, completion, Some(TextOnlyReason::NoTools)).await?;
                Some((reply, usage)).filter(|(reply, _)| !reply.text.is_empty() || reply.last_unread.is_some())
            }
            Err(refused) => {
                tracing::warn!(?refused, "an answer that was cut could not be continued");
                None
            }
        };
        let (text, is_cut) = if let Some((mut second, usage)) = second {
            let is_cut = second.is_cut();
            state.transcript.push_reply(second.text.clone(), Vec::new(), second.native.take());
            self.measure(state, usage);
            // Joined as they were written: what cleaning takes off the end of a text may belong within it.
            let joined = self.clean_reply(state, &(first.content + &second.content), false);
            second.last_unread = joined.last_unread.filter(|_| self.offers_tools());
            if second.last_unread.is_some() {
                self.record_message(MessageRole::Assistant, &joined.text).await?;
                state.run.set_last_text(joined.text, is_cut);
                let is_repeated = state.run.guards.note_no_answer();
                return self.answer_unread_call(state, &second, is_repeated).await;
            }
            (joined.text, is_cut)
        } else {
            // Unless a person has said something since, the conversation ends with the answer.
            if state.transcript.messages().len() == messages {
                state.transcript.forget_prompt();
            }
            (first.text, true)
        };
        let text = if is_cut { with_note(&text) } else { text };
        self.record_message(MessageRole::Assistant, &text).await?;
        state.run.set_last_text(text.clone(), is_cut);
        self.finish(state, text).await
    }
}
