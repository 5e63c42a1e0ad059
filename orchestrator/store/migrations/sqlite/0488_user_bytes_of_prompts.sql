-- The prompts of a job are a part of what its user's jobs take up. Those that exist are counted by a migration of the data.
-- Their texts never change.
CREATE TRIGGER prompts_inserted AFTER INSERT ON prompts BEGIN
    INSERT INTO user_bytes (user_id, kind, bytes)
    SELECT user_id, 'jobs', octet_length(NEW.content) FROM jobs WHERE id = NEW.job_id
    ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER prompts_deleted AFTER DELETE ON prompts BEGIN
    UPDATE user_bytes SET bytes = bytes - octet_length(OLD.content)
    WHERE user_id = (SELECT user_id FROM jobs WHERE id = OLD.job_id) AND kind = 'jobs';
END;
