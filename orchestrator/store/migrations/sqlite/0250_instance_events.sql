-- Events of gates, chat threads and notifications. Their cursors come from the sequence of `events`, so that one cursor orders
-- all events of the instance.
CREATE TABLE instance_events (
    cursor     INTEGER NOT NULL PRIMARY KEY,
    user_id    TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    job_id     BLOB,
    run_id     BLOB,
    routine_id BLOB,
    thread_id  BLOB,
    gate_id    BLOB,
    at         TEXT    NOT NULL,
    data       TEXT    NOT NULL
);
-- Each entry of an index ends with the cursor.
CREATE INDEX instance_events_by_user ON instance_events (user_id);
CREATE INDEX instance_events_by_thread ON instance_events (thread_id) WHERE thread_id IS NOT NULL;
CREATE INDEX instance_events_by_time ON instance_events (at);

-- SQLite adds the row with the first event; an event of the instance may come before it.
INSERT INTO sqlite_sequence (name, seq)
    SELECT 'events', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'events');

-- The largest cursor that retention has deleted: a reader that resumes below it may have missed events.
CREATE TABLE trimmed_events (
    id     INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    cursor INTEGER NOT NULL
);
INSERT INTO trimmed_events (id, cursor)
    SELECT 1, COALESCE(MAX(events.cursor), 0) FROM events JOIN jobs ON jobs.id = events.job_id
    WHERE jobs.trimmed_at IS NOT NULL;
