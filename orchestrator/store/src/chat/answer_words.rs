//! Messages that answer a tool call that waits: a plain `yes`, `no` or `always` in its thread.

use protocol::{ChatThread, GateDecision, ResolveGate, ThreadState};

use super::{
    super::{
        StoreError,
        chat::gates::{self, GateAnswer, GateOutcome, GateTarget},
        sqlite::write_tx::WriteTx,
    },
    Delivery, SentMessage,
};
use domain::{chat::AnswerWord, gate::GateResolver};

/// Resolves the gate of the thread, if the message is a word that answers it. False: the message is an ordinary one.
pub(super) async fn resolve_gate(
    tx: &mut WriteTx,
    thread: &ChatThread,
    message: &SentMessage,
) -> Result<bool, StoreError> {
    let is_for_agent = message.delivery == Delivery::Queue;
    if !is_for_agent || thread.state != ThreadState::AwaitingApproval {
        return Ok(false);
    }
    let decision = match AnswerWord::parse(&message.content) {
        Some(AnswerWord::Yes) => GateDecision::Approve,
        Some(AnswerWord::No) => GateDecision::Deny,
        Some(AnswerWord::Always) => GateDecision::Always,
        None => return Ok(false),
    };
    let answer = GateAnswer {
        by: GateResolver { user: message.user.clone(), is_admin: false },
        decision: ResolveGate { decision, reason: None, scope: None, parameters_digest: None },
        entry: message.audit.clone(),
    };
    // A gate whose time is over: the message waits for the turn to go on, as any other.
    Ok(matches!(gates::resolve(tx, GateTarget::Thread(thread.id), &answer).await?, GateOutcome::Resolved(_)))
}
