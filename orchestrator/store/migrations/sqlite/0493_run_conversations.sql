-- What the loop of a lightweight run recorded, a row for each start of an attempt: a JSON array.
CREATE TABLE run_conversations (
    id INTEGER PRIMARY KEY,
    run_id BLOB NOT NULL,
    user_id TEXT NOT NULL,
    messages TEXT NOT NULL
);
CREATE INDEX run_conversations_by_run ON run_conversations (run_id, id);

CREATE TRIGGER run_conversations_inserted AFTER INSERT ON run_conversations BEGIN
    INSERT INTO user_bytes (user_id, kind, bytes) VALUES (NEW.user_id, 'runs', octet_length(NEW.messages))
    ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER run_conversations_deleted AFTER DELETE ON run_conversations BEGIN
    UPDATE user_bytes SET bytes = bytes - octet_length(OLD.messages) WHERE user_id = OLD.user_id AND kind = 'runs';
END;
CREATE TRIGGER routine_runs_conversations_deleted AFTER DELETE ON routine_runs BEGIN
    DELETE FROM run_conversations WHERE run_id = OLD.id;
END;
