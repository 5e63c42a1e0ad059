-- Model calls of chat threads. They outlive their thread, without its texts, because usage is summed up from them.
CREATE TABLE thread_calls (
    thread_id          BLOB    NOT NULL,
    turn               INTEGER NOT NULL,
    call_id            TEXT    NOT NULL,
    user_id            TEXT    NOT NULL,
    at                 TEXT    NOT NULL,
    provider           TEXT    NOT NULL,
    model              TEXT    NOT NULL,
    input_tokens       INTEGER NOT NULL DEFAULT 0,
    output_tokens      INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens  INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    -- NULL when a try had no price.
    cost_micro_usd     INTEGER DEFAULT 0,
    duration_ms        INTEGER NOT NULL DEFAULT 0,
    request_digest     TEXT    NOT NULL,
    tries              INTEGER NOT NULL DEFAULT 1,
    is_open            BOOLEAN NOT NULL,
    estimated_tokens   INTEGER NOT NULL,
    estimated_micro_usd INTEGER,
    reserved_tokens    INTEGER NOT NULL,
    reserved_micro_usd INTEGER NOT NULL,
    reserved_day       TEXT,
    finish_reason      TEXT,
    error              TEXT,
    -- The whole answer, until the turn has ended.
    answer             TEXT,
    PRIMARY KEY (thread_id, turn, call_id)
);
CREATE INDEX thread_calls_by_time ON thread_calls (at);
CREATE INDEX thread_calls_by_user ON thread_calls (user_id, at);
CREATE INDEX thread_calls_open ON thread_calls (thread_id) WHERE is_open;
CREATE INDEX thread_calls_answered ON thread_calls (thread_id) WHERE answer IS NOT NULL;
