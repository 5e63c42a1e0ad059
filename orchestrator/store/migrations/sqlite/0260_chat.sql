-- Chat: threads of messages between a user and an agent.
CREATE TABLE chat_threads (
    id         BLOB    NOT NULL PRIMARY KEY,
    user_id    TEXT    NOT NULL,
    -- A name that is accepted in place of the id: `main`, or `routine:` and the id of a routine.
    key        TEXT,
    title      TEXT    NOT NULL DEFAULT '',
    -- idle, processing or awaiting_approval.
    state      TEXT    NOT NULL DEFAULT 'idle',
    -- Number of the last turn. It fences the writes of a turn: an older one changes nothing.
    turn       INTEGER NOT NULL DEFAULT 0,
    -- Position of the last message.
    last_seq   INTEGER NOT NULL DEFAULT 0,
    -- Tools that the user always allows in this thread, as a JSON list.
    remembered TEXT    NOT NULL DEFAULT '[]',
    created_at TEXT    NOT NULL,
    updated_at TEXT    NOT NULL
);
CREATE UNIQUE INDEX chat_threads_by_key ON chat_threads (user_id, key) WHERE key IS NOT NULL;
CREATE INDEX chat_threads_by_user ON chat_threads (user_id, id);
CREATE INDEX chat_threads_busy ON chat_threads (state) WHERE state <> 'idle';

-- The long texts of a thread, beside its row: what the model reads, and a run that waits for a person.
CREATE TABLE chat_transcripts (
    thread_id  BLOB NOT NULL PRIMARY KEY REFERENCES chat_threads (id) ON DELETE CASCADE,
    -- The model's messages up to the end of the last turn, as JSON.
    transcript TEXT,
    -- The run of a turn that waits for an answer, as JSON; NULL when none waits.
    run        TEXT
);

-- What a thread shows: messages, tool calls, errors.
CREATE TABLE chat_messages (
    id        BLOB    NOT NULL PRIMARY KEY,
    thread_id BLOB    NOT NULL REFERENCES chat_threads (id) ON DELETE CASCADE,
    -- Position in the thread; NULL while the message is queued. Queued messages are taken in order of insertion.
    seq       INTEGER,
    -- The turn that took or wrote the message; NULL for one that no turn has taken.
    turn      INTEGER,
    role      TEXT    NOT NULL,
    data      TEXT    NOT NULL,
    -- Whether the model has yet to read it: it is for the model, and chat_transcripts does not contain it.
    due       BOOLEAN NOT NULL,
    at        TEXT    NOT NULL
);
CREATE UNIQUE INDEX chat_messages_by_seq ON chat_messages (thread_id, seq);
CREATE INDEX chat_messages_queued ON chat_messages (thread_id) WHERE seq IS NULL;
CREATE INDEX chat_messages_due ON chat_messages (thread_id, seq) WHERE due;

-- Jobs that were made in a thread. Their end is posted there once.
CREATE TABLE chat_jobs (
    job_id    BLOB NOT NULL PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    thread_id BLOB NOT NULL REFERENCES chat_threads (id) ON DELETE CASCADE,
    posted_at TEXT
);
CREATE INDEX chat_jobs_by_thread ON chat_jobs (thread_id);
