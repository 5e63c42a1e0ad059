-- The bytes that each user's data takes up, by kind: memory, chats, routines, jobs, runs, payloads. Counted by triggers, so that no
-- statement forgets to. The jobs, runs and routines that exist are counted by migrations of the data.
CREATE TABLE user_bytes (
    user_id TEXT    NOT NULL,
    kind    TEXT    NOT NULL,
    bytes   INTEGER NOT NULL,
    PRIMARY KEY (user_id, kind)
) WITHOUT ROWID;
INSERT INTO user_bytes (user_id, kind, bytes) SELECT user_id, 'chats', bytes FROM chat_usage;
INSERT INTO user_bytes (user_id, kind, bytes) SELECT user_id, 'memory', bytes FROM memory_users;

DROP TRIGGER chat_threads_resized;
DROP TRIGGER chat_threads_deleted;
DROP TABLE chat_usage;
CREATE TRIGGER chat_threads_resized AFTER UPDATE OF bytes ON chat_threads WHEN NEW.bytes <> OLD.bytes BEGIN
    INSERT INTO user_bytes (user_id, kind, bytes) VALUES (NEW.user_id, 'chats', NEW.bytes - OLD.bytes)
    ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER chat_threads_deleted AFTER DELETE ON chat_threads BEGIN
    UPDATE user_bytes SET bytes = bytes - OLD.bytes WHERE user_id = OLD.user_id AND kind = 'chats';
END;

ALTER TABLE memory_users DROP COLUMN bytes;
CREATE TRIGGER memory_documents_inserted AFTER INSERT ON memory_documents BEGIN
    UPDATE memory_users SET documents = documents + 1 WHERE user_id = NEW.user_id;
END;
CREATE TRIGGER memory_documents_deleted AFTER DELETE ON memory_documents BEGIN
    UPDATE memory_users SET documents = documents - 1 WHERE user_id = OLD.user_id;
END;
CREATE TRIGGER memory_versions_inserted AFTER INSERT ON memory_versions BEGIN
    INSERT INTO user_bytes (user_id, kind, bytes)
    SELECT user_id, 'memory', NEW.bytes FROM memory_documents WHERE id = NEW.document_id
    ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER memory_versions_deleted AFTER DELETE ON memory_versions BEGIN
    UPDATE user_bytes SET bytes = bytes - OLD.bytes
    WHERE user_id = (SELECT user_id FROM memory_documents WHERE id = OLD.document_id) AND kind = 'memory';
END;

CREATE TRIGGER job_texts_inserted AFTER INSERT ON job_texts BEGIN
    INSERT INTO user_bytes (user_id, kind, bytes)
    SELECT user_id, 'jobs', octet_length(NEW.prompt) + octet_length(NEW.metadata)
        + IFNULL(octet_length(NEW.result_text), 0) + IFNULL(octet_length(NEW.result_partial), 0)
    FROM jobs WHERE id = NEW.job_id
    ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER job_texts_updated AFTER UPDATE OF prompt, metadata, result_text, result_partial ON job_texts BEGIN
    UPDATE user_bytes SET bytes = bytes
        + octet_length(NEW.prompt) - octet_length(OLD.prompt) + octet_length(NEW.metadata) - octet_length(OLD.metadata)
        + IFNULL(octet_length(NEW.result_text), 0) - IFNULL(octet_length(OLD.result_text), 0)
        + IFNULL(octet_length(NEW.result_partial), 0) - IFNULL(octet_length(OLD.result_partial), 0)
    WHERE user_id = (SELECT user_id FROM jobs WHERE id = NEW.job_id) AND kind = 'jobs';
END;
CREATE TRIGGER job_texts_deleted AFTER DELETE ON job_texts BEGIN
    UPDATE user_bytes SET bytes = bytes - octet_length(OLD.prompt) - octet_length(OLD.metadata)
        - IFNULL(octet_length(OLD.result_text), 0) - IFNULL(octet_length(OLD.result_partial), 0)
    WHERE user_id = (SELECT user_id FROM jobs WHERE id = OLD.job_id) AND kind = 'jobs';
END;

CREATE TRIGGER routines_inserted AFTER INSERT ON routines BEGIN
    INSERT INTO user_bytes (user_id, kind, bytes)
    VALUES (NEW.user_id, 'routines', IFNULL(octet_length(NEW.description), 0) + octet_length(NEW.trigger)
        + octet_length(NEW.action) + octet_length(NEW.notify) + IFNULL(octet_length(NEW.state), 0))
    ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER routines_updated AFTER UPDATE OF description, trigger, action, notify, state ON routines BEGIN
    UPDATE user_bytes SET bytes = bytes
        + IFNULL(octet_length(NEW.description), 0) - IFNULL(octet_length(OLD.description), 0)
        + octet_length(NEW.trigger) - octet_length(OLD.trigger) + octet_length(NEW.action) - octet_length(OLD.action)
        + octet_length(NEW.notify) - octet_length(OLD.notify)
        + IFNULL(octet_length(NEW.state), 0) - IFNULL(octet_length(OLD.state), 0)
    WHERE user_id = NEW.user_id AND kind = 'routines';
END;
CREATE TRIGGER routines_deleted AFTER DELETE ON routines BEGIN
    UPDATE user_bytes SET bytes = bytes - IFNULL(octet_length(OLD.description), 0) - octet_length(OLD.trigger)
        - octet_length(OLD.action) - octet_length(OLD.notify) - IFNULL(octet_length(OLD.state), 0)
    WHERE user_id = OLD.user_id AND kind = 'routines';
END;

CREATE TRIGGER routine_runs_inserted AFTER INSERT ON routine_runs BEGIN
    INSERT INTO user_bytes (user_id, kind, bytes)
    VALUES (NEW.user_id, 'runs', octet_length(NEW.trigger_detail) + IFNULL(octet_length(NEW.message), 0)
            + IFNULL(octet_length(NEW.result_summary), 0)),
        (NEW.user_id, 'payloads', IFNULL(octet_length(NEW.payload), 0))
    ON CONFLICT (user_id, kind) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER routine_runs_updated AFTER UPDATE OF trigger_detail, message, result_summary ON routine_runs BEGIN
    UPDATE user_bytes SET bytes = bytes + octet_length(NEW.trigger_detail) - octet_length(OLD.trigger_detail)
        + IFNULL(octet_length(NEW.message), 0) - IFNULL(octet_length(OLD.message), 0)
        + IFNULL(octet_length(NEW.result_summary), 0) - IFNULL(octet_length(OLD.result_summary), 0)
    WHERE user_id = NEW.user_id AND kind = 'runs';
END;
CREATE TRIGGER routine_runs_payload_updated AFTER UPDATE OF payload ON routine_runs BEGIN
    UPDATE user_bytes SET bytes = bytes
        + IFNULL(octet_length(NEW.payload), 0) - IFNULL(octet_length(OLD.payload), 0)
    WHERE user_id = NEW.user_id AND kind = 'payloads';
END;
CREATE TRIGGER routine_runs_deleted AFTER DELETE ON routine_runs BEGIN
    UPDATE user_bytes SET bytes = bytes - octet_length(OLD.trigger_detail) - IFNULL(octet_length(OLD.message), 0)
        - IFNULL(octet_length(OLD.result_summary), 0)
    WHERE user_id = OLD.user_id AND kind = 'runs';
    UPDATE user_bytes SET bytes = bytes - IFNULL(octet_length(OLD.payload), 0)
    WHERE user_id = OLD.user_id AND kind = 'payloads';
END;
