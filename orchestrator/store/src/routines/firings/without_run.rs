//! Firings that led to no run: skipped ones and missed ones, which lists show among the runs.
//!
//! Guarantees that a firing which a guardrail stops writes at most one row for its routine, reason and minute; further
//! ones are counted there. Each missed gap has one row. A run that waited and ended without starting is a run.

use std::collections::HashMap;

use protocol::{RoutineRun, RunId};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    StoreError,
    routines::rows::time_text,
    sqlite::{rows::text, write_tx::WriteTx},
};

/// A firing that was recorded.
pub(in crate::routines) struct Recorded {
    /// The firing, with the id of the row that has it.
    pub(in crate::routines) run: RoutineRun,
    /// Whether it is the first of its row.
    pub(in crate::routines) is_first: bool,
}

/// Records firings that were skipped or missed.
pub(in crate::routines) async fn record(
    tx: &mut WriteTx,
    firings: Vec<RoutineRun>,
) -> Result<Vec<Recorded>, StoreError> {
    if firings.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<Value> = firings.iter().map(to_json).collect();
    let stored: Vec<(Uuid, Uuid, String)> = sqlx::query_as(
        "INSERT INTO firings (id, routine_id, user_id, routine_name, status, reason, trigger_type, detail, due_at, created_at, \
         skipped_count, last_at, last_detail, missed_from, missed_to, missed_count) \
         SELECT unhex(j.value->>'id', '-'), unhex(j.value->>'routine', '-'), j.value->>'user', j.value->>'name', j.value->>'status', \
         j.value->>'reason', j.value->>'trigger', j.value->>'detail', j.value->>'due', j.value->>'created', \
         j.value->>'skipped', j.value->>'last', j.value->>'last_detail', j.value->>'from', j.value->>'to', j.value->>'missed' \
         FROM json_each($1) AS j WHERE TRUE \
         ON CONFLICT (routine_id, reason, substr(created_at, 1, 16)) WHERE status = 'skipped' DO UPDATE SET \
         skipped_count = skipped_count + 1, last_at = excluded.last_at, last_detail = excluded.last_detail \
         RETURNING id, routine_id, reason",
    )
    .bind(text(&rows)?)
    .fetch_all(&mut tx.db)
    .await?;
    // All are of the same minute, so a routine has one row for a reason, unless it was missed.
    let of_reason: HashMap<(Uuid, &str), Uuid> =
        stored.iter().map(|(id, routine, reason)| ((*routine, reason.as_str()), *id)).collect();
    let recorded = firings.into_iter().map(|mut run| {
        let is_first = stored.iter().any(|(id, ..)| id == run.id.as_uuid());
        let reason = run.reason.map_or("", |reason| reason.as_str());
        if let Some(row) = of_reason.get(&(*run.routine_id.as_uuid(), reason)).filter(|_| !is_first) {
            run.id = RunId::from_uuid(*row);
        }
        Recorded { run, is_first }
    });
    Ok(recorded.collect())
}

fn to_json(run: &RoutineRun) -> Value {
    json!({
        "id": run.id, "routine": run.routine_id, "user": run.user_id,
        "name": run.routine_name, "status": run.status, "reason": run.reason, "trigger": run.trigger_type,
        "detail": run.trigger_detail.to_string(), "due": run.due_at.map(time_text), "created": time_text(run.created_at),
        "skipped": run.skipped_count, "last": run.last_skipped_at.map(time_text),
        "last_detail": run.last_skipped_detail.as_ref().map(Value::to_string),
        "from": run.missed_from.map(time_text), "to": run.missed_to.map(time_text), "missed": run.missed_count,
    })
}
