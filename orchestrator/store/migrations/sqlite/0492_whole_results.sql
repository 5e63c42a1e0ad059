-- The whole text of a result of which `result_summary` has the beginning; NULL where that is all of it.
ALTER TABLE routine_runs ADD COLUMN result TEXT;

DROP TRIGGER routine_runs_inserted;
DROP TRIGGER routine_runs_updated;
DROP TRIGGER routine_runs_deleted;
CREATE TRIGGER routine_runs_inserted AFTER INSERT ON routine_runs BEGIN
    INSERT INTO user_bytes (user_id, kind, bytes)
    VALUES (NEW.user_id, 'runs', octet_length(NEW.trigger_detail) + IFNULL(octet_length(NEW.message), 0)
            + IFNULL(octet_length(NEW.result_summary), 0) + IFNULL(octet_length(NEW.result), 0)),
        (NEW.user_id, 'payloads', IFNULL(octet_length(NEW.payload), 0))
    ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER routine_runs_updated AFTER UPDATE OF trigger_detail, message, result_summary, result ON routine_runs BEGIN
    UPDATE user_bytes SET bytes = bytes + octet_length(NEW.trigger_detail) - octet_length(OLD.trigger_detail)
        + IFNULL(octet_length(NEW.message), 0) - IFNULL(octet_length(OLD.message), 0)
        + IFNULL(octet_length(NEW.result_summary), 0) - IFNULL(octet_length(OLD.result_summary), 0)
        + IFNULL(octet_length(NEW.result), 0) - IFNULL(octet_length(OLD.result), 0)
    WHERE user_id = NEW.user_id AND kind = 'runs';
END;
CREATE TRIGGER routine_runs_deleted AFTER DELETE ON routine_runs BEGIN
    UPDATE user_bytes SET bytes = bytes - octet_length(OLD.trigger_detail) - IFNULL(octet_length(OLD.message), 0)
        - IFNULL(octet_length(OLD.result_summary), 0) - IFNULL(octet_length(OLD.result), 0)
    WHERE user_id = OLD.user_id AND kind = 'runs';
    UPDATE user_bytes SET bytes = bytes - IFNULL(octet_length(OLD.payload), 0)
    WHERE user_id = OLD.user_id AND kind = 'payloads';
END;
