-- Who did what. A row is written in the transaction of what it tells; what was refused has a row of its own.
-- Never a secret, never what somebody said to an agent.

CREATE TABLE audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         TEXT    NOT NULL,
    user_id    TEXT    NOT NULL,
    role       TEXT    NOT NULL,
    action     TEXT    NOT NULL,
    -- Whatever was named, whether it is there or not: no reference.
    job_id     BLOB,
    outcome    TEXT    NOT NULL,
    code       TEXT,
    request_id TEXT,
    jti        TEXT,
    source     TEXT
);
CREATE INDEX audit_by_user ON audit (user_id, id);
CREATE INDEX audit_by_job ON audit (job_id, id) WHERE job_id IS NOT NULL;
-- Counts by state and reason, for the metrics and the summary.
CREATE INDEX jobs_by_state ON jobs (state, reason);
