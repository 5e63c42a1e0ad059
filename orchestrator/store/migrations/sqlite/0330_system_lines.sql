-- Lines for the main sessions of users: the next turn of a user's thread `main`, or the next heartbeat, reads them.
CREATE TABLE system_lines (
    id         INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    user_id    TEXT    NOT NULL,
    text       TEXT    NOT NULL,
    -- 'owner' or 'external'.
    origin     TEXT    NOT NULL,
    -- Whether it asked for a heartbeat at once: 'now' or 'next_heartbeat'.
    wake       TEXT    NOT NULL,
    -- Firings by routines that led to it.
    depth      INTEGER NOT NULL DEFAULT 0,
    created_at TEXT    NOT NULL,
    -- The turn that reads it; NULL while it waits. It is deleted when the turn has ended well.
    thread_id  BLOB REFERENCES chat_threads (id) ON DELETE SET NULL,
    turn       INTEGER,
    -- The thread that shows it; NULL for none.
    shown_in   BLOB
);
CREATE INDEX system_lines_waiting ON system_lines (user_id, id) WHERE thread_id IS NULL;
CREATE INDEX system_lines_taken ON system_lines (thread_id, turn) WHERE thread_id IS NOT NULL;
