-- What was accepted before: requests with an idempotency key, deliveries of webhooks, payloads that fired a routine.
-- The rows of idempotency_keys, and what webhook_deliveries and routine_runs have of this, are moved here (data
-- migrations). Their columns that are no longer used stay, since to drop a column rewrites the table.
CREATE TABLE accepted (
    -- What the key is unique in: key:<user>, delivery:<routine>, payload:<routine>.
    scope       TEXT NOT NULL,
    key         TEXT NOT NULL,
    -- Digest of the request that was sent with the key; NULL if any request with the key is the same one.
    digest      TEXT,
    accepted_at TEXT NOT NULL,
    until       TEXT NOT NULL,
    -- The response that a repeated request gets. It has no body once the job that it shows was deleted.
    status      INTEGER,
    body        TEXT,
    -- The job that was created, and the run that was fired.
    job_id      BLOB,
    run_id      BLOB,
    PRIMARY KEY (scope, key)
);
CREATE INDEX accepted_by_until ON accepted (until);
CREATE INDEX accepted_by_job ON accepted (job_id) WHERE job_id IS NOT NULL;

DROP INDEX webhook_deliveries_by_id;
DROP INDEX webhook_deliveries_by_body;
DROP INDEX webhook_deliveries_logged;
DROP INDEX webhook_deliveries_kept;
DROP INDEX routine_runs_by_digest;
