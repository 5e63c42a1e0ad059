-- The heartbeats of users whose main session has had something to do: a checklist, or a line.
CREATE TABLE heartbeats (
    user_id         TEXT    NOT NULL PRIMARY KEY,
    -- Increases with each change of what is decided on; a decision about an older one is void.
    rev             INTEGER NOT NULL DEFAULT 1,
    -- When to look at the user next; NULL while there is nothing to do.
    check_at        TEXT,
    -- When the last heartbeat began or, without one, since when there is something to do; NULL while there is nothing.
    since           TEXT,
    -- When a heartbeat was asked for that has not begun.
    requested_at    TEXT,
    -- Failures since the last heartbeat that ended well.
    failures        INTEGER NOT NULL DEFAULT 0,
    -- The operator's interval that check_at was computed with.
    default_seconds INTEGER,
    -- The turn of the heartbeat in progress, and when it began.
    thread_id       BLOB,
    turn            INTEGER,
    started_at      TEXT
);
CREATE INDEX heartbeats_to_check ON heartbeats (check_at) WHERE check_at IS NOT NULL AND turn IS NULL;
CREATE INDEX heartbeats_running ON heartbeats (turn) WHERE turn IS NOT NULL;

-- By triggers, so that no statement forgets to.
CREATE TRIGGER heartbeats_checklist_created AFTER INSERT ON memory_documents WHEN NEW.path = 'HEARTBEAT.md' BEGIN
    INSERT INTO heartbeats (user_id, check_at, since) VALUES (NEW.user_id, NEW.updated_at, NEW.updated_at)
    ON CONFLICT (user_id) DO UPDATE SET rev = rev + 1, check_at = excluded.check_at, since = COALESCE(since, excluded.since);
END;
CREATE TRIGGER heartbeats_checklist_changed AFTER UPDATE OF version ON memory_documents WHEN NEW.path = 'HEARTBEAT.md' BEGIN
    INSERT INTO heartbeats (user_id, check_at, since) VALUES (NEW.user_id, NEW.updated_at, NEW.updated_at)
    ON CONFLICT (user_id) DO UPDATE SET rev = rev + 1, check_at = excluded.check_at, since = COALESCE(since, excluded.since);
END;
CREATE TRIGGER heartbeats_settings_created AFTER INSERT ON user_settings BEGIN
    UPDATE heartbeats SET rev = rev + 1, check_at = NEW.updated_at WHERE user_id = NEW.user_id AND since IS NOT NULL;
END;
CREATE TRIGGER heartbeats_settings_changed AFTER UPDATE ON user_settings BEGIN
    UPDATE heartbeats SET rev = rev + 1, check_at = NEW.updated_at WHERE user_id = NEW.user_id AND since IS NOT NULL;
END;
INSERT INTO heartbeats (user_id, check_at, since)
SELECT user_id, updated_at, updated_at FROM memory_documents WHERE path = 'HEARTBEAT.md';
