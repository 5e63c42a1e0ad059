//! Gates: opened when a turn is parked, resolved once, listed, expired.
//!
//! Guarantees that a resolution is one transaction: the gate, its thread, its event, what is remembered, and the audit
//! entry. Never has the arguments of a call, which are in the thread's parked run.

mod resolve;

use agent::{ApprovalAnswer, ApprovalRequest};
use chrono::{DateTime, Utc};
use protocol::{
    CallId, Gate, GateDecision, GateId, GateKind, GateState, InstanceEventData, NotificationId, NotificationKind,
    ThreadId,
};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

pub use self::resolve::{GateAnswer, GateOutcome, GateTarget};
pub(crate) use self::resolve::{deny_pending, resolve};
use crate::{
    NewNotification, Store, StoreError,
    events::instance_events,
    notifications,
    sqlite::{
        inconsistent_rows::Keyed,
        list_walks::ListWalks,
        rows::{RowRef, text},
        write_tx::WriteTx,
    },
    users::settings,
};
use base::Zone;
use domain::gate::{LIFETIME, parameters_digest};

/// The reason for which a parked call does not run although its thread goes on.
const NOT_APPROVED: &str = "this is not the call that was approved";

/// Which gates to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GateFilter {
    /// Only gates of this user.
    pub user: Option<String>,
    /// Only gates in one of these states; all if empty.
    pub states: Vec<GateState>,
    /// Only those whose id begins or ends with these lower-case hexadecimal digits.
    pub id_part: Option<String>,
    /// Only those older than this one.
    pub before: Option<GateId>,
    /// Maximum number of gates.
    pub limit: u32,
}

/// The columns of [`GateRow`], for SELECT.
macro_rules! columns {
    () => {
        "id, thread_id, user_id, kind, state, call_id, tool, parameters, parameters_digest, reasoning, can_be_remembered, \
         created_at, expires_at, resolved_at, resolved_by, decision, reason"
    };
}

/// Opens a gate in the transaction that parks the turn and sets its thread to `awaiting_approval`. The parked run names
/// it from then on.
pub(crate) async fn open(
    tx: &mut WriteTx,
    thread: ThreadId,
    request: &ApprovalRequest,
    at: DateTime<Utc>,
) -> Result<Gate, StoreError> {
    let user: String =
        sqlx::query_scalar("SELECT user_id FROM chat_threads WHERE id = $1").bind(thread).fetch_one(&mut tx.db).await?;
    let gate = Gate {
        id: GateId::generate(),
        kind: GateKind::Approval,
        state: GateState::Pending,
        thread_id: thread,
        user_id: user,
        call_id: Some(request.call_id.clone()),
        tool: request.tool.clone(),
        parameters: request.redacted_input.clone(),
        parameters_digest: parameters_digest(&request.arguments),
        reasoning: request.reasoning.clone(),
        can_be_remembered: request.can_be_remembered,
        created_at: at,
        expires_at: at + LIFETIME,
        resolved_at: None,
        resolved_by: None,
        decision: None,
        reason: None,
    };
    sqlx::query(
        "INSERT INTO gates (id, thread_id, user_id, kind, state, tool, parameters, parameters_digest, reasoning, \
         can_be_remembered, created_at, expires_at, call_id) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)",
    )
    .bind(gate.id)
    .bind(gate.thread_id)
    .bind(&gate.user_id)
    .bind(gate.kind.as_str())
    .bind(gate.state.as_str())
    .bind(&gate.tool)
    .bind(text(&gate.parameters)?)
    .bind(&gate.parameters_digest)
    .bind(&gate.reasoning)
    .bind(gate.can_be_remembered)
    .bind(gate.created_at)
    .bind(gate.expires_at)
    .bind(&request.call_id.0)
    .execute(&mut tx.db)
    .await?;
    sqlx::query(
        "INSERT INTO chat_transcripts (thread_id, gate_id) VALUES ($1, $2) \
         ON CONFLICT (thread_id) DO UPDATE SET gate_id = excluded.gate_id",
    )
    .bind(gate.thread_id)
    .bind(gate.id)
    .execute(&mut tx.db)
    .await?;
    let event = InstanceEventData::GateRequired(Box::new(gate.clone()));
    instance_events::append(tx, &gate.user_id, at, &event).await?;
    let zone = settings::timezone(&mut tx.db, &gate.user_id).await?.parse().unwrap_or(Zone::UTC);
    notifications::insert_as(tx, notification_id(gate.id), notification(&gate, zone), at).await?;
    Ok(gate)
}

/// The id of a gate's notification: the same, so that it is found when the gate is resolved.
const fn notification_id(gate: GateId) -> NotificationId {
    NotificationId::from_uuid(*gate.as_uuid())
}

/// In the user's zone, as clients show the times beside it.
fn notification(gate: &Gate, zone: Zone) -> NewNotification {
    let (tool, expires_at, id) = (&gate.tool, gate.expires_at.with_timezone(&zone).format("%F %R %Z"), gate.id);
    let text =
        format!("A call of {tool} waits for your approval until {expires_at}. Run `gantry gate show {id}` to see it.");
    NewNotification::new(&gate.user_id, NotificationKind::GateRequired, format!("Approval required: {tool}"), text)
}

/// The answer that the parked run of a thread continues with: that of the gate that it names. Only the call that the
/// answer is about can run.
pub(crate) async fn answer(
    tx: &mut WriteTx,
    thread: ThreadId,
    parked: &ApprovalRequest,
) -> Result<ApprovalAnswer, StoreError> {
    let denied = |reason: &str| Ok(ApprovalAnswer::Denied { reason: Some(reason.to_owned()) });
    let Some(gate) = find(tx, GateTarget::Thread(thread)).await? else { return denied(NOT_APPROVED) };
    if gate.parameters_digest != parameters_digest(&parked.arguments) || gate.tool != parked.tool {
        return denied(NOT_APPROVED);
    }
    match gate.state {
        GateState::Approved => Ok(ApprovalAnswer::Approved),
        GateState::Denied => Ok(ApprovalAnswer::Denied { reason: gate.reason }),
        GateState::Expired => Ok(ApprovalAnswer::Expired),
        GateState::Pending => Err(RowRef { table: "gates", id: *gate.id.as_uuid() }.invalid("state")),
    }
}

async fn find(tx: &mut WriteTx, target: GateTarget) -> Result<Option<Gate>, StoreError> {
    let (statement, id) = match target {
        GateTarget::Gate(id) => (concat!("SELECT ", columns!(), " FROM gates WHERE id = $1"), *id.as_uuid()),
        GateTarget::Thread(thread) => (
            concat!(
                "SELECT ",
                columns!(),
                " FROM gates WHERE id = (SELECT gate_id FROM chat_transcripts WHERE thread_id = $1)"
            ),
            *thread.as_uuid(),
        ),
    };
    let row: Option<GateRow> = sqlx::query_as(statement).bind(id).fetch_optional(&mut tx.db).await?;
    row.map(GateRow::into_gate).transpose()
}

impl Store {
    pub async fn gate(&self, id: GateId) -> Result<Option<Gate>, StoreError> {
        let row: Option<GateRow> = sqlx::query_as(concat!("SELECT ", columns!(), " FROM gates WHERE id = $1"))
            .bind(id)
            .fetch_optional(&self.read)
            .await?;
        row.map(GateRow::into_gate).transpose()
    }

    /// Gates, newest first, each with its id; `None` for one that cannot be read.
    pub async fn gates(&self, filter: &GateFilter) -> Result<Vec<(GateId, Option<Gate>)>, StoreError> {
        let walks = ListWalks {
            select: concat!("SELECT ", columns!(), " FROM gates"),
            index: None,
            by_id_end: "gates_by_id_end",
            states: filter.states.iter().map(|state| state.as_str()).collect(),
            id_part: filter.id_part.as_deref(),
            before: filter.before.map(|before| *before.as_uuid()),
        };
        let mut query = QueryBuilder::<Sqlite>::new("");
        walks.push(&mut query, filter.limit, |query| {
            if let Some(user) = &filter.user {
                query.push(" AND user_id = ").push_bind(user.clone());
            }
        });
        let rows: Vec<Keyed<GateRow, GateId>> = query.build_query_as().fetch_all(&self.read).await?;
        self.inconsistent.read_page(rows, GateRow::into_gate)
    }
}

impl Store {
    /// Deletes gates that were resolved before a time, except those whose answer a turn has yet to read. Returns how
    /// many.
    pub(crate) async fn trim_gates(&self, before: DateTime<Utc>) -> Result<u64, StoreError> {
        let resolved = "DELETE FROM gates WHERE id IN (SELECT id FROM gates WHERE resolved_at < $1 \
             AND thread_id NOT IN (SELECT id FROM chat_threads INDEXED BY chat_threads_busy \
             WHERE state = 'processing' AND state <> 'idle') LIMIT $2)";
        self.delete_batch(resolved, before).await
    }
}

#[derive(FromRow)]
struct GateRow {
    id: Uuid,
    thread_id: ThreadId,
    user_id: String,
    kind: String,
    state: String,
    call_id: Option<String>,
    tool: String,
    parameters: String,
    parameters_digest: String,
    reasoning: String,
    can_be_remembered: bool,
    created_at: DateTime<Utc>,
    expires_at: DateTime<Utc>,
    resolved_at: Option<DateTime<Utc>>,
    resolved_by: Option<String>,
    decision: Option<String>,
    reason: Option<String>,
}

impl GateRow {
    fn into_gate(self) -> Result<Gate, StoreError> {
        let row = RowRef { table: "gates", id: self.id };
        let decision = self.decision.map(|name| row.known("decision", GateDecision::parse(&name))).transpose()?;
        Ok(Gate {
            id: GateId::from_uuid(self.id),
            kind: row.known("kind", GateKind::parse(&self.kind))?,
            state: row.known("state", GateState::parse(&self.state))?,
            thread_id: self.thread_id,
            user_id: self.user_id,
            call_id: self.call_id.map(CallId),
            tool: self.tool,
            parameters: row.json("parameters", &self.parameters)?,
            parameters_digest: self.parameters_digest,
            reasoning: self.reasoning,
            can_be_remembered: self.can_be_remembered,
            created_at: self.created_at,
            expires_at: self.expires_at,
            resolved_at: self.resolved_at,
            resolved_by: self.resolved_by,
            decision,
            reason: self.reason,
        })
    }
}

#[cfg(test)]
mod tests;
