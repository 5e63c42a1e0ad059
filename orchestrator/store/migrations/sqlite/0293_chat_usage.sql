-- The bytes that the chats of each user take up: entries, what models read, runs that wait, and tool calls. Counted by triggers,
-- so that no statement forgets to.
ALTER TABLE chat_threads ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
CREATE TABLE chat_usage (
    user_id TEXT    NOT NULL PRIMARY KEY,
    bytes   INTEGER NOT NULL
);
UPDATE chat_threads SET bytes =
    IFNULL((SELECT SUM(LENGTH(CAST(data AS BLOB))) FROM chat_messages WHERE thread_id = chat_threads.id), 0)
    + IFNULL((SELECT IFNULL(LENGTH(CAST(transcript AS BLOB)), 0) + IFNULL(LENGTH(CAST(run AS BLOB)), 0)
        FROM chat_transcripts WHERE thread_id = chat_threads.id), 0)
    + IFNULL((SELECT SUM(LENGTH(CAST(input AS BLOB)) + IFNULL(LENGTH(CAST(output AS BLOB)), 0)
        + IFNULL(LENGTH(CAST(reply AS BLOB)), 0)) FROM thread_actions WHERE thread_id = chat_threads.id), 0);
INSERT INTO chat_usage (user_id, bytes) SELECT user_id, SUM(bytes) FROM chat_threads GROUP BY user_id;

CREATE TRIGGER chat_threads_resized AFTER UPDATE OF bytes ON chat_threads BEGIN
    INSERT INTO chat_usage (user_id, bytes) VALUES (NEW.user_id, NEW.bytes - OLD.bytes)
    ON CONFLICT (user_id) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER chat_threads_deleted AFTER DELETE ON chat_threads BEGIN
    UPDATE chat_usage SET bytes = bytes - OLD.bytes WHERE user_id = OLD.user_id;
END;
CREATE TRIGGER chat_messages_inserted AFTER INSERT ON chat_messages BEGIN
    UPDATE chat_threads SET bytes = bytes + LENGTH(CAST(NEW.data AS BLOB)) WHERE id = NEW.thread_id;
END;
CREATE TRIGGER chat_messages_deleted AFTER DELETE ON chat_messages BEGIN
    UPDATE chat_threads SET bytes = bytes - LENGTH(CAST(OLD.data AS BLOB)) WHERE id = OLD.thread_id;
END;
CREATE TRIGGER chat_transcripts_inserted AFTER INSERT ON chat_transcripts BEGIN
    UPDATE chat_threads SET bytes = bytes
        + IFNULL(LENGTH(CAST(NEW.transcript AS BLOB)), 0) + IFNULL(LENGTH(CAST(NEW.run AS BLOB)), 0)
    WHERE id = NEW.thread_id;
END;
CREATE TRIGGER chat_transcripts_updated AFTER UPDATE OF transcript, run ON chat_transcripts BEGIN
    UPDATE chat_threads SET bytes = bytes
        + IFNULL(LENGTH(CAST(NEW.transcript AS BLOB)), 0) + IFNULL(LENGTH(CAST(NEW.run AS BLOB)), 0)
        - IFNULL(LENGTH(CAST(OLD.transcript AS BLOB)), 0) - IFNULL(LENGTH(CAST(OLD.run AS BLOB)), 0)
    WHERE id = NEW.thread_id;
END;
CREATE TRIGGER chat_transcripts_deleted AFTER DELETE ON chat_transcripts BEGIN
    UPDATE chat_threads SET bytes = bytes
        - IFNULL(LENGTH(CAST(OLD.transcript AS BLOB)), 0) - IFNULL(LENGTH(CAST(OLD.run AS BLOB)), 0)
    WHERE id = OLD.thread_id;
END;
CREATE TRIGGER thread_actions_inserted AFTER INSERT ON thread_actions BEGIN
    UPDATE chat_threads SET bytes = bytes + LENGTH(CAST(NEW.input AS BLOB))
        + IFNULL(LENGTH(CAST(NEW.output AS BLOB)), 0) + IFNULL(LENGTH(CAST(NEW.reply AS BLOB)), 0)
    WHERE id = NEW.thread_id;
END;
CREATE TRIGGER thread_actions_updated AFTER UPDATE OF input, output, reply ON thread_actions BEGIN
    UPDATE chat_threads SET bytes = bytes + LENGTH(CAST(NEW.input AS BLOB)) - LENGTH(CAST(OLD.input AS BLOB))
        + IFNULL(LENGTH(CAST(NEW.output AS BLOB)), 0) - IFNULL(LENGTH(CAST(OLD.output AS BLOB)), 0)
        + IFNULL(LENGTH(CAST(NEW.reply AS BLOB)), 0) - IFNULL(LENGTH(CAST(OLD.reply AS BLOB)), 0)
    WHERE id = NEW.thread_id;
END;
CREATE TRIGGER thread_actions_deleted AFTER DELETE ON thread_actions BEGIN
    UPDATE chat_threads SET bytes = bytes - LENGTH(CAST(OLD.input AS BLOB))
        - IFNULL(LENGTH(CAST(OLD.output AS BLOB)), 0) - IFNULL(LENGTH(CAST(OLD.reply AS BLOB)), 0)
    WHERE id = OLD.thread_id;
END;
-- For the sweep of old entries.
CREATE INDEX chat_messages_by_time ON chat_messages (at);
