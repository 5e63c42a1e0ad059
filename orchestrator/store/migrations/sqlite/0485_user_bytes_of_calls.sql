-- The texts of a run's tool calls are a part of what its user's runs take up. Those that exist are counted by a migration
-- of the data.
CREATE TRIGGER tool_calls_of_runs_inserted AFTER INSERT ON tool_calls WHEN NEW.kind = 'run' AND NEW.user_id IS NOT NULL BEGIN
    INSERT INTO user_bytes (user_id, kind, bytes)
    VALUES (NEW.user_id, 'runs', octet_length(NEW.input) + IFNULL(octet_length(NEW.output), 0)
        + IFNULL(octet_length(NEW.reply), 0))
    ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER tool_calls_of_runs_updated AFTER UPDATE OF input, output, reply ON tool_calls WHEN NEW.kind = 'run' BEGIN
    UPDATE user_bytes SET bytes = bytes + octet_length(NEW.input) - octet_length(OLD.input)
        + IFNULL(octet_length(NEW.output), 0) - IFNULL(octet_length(OLD.output), 0)
        + IFNULL(octet_length(NEW.reply), 0) - IFNULL(octet_length(OLD.reply), 0)
    WHERE user_id = NEW.user_id AND kind = 'runs';
END;
CREATE TRIGGER tool_calls_of_runs_deleted AFTER DELETE ON tool_calls WHEN OLD.kind = 'run' BEGIN
    UPDATE user_bytes SET bytes = bytes - octet_length(OLD.input) - IFNULL(octet_length(OLD.output), 0)
        - IFNULL(octet_length(OLD.reply), 0)
    WHERE user_id = OLD.user_id AND kind = 'runs';
END;
