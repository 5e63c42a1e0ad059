//! Resolutions of gates: by a person, by the end of their turn, and by time.

use std::{collections::BTreeSet, sync::Arc};

use chrono::{DateTime, Utc};
use protocol::{
    AuditOutcome, Gate, GateDecision, GateId, GateResolution, GateScope, GateState, InstanceEventData, PermissionState,
    ResolveGate, ThreadId, ThreadState,
};
use uuid::Uuid;

use super::{find, notification_id};
use crate::{
    AuditEntry, Store, StoreError,
    access::{audit, tool_policy},
    chat,
    events::instance_events,
    notifications,
    sqlite::{
        inconsistent_rows::InconsistentRows,
        rows::{RowRef, text},
        write_tx::WriteTx,
    },
};
use domain::gate::{self, GateRefused, GateResolver};

/// Gates that one transaction lets expire, so that other writes do not wait long.
const EXPIRED_PER_BATCH: i64 = 100;

/// The gate that an answer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateTarget {
    Gate(GateId),
    /// The gate of this thread's parked run, or of the last one that there was.
    Thread(ThreadId),
}

/// A person's answer to a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct GateAnswer {
    pub by: GateResolver,
    pub decision: ResolveGate,
    /// Written in the transaction of the resolution; its time is that of the resolution.
    pub entry: AuditEntry,
}

/// The outcome of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum GateOutcome {
    Resolved(Box<GateResolution>),
    /// Nothing changed.
    Refused(GateRefused),
    /// There is no such gate.
    NotFound,
}

impl Store {
    /// Resolves a gate, once: of simultaneous answers, one takes effect.
    pub async fn resolve_gate(&self, target: GateTarget, answer: GateAnswer) -> Result<GateOutcome, StoreError> {
        self.write(transaction!(|tx| resolve(tx, target, &answer).await)).await
    }

    /// Resolves the gates that have expired, which wakes their threads. Returns how many. One that makes no sense, or
    /// whose thread does not wait, is left as it is.
    pub async fn expire_gates(&self, now: DateTime<Utc>) -> Result<usize, StoreError> {
        let (mut expired, mut after) = (0, (String::new(), Uuid::nil()));
        loop {
            let due: Vec<(String, Uuid)> = sqlx::query_as(
                "SELECT expires_at, id FROM gates INDEXED BY gates_to_expire WHERE state = 'pending' AND expires_at <= $1 \
                 AND (expires_at, id) > ($2, $3) ORDER BY expires_at, id LIMIT $4",
            )
            .bind(now)
            .bind(&after.0)
            .bind(after.1)
            .bind(EXPIRED_PER_BATCH)
            .fetch_all(&self.read)
            .await?;
            let Some(last) = due.last() else { return Ok(expired) };
            after = last.clone();
            let due: Vec<Uuid> = due.into_iter().map(|(_, id)| id).collect();
            let rows = Arc::clone(&self.inconsistent);
            expired += self.write(transaction!(|tx| expire(tx, &due, &rows, now).await)).await?;
        }
    }
}

/// Resolves a gate by a person's answer.
pub(crate) async fn resolve(
    tx: &mut WriteTx,
    target: GateTarget,
    answer: &GateAnswer,
) -> Result<GateOutcome, StoreError> {
    let GateAnswer { by, decision: request, entry } = answer;
    let Some(gate) = find(tx, target).await? else { return Ok(GateOutcome::NotFound) };
    let resolution = match gate::resolve(&gate, by, request, entry.at) {
        Ok(resolution) => resolution,
        Err(refused) => return Ok(GateOutcome::Refused(refused)),
    };
    let remembered = match resolution.remember {
        Some(GateScope::Thread) => remember_for_thread(tx, &gate).await?,
        Some(GateScope::User) => remember_for_user(tx, &gate, entry.at).await?,
        None => None,
    };
    let gate = Gate {
        state: resolution.state,
        resolved_at: Some(entry.at),
        resolved_by: Some(by.user.clone()),
        decision: Some(request.decision),
        reason: request.reason.clone(),
        ..gate
    };
    close(tx, &gate, remembered).await?;
    continue_thread(tx, &gate, entry.at).await?;
    let action = if request.decision == GateDecision::Deny { "gate.deny" } else { "gate.approve" };
    let entry = AuditEntry { action: action.to_owned(), ..entry.clone() };
    audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await?;
    let resolution = GateResolution { gate, remembered: remembered.is_some() };
    Ok(GateOutcome::Resolved(Box::new(resolution)))
}

/// Denies the pending gate of a thread whose turn ends without it. The thread's state is the caller's to set.
pub(crate) async fn deny_pending(
    tx: &mut WriteTx,
    thread: ThreadId,
    reason: &str,
    at: DateTime<Utc>,
) -> Result<(), StoreError> {
    let Some(gate) = find(tx, GateTarget::Thread(thread)).await? else { return Ok(()) };
    if gate.state != GateState::Pending {
        return Ok(());
    }
    let gate = Gate {
        state: GateState::Denied,
        resolved_at: Some(at),
        decision: Some(GateDecision::Deny),
        reason: Some(reason.to_owned()),
        ..gate
    };
    close(tx, &gate, None).await
}

async fn expire(
    tx: &mut WriteTx,
    due: &[Uuid],
    rows: &InconsistentRows,
    now: DateTime<Utc>,
) -> Result<usize, StoreError> {
    let mut expired = 0;
    for id in due {
        let Some(gate) = rows.skip(waiting(tx, *id).await)?.flatten() else { continue };
        let gate = Gate { state: GateState::Expired, resolved_at: Some(now), ..gate };
        close(tx, &gate, None).await?;
        continue_thread(tx, &gate, now).await?;
        expired += 1;
    }
    Ok(expired)
}

/// A pending gate, whose thread waits for it. `None`: it is resolved.
async fn waiting(tx: &mut WriteTx, id: Uuid) -> Result<Option<Gate>, StoreError> {
    let Some(gate) = find(tx, GateTarget::Gate(GateId::from_uuid(id))).await? else { return Ok(None) };
    if gate.state != GateState::Pending {
        return Ok(None);
    }
    let thread: Option<String> = sqlx::query_scalar("SELECT state FROM chat_threads WHERE id = $1")
        .bind(gate.thread_id)
        .fetch_optional(&mut tx.db)
        .await?;
    let is_waiting = thread.is_some_and(|state| state == ThreadState::AwaitingApproval.as_str());
    let row = RowRef { table: "chat_threads", id: *gate.thread_id.as_uuid() };
    row.known("state", is_waiting.then_some(Some(gate)))
}

/// Writes the end of a pending gate, and its event.
async fn close(tx: &mut WriteTx, gate: &Gate, scope: Option<GateScope>) -> Result<(), StoreError> {
    let closed = sqlx::query(
        "UPDATE gates SET state = $2, resolved_at = $3, resolved_by = $4, decision = $5, reason = $6, scope = $7 \
         WHERE id = $1 AND state = 'pending'",
    )
    .bind(gate.id)
    .bind(gate.state.as_str())
    .bind(gate.resolved_at)
    .bind(&gate.resolved_by)
    .bind(gate.decision.map(GateDecision::as_str))
    .bind(&gate.reason)
    .bind(scope.map(GateScope::as_str))
    .execute(&mut tx.db)
    .await?;
    if closed.rows_affected() != 1 {
        return Err(RowRef { table: "gates", id: *gate.id.as_uuid() }.invalid("state"));
    }
    let event = InstanceEventData::GateResolved(Box::new(gate.clone()));
    let at = gate.resolved_at.unwrap_or(gate.expires_at);
    instance_events::append(tx, &gate.user_id, at, &event).await?;
    // It asks for an answer, which is there.
    notifications::settle(tx, notification_id(gate.id), at).await
}

/// Lets the turn of a resolved gate go on.
async fn continue_thread(tx: &mut WriteTx, gate: &Gate, at: DateTime<Utc>) -> Result<(), StoreError> {
    let (thread_id, state) = (gate.thread_id, ThreadState::Processing);
    let continued = sqlx::query(
        "UPDATE chat_threads SET state = $2, updated_at = $3 WHERE id = $1 AND state = 'awaiting_approval'",
    )
    .bind(thread_id)
    .bind(state.as_str())
    .bind(at)
    .execute(&mut tx.db)
    .await?;
    if continued.rows_affected() != 1 {
        return Err(RowRef { table: "chat_threads", id: *thread_id.as_uuid() }.invalid("state"));
    }
    chat::publish_state(tx, &gate.user_id, thread_id, state, at).await?;
    tx.after_commit(|committed| committed.notifier.chats.notify_one());
    Ok(())
}

async fn remember_for_thread(tx: &mut WriteTx, gate: &Gate) -> Result<Option<GateScope>, StoreError> {
    let id = *gate.thread_id.as_uuid();
    let stored: String =
        sqlx::query_scalar("SELECT remembered FROM chat_threads WHERE id = $1").bind(id).fetch_one(&mut tx.db).await?;
    let mut remembered: BTreeSet<String> = RowRef { table: "chat_threads", id }.json("remembered", &stored)?;
    remembered.insert(gate.tool.clone());
    sqlx::query("UPDATE chat_threads SET remembered = $2 WHERE id = $1")
        .bind(id)
        .bind(text(&remembered)?)
        .execute(&mut tx.db)
        .await?;
    Ok(Some(GateScope::Thread))
}

/// Sets the tool's permission, unless the user has meanwhile set another one.
async fn remember_for_user(tx: &mut WriteTx, gate: &Gate, at: DateTime<Utc>) -> Result<Option<GateScope>, StoreError> {
    let permission = tool_policy::permission(&mut tx.db, &gate.user_id, &gate.tool).await?;
    if !matches!(permission, PermissionState::Default | PermissionState::AlwaysAllow) {
        return Ok(None);
    }
    let key = (gate.user_id.clone(), gate.tool.clone());
    tool_policy::upsert(&mut tx.db, key, PermissionState::AlwaysAllow, at).await?;
    Ok(Some(GateScope::User))
}
