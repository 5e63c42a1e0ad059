-- The model's reason for a tool call. It is a part of what chats and runs take up, as the other texts of a call are.
ALTER TABLE tool_calls ADD COLUMN reasoning TEXT;

DROP TRIGGER tool_calls_inserted;
DROP TRIGGER tool_calls_updated;
DROP TRIGGER tool_calls_deleted;
CREATE TRIGGER tool_calls_inserted AFTER INSERT ON tool_calls WHEN NEW.kind = 'thread' BEGIN
    UPDATE chat_threads SET bytes = bytes + octet_length(NEW.input) + IFNULL(octet_length(NEW.reasoning), 0)
        + IFNULL(octet_length(NEW.output), 0) + IFNULL(octet_length(NEW.reply), 0)
    WHERE id = NEW.work_id;
END;
CREATE TRIGGER tool_calls_updated AFTER UPDATE OF input, reasoning, output, reply ON tool_calls WHEN NEW.kind = 'thread' BEGIN
    UPDATE chat_threads SET bytes = bytes + octet_length(NEW.input) - octet_length(OLD.input)
        + IFNULL(octet_length(NEW.reasoning), 0) - IFNULL(octet_length(OLD.reasoning), 0)
        + IFNULL(octet_length(NEW.output), 0) - IFNULL(octet_length(OLD.output), 0)
        + IFNULL(octet_length(NEW.reply), 0) - IFNULL(octet_length(OLD.reply), 0)
    WHERE id = NEW.work_id;
END;
CREATE TRIGGER tool_calls_deleted AFTER DELETE ON tool_calls WHEN OLD.kind = 'thread' BEGIN
    UPDATE chat_threads SET bytes = bytes - octet_length(OLD.input) - IFNULL(octet_length(OLD.reasoning), 0)
        - IFNULL(octet_length(OLD.output), 0) - IFNULL(octet_length(OLD.reply), 0)
    WHERE id = OLD.work_id;
END;

DROP TRIGGER tool_calls_of_runs_inserted;
DROP TRIGGER tool_calls_of_runs_updated;
DROP TRIGGER tool_calls_of_runs_deleted;
CREATE TRIGGER tool_calls_of_runs_inserted AFTER INSERT ON tool_calls WHEN NEW.kind = 'run' AND NEW.user_id IS NOT NULL BEGIN
    INSERT INTO user_bytes (user_id, kind, bytes)
    VALUES (NEW.user_id, 'runs', octet_length(NEW.input) + IFNULL(octet_length(NEW.reasoning), 0)
        + IFNULL(octet_length(NEW.output), 0) + IFNULL(octet_length(NEW.reply), 0))
    ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER tool_calls_of_runs_updated AFTER UPDATE OF input, reasoning, output, reply ON tool_calls WHEN NEW.kind = 'run' BEGIN
    UPDATE user_bytes SET bytes = bytes + octet_length(NEW.input) - octet_length(OLD.input)
        + IFNULL(octet_length(NEW.reasoning), 0) - IFNULL(octet_length(OLD.reasoning), 0)
        + IFNULL(octet_length(NEW.output), 0) - IFNULL(octet_length(OLD.output), 0)
        + IFNULL(octet_length(NEW.reply), 0) - IFNULL(octet_length(OLD.reply), 0)
    WHERE user_id = NEW.user_id AND kind = 'runs';
END;
CREATE TRIGGER tool_calls_of_runs_deleted AFTER DELETE ON tool_calls WHEN OLD.kind = 'run' BEGIN
    UPDATE user_bytes SET bytes = bytes - octet_length(OLD.input) - IFNULL(octet_length(OLD.reasoning), 0)
        - IFNULL(octet_length(OLD.output), 0) - IFNULL(octet_length(OLD.reply), 0)
    WHERE user_id = OLD.user_id AND kind = 'runs';
END;
