-- Tool calls of chat threads that wait for a person. Exactly what would run is in the thread's parked run; a gate has what is
-- shown, and the digest of the rest.
CREATE TABLE gates (
    id                BLOB    NOT NULL PRIMARY KEY,
    thread_id         BLOB    NOT NULL REFERENCES chat_threads (id) ON DELETE CASCADE,
    user_id           TEXT    NOT NULL,
    kind              TEXT    NOT NULL,
    state             TEXT    NOT NULL,
    tool              TEXT    NOT NULL,
    -- With sensitive parameters redacted, as JSON.
    parameters        TEXT    NOT NULL,
    parameters_digest TEXT    NOT NULL,
    reasoning         TEXT    NOT NULL,
    can_be_remembered BOOLEAN NOT NULL,
    created_at        TEXT    NOT NULL,
    expires_at        TEXT    NOT NULL,
    resolved_at       TEXT,
    resolved_by       TEXT,
    decision          TEXT,
    reason            TEXT,
    scope             TEXT
);
-- One gate at a time for a thread.
CREATE UNIQUE INDEX gates_pending_by_thread ON gates (thread_id) WHERE state = 'pending';
CREATE INDEX gates_by_thread ON gates (thread_id, id);
CREATE INDEX gates_by_user ON gates (user_id, id);
CREATE INDEX gates_by_state ON gates (state, id);
CREATE INDEX gates_to_expire ON gates (expires_at) WHERE state = 'pending';
CREATE INDEX gates_to_trim ON gates (resolved_at) WHERE resolved_at IS NOT NULL;
