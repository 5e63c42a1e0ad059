-- Jobs that were deleted on request, until their files are removed.
CREATE TABLE deleted_jobs (
    job_id     BLOB NOT NULL PRIMARY KEY,
    deleted_at TEXT NOT NULL
);

-- What deleted jobs used, by day and model: it stays counted. Tool calls have the model ''.
CREATE TABLE deleted_usage (
    user_id            TEXT    NOT NULL,
    day                TEXT    NOT NULL,
    model              TEXT    NOT NULL,
    input_tokens       INTEGER NOT NULL DEFAULT 0,
    output_tokens      INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens  INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    -- NULL when a call had no price.
    cost_micro_usd     INTEGER DEFAULT 0,
    tries              INTEGER NOT NULL DEFAULT 0,
    tool_calls         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (user_id, day, model)
) WITHOUT ROWID;
CREATE INDEX deleted_usage_by_day ON deleted_usage (day);

-- How deleted jobs had ended: a counter never decreases.
CREATE TABLE deleted_job_counts (
    state  TEXT    NOT NULL,
    reason TEXT    NOT NULL,
    jobs   INTEGER NOT NULL,
    PRIMARY KEY (state, reason)
) WITHOUT ROWID;

-- For the deletion of a job, which its notifications outlive.
CREATE INDEX notifications_by_job ON notifications (job_id) WHERE job_id IS NOT NULL;
