-- What a run waits for, as columns: users take turns over an index, however many runs wait.
ALTER TABLE routines ADD COLUMN max_concurrent INTEGER GENERATED ALWAYS AS (guardrails->>'max_concurrent') VIRTUAL;
-- The time from which a queued run may start. '' is at once: it is before every time, also once the clock was set back.
ALTER TABLE routine_runs ADD COLUMN ready_at TEXT GENERATED ALWAYS AS (COALESCE(not_before, '')) VIRTUAL;
DROP INDEX routine_runs_queued;
CREATE INDEX routine_runs_waiting ON routine_runs (kind, user_id, ready_at, id, routine_id) WHERE status = 'queued';
CREATE INDEX routine_runs_ready ON routine_runs (ready_at) WHERE status = 'queued';
DROP INDEX routine_runs_running;
CREATE INDEX routine_runs_running ON routine_runs (routine_id, id) WHERE status = 'running';
-- The same as routine_runs_by_start.
DROP INDEX routine_runs_last_start;
