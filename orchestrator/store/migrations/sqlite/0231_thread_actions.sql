-- Tool calls of chat threads, as job_actions has those of jobs.
CREATE TABLE thread_actions (
    thread_id                BLOB    NOT NULL REFERENCES chat_threads (id) ON DELETE CASCADE,
    -- The turn that made the call; ids are unique within it.
    turn                     INTEGER NOT NULL,
    call_id                  TEXT    NOT NULL,
    at                       TEXT    NOT NULL,
    tool                     TEXT    NOT NULL,
    input                    TEXT    NOT NULL,
    success                  BOOLEAN,
    output                   TEXT,
    duration_ms              INTEGER,
    reply                    TEXT,
    request_digest           TEXT    NOT NULL,
    estimated_cost_micro_usd INTEGER NOT NULL DEFAULT 0,
    cost_micro_usd           INTEGER,
    PRIMARY KEY (thread_id, turn, call_id)
);
-- Calls that have begun and have no reply.
CREATE INDEX thread_actions_open ON thread_actions (thread_id) WHERE reply IS NULL;
