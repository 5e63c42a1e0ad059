-- Firings that led to no run: skipped ones, counted for each routine, reason and minute, and missed ones, one row for
-- each gap. Such rows of routine_runs are moved here (data migration); its columns for them stay, since to drop a
-- column rewrites the table.
CREATE TABLE firings (
    id            BLOB NOT NULL PRIMARY KEY,
    routine_id    BLOB NOT NULL,
    user_id       TEXT NOT NULL,
    routine_name  TEXT NOT NULL,
    -- skipped or missed.
    status        TEXT NOT NULL,
    reason        TEXT NOT NULL,
    -- Of the first firing.
    trigger_type  TEXT NOT NULL,
    detail        TEXT NOT NULL,
    due_at        TEXT,
    created_at    TEXT NOT NULL,
    -- Of skipped ones.
    skipped_count INTEGER,
    last_at       TEXT,
    last_detail   TEXT,
    -- Of missed ones.
    missed_from   TEXT,
    missed_to     TEXT,
    missed_count  INTEGER
);
CREATE UNIQUE INDEX firings_of_minute ON firings (routine_id, reason, substr(created_at, 1, 16)) WHERE status = 'skipped';
CREATE INDEX firings_by_routine ON firings (routine_id, id);
CREATE INDEX firings_by_user ON firings (user_id, id);
CREATE INDEX firings_by_time ON firings (created_at);

-- The same as routine_runs_last_start.
-- No statement looks for the run of a job: a job has the id of its run.
DROP INDEX routine_runs_by_job;
