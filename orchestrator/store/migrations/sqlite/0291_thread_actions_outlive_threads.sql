-- Tool calls of chats outlive their thread, without its texts, as the model calls do.
CREATE TABLE thread_actions_new (
    thread_id                BLOB    NOT NULL,
    -- The turn that made the call; ids are unique within it.
    turn                     INTEGER NOT NULL,
    call_id                  TEXT    NOT NULL,
    user_id                  TEXT    NOT NULL,
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
INSERT INTO thread_actions_new (thread_id, turn, call_id, user_id, at, tool, input, success, output, duration_ms, reply,
    request_digest, estimated_cost_micro_usd, cost_micro_usd)
SELECT a.thread_id, a.turn, a.call_id, t.user_id, a.at, a.tool, a.input, a.success, a.output, a.duration_ms, a.reply,
    a.request_digest, a.estimated_cost_micro_usd, a.cost_micro_usd
FROM thread_actions a JOIN chat_threads t ON t.id = a.thread_id;
DROP TABLE thread_actions;
ALTER TABLE thread_actions_new RENAME TO thread_actions;
-- Calls that have begun and have no reply.
CREATE INDEX thread_actions_open ON thread_actions (thread_id) WHERE reply IS NULL;
CREATE INDEX thread_actions_by_time ON thread_actions (at);
