-- Routines, their runs, and what fires them.
CREATE TABLE routines (
    id BLOB NOT NULL PRIMARY KEY,
    user_id TEXT NOT NULL,
    name TEXT NOT NULL,
    description TEXT,
    enabled INTEGER NOT NULL,
    disabled_reason TEXT,
    disabled_at TEXT,
    -- Increases with each change; a firing that was planned against an older one is void.
    rev INTEGER NOT NULL DEFAULT 1,
    trigger_type TEXT NOT NULL,
    trigger TEXT NOT NULL,
    action_type TEXT NOT NULL,
    action TEXT NOT NULL,
    guardrails TEXT NOT NULL,
    notify TEXT NOT NULL,
    session TEXT NOT NULL,
    wake_mode TEXT NOT NULL,
    deliver INTEGER NOT NULL,
    post_to_main INTEGER NOT NULL,
    post_to_main_prefix TEXT,
    persist_payload INTEGER NOT NULL,
    -- Of triggers by webhook.
    webhook_path TEXT,
    -- Of triggers by system events, in lower case.
    event_source TEXT,
    event_type TEXT,
    has_webhook_secret INTEGER NOT NULL DEFAULT 0,
    has_notify_secret INTEGER NOT NULL DEFAULT 0,
    state TEXT,
    last_run_at TEXT,
    -- The status of the last run that ended.
    last_status TEXT,
    next_fire_at TEXT,
    run_count INTEGER NOT NULL DEFAULT 0,
    consecutive_failures INTEGER NOT NULL DEFAULT 0,
    verified INTEGER NOT NULL DEFAULT 0,
    -- The revision at which trigger or action last changed: a good run of it or a later one verifies the routine.
    verify_rev INTEGER NOT NULL DEFAULT 1,
    -- Use in the budget's current period.
    budget_from TEXT,
    budget_tokens INTEGER NOT NULL DEFAULT 0,
    budget_cost_usd REAL NOT NULL DEFAULT 0,
    budget_notified INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
);
CREATE UNIQUE INDEX routines_by_name ON routines (user_id, name);
CREATE INDEX routines_by_user ON routines (user_id, id);
CREATE INDEX routines_due ON routines (next_fire_at) WHERE enabled AND next_fire_at IS NOT NULL;
CREATE UNIQUE INDEX routines_by_path ON routines (webhook_path) WHERE webhook_path IS NOT NULL;
CREATE INDEX routines_of_messages ON routines (user_id) WHERE enabled AND trigger_type = 'event';
CREATE INDEX routines_of_events ON routines (user_id, event_source, event_type) WHERE enabled AND trigger_type = 'system_event';

CREATE TABLE routine_runs (
    id BLOB NOT NULL PRIMARY KEY,
    routine_id BLOB NOT NULL,
    user_id TEXT NOT NULL,
    routine_name TEXT NOT NULL,
    -- What makes the firing unique in its routine: the due time, the delivery, or the run's own id.
    identity TEXT NOT NULL,
    kind TEXT NOT NULL,
    trigger_type TEXT NOT NULL,
    trigger_detail TEXT NOT NULL,
    -- What fired it; deleted when the run ends unless the routine keeps it.
    payload TEXT,
    payload_digest BLOB,
    -- Firings by routines that led to this one.
    depth INTEGER NOT NULL DEFAULT 0,
    routine_rev INTEGER NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    message TEXT,
    due_at TEXT,
    not_before TEXT,
    started_at TEXT,
    -- When its present attempt started.
    attempt_started_at TEXT,
    completed_at TEXT,
    result_summary TEXT,
    tokens_used INTEGER NOT NULL DEFAULT 0,
    cost_usd REAL DEFAULT 0,
    job_id BLOB,
    attempt INTEGER NOT NULL DEFAULT 1,
    -- Waits that a provider asked for.
    rate_limit_waits INTEGER NOT NULL DEFAULT 0,
    -- Why it is being cancelled, while its job stops.
    cancel_reason TEXT,
    missed_from TEXT,
    missed_to TEXT,
    missed_count INTEGER,
    created_at TEXT NOT NULL
);
CREATE UNIQUE INDEX routine_runs_by_identity ON routine_runs (routine_id, identity);
CREATE INDEX routine_runs_by_routine ON routine_runs (routine_id, id);
CREATE INDEX routine_runs_by_user ON routine_runs (user_id, id);
CREATE INDEX routine_runs_by_time ON routine_runs (created_at);
CREATE INDEX routine_runs_queued ON routine_runs (kind, not_before, id) WHERE status = 'queued';
CREATE INDEX routine_runs_running ON routine_runs (kind, id) WHERE status = 'running';
CREATE INDEX routine_runs_live ON routine_runs (routine_id, id) WHERE status IN ('queued', 'running');
-- When the runs of a user last started: users take turns.
CREATE INDEX routine_runs_last_start ON routine_runs (user_id, attempt_started_at) WHERE attempt_started_at IS NOT NULL;
CREATE INDEX routine_runs_started ON routine_runs (routine_id, started_at) WHERE started_at IS NOT NULL;
CREATE INDEX routine_runs_by_digest ON routine_runs (routine_id, payload_digest, created_at) WHERE payload_digest IS NOT NULL;
CREATE INDEX routine_runs_by_job ON routine_runs (job_id) WHERE job_id IS NOT NULL;

-- Failures that the owner has been told about, until the routine has a good run.
CREATE TABLE routine_alerts (
    routine_id BLOB NOT NULL,
    reason TEXT NOT NULL,
    notified_at TEXT NOT NULL,
    PRIMARY KEY (routine_id, reason)
);

-- Deliveries of webhooks: the ids that were answered, and the log.
CREATE TABLE webhook_deliveries (
    id BLOB NOT NULL PRIMARY KEY,
    routine_id BLOB NOT NULL,
    received_at TEXT NOT NULL,
    -- The id that the sender gave it, for people.
    delivery_id TEXT NOT NULL,
    -- Digests that a later delivery is compared with; NULL if this delivery does not use up its id.
    id_digest BLOB,
    body_digest BLOB,
    verdict TEXT NOT NULL,
    status INTEGER NOT NULL,
    run_id BLOB
);
CREATE INDEX webhook_deliveries_by_routine ON webhook_deliveries (routine_id, id);
CREATE INDEX webhook_deliveries_by_id ON webhook_deliveries (routine_id, id_digest) WHERE id_digest IS NOT NULL;
CREATE INDEX webhook_deliveries_by_body ON webhook_deliveries (routine_id, body_digest) WHERE body_digest IS NOT NULL;
CREATE INDEX webhook_deliveries_by_time ON webhook_deliveries (received_at);

-- Events that Gantry and its tools have emitted and that wait for the routines they fire.
CREATE TABLE routine_events (
    id BLOB NOT NULL PRIMARY KEY,
    user_id TEXT NOT NULL,
    -- 'message' or 'system'.
    kind TEXT NOT NULL,
    -- The channel of a message, or the source of a system event.
    source TEXT,
    event_type TEXT,
    payload TEXT NOT NULL,
    depth INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL
);
CREATE INDEX routine_events_by_user ON routine_events (user_id, id);

-- What an administrator has switched, beside the environment's switch. One row.
CREATE TABLE automation (
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    cron_enabled INTEGER NOT NULL DEFAULT 1,
    heartbeats_enabled INTEGER NOT NULL DEFAULT 1,
    -- Whether triggers are on by the environment and the switch together.
    is_on INTEGER NOT NULL DEFAULT 1,
    -- When triggers were last switched on: times of schedules before it that have no outcome were missed.
    resumed_at TEXT
);
INSERT INTO automation (id) VALUES (1);

ALTER TABLE jobs ADD COLUMN routine_id BLOB;
ALTER TABLE jobs ADD COLUMN run_id BLOB;
CREATE INDEX jobs_by_run ON jobs (run_id) WHERE run_id IS NOT NULL;
