//! What was accepted before, and firings that led to no run, had no separate tables.

use super::DataMigration;

/// The time of a column and a modifier later, as the database writes times.
macro_rules! later {
    ($column:literal, $modifier:literal) => {
        concat!("strftime('%Y-%m-%dT%H:%M:%f+00:00', ", $column, ", ", $modifier, ")")
    };
}

/// Runs that are now entries of `firings`. One that waited before it was skipped was completed later than it was made.
macro_rules! leads_to_no_run {
    () => {
        "(status = 'missed' OR (status = 'skipped' AND completed_at = created_at))"
    };
}

/// Idempotency keys; the response of a created job begins with the id of the job.
pub(super) const KEYS: DataMigration = DataMigration {
    name: "accepted_keys",
    table: "idempotency_keys",
    step: &[
        concat!(
            "INSERT OR IGNORE INTO accepted (scope, key, digest, accepted_at, until, status, body, job_id) \
             SELECT 'key:' || user_id, key, digest, created_at, ",
            later!("created_at", "'+24 hours'"),
            ", status, CASE WHEN status <> 410 THEN body END, \
             CASE WHEN status = 201 AND json_valid(body) THEN unhex(replace(body->>'id', '-', '')) END \
             FROM idempotency_keys WHERE rowid > ?1 AND rowid <= ?2"
        ),
        "DELETE FROM idempotency_keys WHERE rowid > ?1 AND rowid <= ?2",
    ],
    finish: &["DROP TABLE idempotency_keys"],
};

/// Ids and bodies of webhook deliveries. The log stays where it is.
pub(super) const DELIVERIES: DataMigration = DataMigration {
    name: "accepted_deliveries",
    table: "webhook_deliveries",
    step: &[
        concat!(
            "INSERT OR IGNORE INTO accepted (scope, key, accepted_at, until, run_id) \
             SELECT 'delivery:' || lower(hex(routine_id)), 'id:' || lower(hex(id_digest)), received_at, ",
            later!("received_at", "'+72 hours'"),
            ", run_id FROM webhook_deliveries WHERE rowid > ?1 AND rowid <= ?2 AND id_digest IS NOT NULL"
        ),
        concat!(
            "INSERT OR IGNORE INTO accepted (scope, key, accepted_at, until, run_id) \
             SELECT 'delivery:' || lower(hex(routine_id)), 'body:' || lower(hex(body_digest)), received_at, ",
            later!("received_at", "'+72 hours'"),
            ", run_id FROM webhook_deliveries WHERE rowid > ?1 AND rowid <= ?2 AND body_digest IS NOT NULL"
        ),
    ],
    finish: &[],
};

/// Payloads and keys that fired runs, and runs that were skipped or missed. The digest of what a key of a message was
/// sent with was not stored, so the key has none.
pub(super) const RUNS: DataMigration = DataMigration {
    name: "accepted_and_firings_of_runs",
    table: "routine_runs",
    step: &[
        concat!(
            "INSERT OR REPLACE INTO accepted (scope, key, accepted_at, until, run_id) \
             SELECT 'payload:' || lower(hex(q.routine_id)), lower(hex(q.payload_digest)), q.created_at, ",
            later!("q.created_at", "'+' || w.seconds || ' seconds'"),
            ", q.id FROM routine_runs AS q JOIN (SELECT id, \
             CASE WHEN json_valid(guardrails) THEN guardrails->>'dedup_window_seconds' END AS seconds FROM routines) AS w \
             ON w.id = q.routine_id WHERE q.rowid > ?1 AND q.rowid <= ?2 AND q.payload_digest IS NOT NULL \
             AND q.status <> 'skipped' AND w.seconds IS NOT NULL"
        ),
        concat!(
            "INSERT INTO accepted (scope, key, accepted_at, until, status, body) SELECT 'key:' || user_id, key, created_at, ",
            later!("created_at", "'+24 hours'"),
            ", 202, json_object('id', key, 'run_ids', CASE WHEN status = 'skipped' THEN json_array() ELSE json_array(run) END) \
             FROM (SELECT *, substr(identity, instr(identity, ':') + 1) AS key, \
             lower(substr(hex(id), 1, 8) || '-' || substr(hex(id), 9, 4) || '-' || substr(hex(id), 13, 4) || '-' || \
             substr(hex(id), 17, 4) || '-' || substr(hex(id), 21)) AS run FROM routine_runs \
             WHERE rowid > ?1 AND rowid <= ?2 AND (identity LIKE 'message:%' OR identity LIKE 'event:%') \
             AND created_at > ",
            later!("'now'", "'-24 hours'"),
            ") WHERE TRUE ON CONFLICT (scope, key) DO UPDATE SET \
             body = json_insert(body, '$.run_ids[#]', excluded.body->>'$.run_ids[0]') \
             WHERE digest IS NULL AND excluded.body->>'$.run_ids[0]' IS NOT NULL"
        ),
        concat!(
            "INSERT INTO firings (id, routine_id, user_id, routine_name, status, reason, trigger_type, detail, due_at, \
             created_at, skipped_count, last_at, last_detail, missed_from, missed_to, missed_count) \
             SELECT id, routine_id, user_id, routine_name, status, reason, trigger_type, trigger_detail, due_at, created_at, \
             CASE WHEN status = 'skipped' THEN 1 END, CASE WHEN status = 'skipped' THEN created_at END, \
             CASE WHEN status = 'skipped' THEN trigger_detail END, missed_from, missed_to, missed_count FROM routine_runs \
             WHERE rowid > ?1 AND rowid <= ?2 AND reason IS NOT NULL AND ",
            leads_to_no_run!(),
            " ORDER BY rowid ON CONFLICT (routine_id, reason, substr(created_at, 1, 16)) WHERE status = 'skipped' \
             DO UPDATE SET skipped_count = skipped_count + 1, last_at = excluded.last_at, last_detail = excluded.last_detail"
        ),
        concat!(
            "DELETE FROM routine_runs WHERE rowid > ?1 AND rowid <= ?2 AND reason IS NOT NULL AND ",
            leads_to_no_run!()
        ),
    ],
    finish: &[],
};
