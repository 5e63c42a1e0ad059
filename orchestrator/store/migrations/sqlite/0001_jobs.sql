-- Jobs, their events, prompts, calls; what requests and tokens leave behind.
-- Ids are UUID bytes, times RFC 3339 text in UTC, money whole micro-dollars, JSON text.

CREATE TABLE jobs (
    id                  BLOB    NOT NULL PRIMARY KEY,
    rev                 INTEGER NOT NULL,
    user_id             TEXT    NOT NULL,
    title               TEXT    NOT NULL,
    prompt              TEXT    NOT NULL,
    mode                TEXT    NOT NULL,
    placement           TEXT    NOT NULL,
    state               TEXT    NOT NULL,
    reason              TEXT,
    message             TEXT,
    priority            INTEGER NOT NULL,
    labels              TEXT    NOT NULL,
    metadata            TEXT    NOT NULL,
    limits              TEXT    NOT NULL,
    tools               TEXT,
    image               TEXT    NOT NULL,
    model               TEXT    NOT NULL,
    plan                BOOLEAN NOT NULL,
    source              TEXT    NOT NULL,
    restarted_from      BLOB,
    attempt             INTEGER NOT NULL,
    repair_attempts     INTEGER NOT NULL,
    created_at          TEXT    NOT NULL,
    started_at          TEXT,
    last_activity_at    TEXT,
    cancel_requested_at TEXT,
    cancel_message      TEXT,
    finished_at         TEXT,
    not_before          TEXT,
    result_text         TEXT,
    result_partial      TEXT,
    token_hash          TEXT,
    lease_expires_at    TEXT,
    worker_seen_at      TEXT,
    container           TEXT,
    prompts_closed      BOOLEAN NOT NULL,
    input_tokens        INTEGER NOT NULL DEFAULT 0,
    output_tokens       INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens   INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens  INTEGER NOT NULL DEFAULT 0,
    cost_micro_usd      INTEGER NOT NULL DEFAULT 0,
    llm_calls           INTEGER NOT NULL DEFAULT 0,
    tool_calls          INTEGER NOT NULL DEFAULT 0,
    iterations          INTEGER NOT NULL DEFAULT 0,
    last_seq            INTEGER NOT NULL DEFAULT 0,
    last_client_seq     INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX jobs_by_user ON jobs (user_id, id);
CREATE INDEX jobs_unfinished ON jobs (state) WHERE state IN ('pending', 'in_progress', 'stuck');

-- The cursor increases over the whole instance; seq from 1 without gaps within the job.
CREATE TABLE events (
    cursor  INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id  BLOB    NOT NULL REFERENCES jobs (id),
    seq     INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at      TEXT    NOT NULL,
    kind    TEXT    NOT NULL,
    data    TEXT    NOT NULL,
    UNIQUE (job_id, seq)
);

CREATE TABLE prompts (
    id              BLOB    NOT NULL PRIMARY KEY,
    job_id          BLOB    NOT NULL REFERENCES jobs (id),
    content         TEXT    NOT NULL,
    mode            TEXT    NOT NULL,
    done            BOOLEAN NOT NULL,
    created_at      TEXT    NOT NULL,
    acknowledged_at TEXT
);
CREATE INDEX prompts_by_job ON prompts (job_id, id);

CREATE TABLE llm_calls (
    job_id             BLOB    NOT NULL REFERENCES jobs (id),
    attempt            INTEGER NOT NULL,
    call_id            TEXT    NOT NULL,
    at                 TEXT    NOT NULL,
    provider           TEXT    NOT NULL,
    model              TEXT    NOT NULL,
    input_tokens       INTEGER NOT NULL,
    output_tokens      INTEGER NOT NULL,
    cache_read_tokens  INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    cost_micro_usd     INTEGER,
    duration_ms        INTEGER NOT NULL,
    finish_reason      TEXT,
    error              TEXT,
    answer             TEXT,
    tries              INTEGER NOT NULL,
    PRIMARY KEY (job_id, attempt, call_id)
);
CREATE INDEX llm_calls_by_time ON llm_calls (at);

CREATE TABLE job_actions (
    job_id      BLOB    NOT NULL REFERENCES jobs (id),
    attempt     INTEGER NOT NULL,
    call_id     TEXT    NOT NULL,
    at          TEXT    NOT NULL,
    tool        TEXT    NOT NULL,
    input       TEXT    NOT NULL,
    success     BOOLEAN,
    output      TEXT,
    duration_ms INTEGER,
    reply       TEXT,
    PRIMARY KEY (job_id, attempt, call_id)
);

CREATE TABLE idempotency_keys (
    user_id    TEXT NOT NULL,
    key        TEXT NOT NULL,
    digest     TEXT NOT NULL,
    created_at TEXT NOT NULL,
    status     INTEGER,
    body       TEXT,
    PRIMARY KEY (user_id, key)
);

CREATE TABLE tokens (
    jti        TEXT NOT NULL PRIMARY KEY,
    user_id    TEXT NOT NULL,
    role       TEXT NOT NULL,
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    revoked_at TEXT
);

CREATE TABLE notifications (
    id         BLOB NOT NULL PRIMARY KEY,
    user_id    TEXT NOT NULL,
    job_id     BLOB REFERENCES jobs (id),
    channel    TEXT,
    content    TEXT NOT NULL,
    created_at TEXT NOT NULL
);

CREATE TABLE instance (
    id BLOB NOT NULL PRIMARY KEY
);
