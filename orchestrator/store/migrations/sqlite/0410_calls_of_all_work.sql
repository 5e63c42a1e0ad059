-- One table of model calls and one of tool calls: of jobs, chat threads and runs of routines. The tables of jobs, which are
-- the large ones, become those of all; data migrations move the rows of the others.
ALTER TABLE llm_calls RENAME TO model_calls;
ALTER TABLE model_calls RENAME COLUMN job_id TO work_id;
-- job, thread or run.
ALTER TABLE model_calls ADD COLUMN kind TEXT NOT NULL DEFAULT 'job';
-- Of threads and runs, which may be deleted before their calls; the row of a job has its user.
ALTER TABLE model_calls ADD COLUMN user_id TEXT;

ALTER TABLE job_actions RENAME TO tool_calls;
ALTER TABLE tool_calls RENAME COLUMN job_id TO work_id;
ALTER TABLE tool_calls ADD COLUMN kind TEXT NOT NULL DEFAULT 'job';
ALTER TABLE tool_calls ADD COLUMN user_id TEXT;

-- Only calls of jobs have a row in jobs. A foreign key is removed from the schema without a copy of the table, as
-- https://sqlite.org/lang_altertable.html (section 7) describes; the statements below change the schema's version.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql, ' REFERENCES jobs (id)', '')
    WHERE type = 'table' AND name IN ('model_calls', 'tool_calls');
PRAGMA writable_schema = RESET;

-- Calls of jobs are found by their job.
DROP INDEX llm_calls_by_time;
CREATE INDEX model_calls_by_time ON model_calls (at) WHERE kind <> 'job';
CREATE INDEX model_calls_by_user ON model_calls (user_id, at) WHERE kind <> 'job';
CREATE INDEX model_calls_answered ON model_calls (work_id) WHERE kind <> 'job' AND answer IS NOT NULL;
CREATE INDEX tool_calls_by_time ON tool_calls (at) WHERE kind <> 'job';

-- The bytes of a thread include its tool calls. The triggers of the old table stay until its rows have moved.
CREATE TRIGGER tool_calls_inserted AFTER INSERT ON tool_calls WHEN NEW.kind = 'thread' BEGIN
    UPDATE chat_threads SET bytes = bytes + LENGTH(CAST(NEW.input AS BLOB))
        + IFNULL(LENGTH(CAST(NEW.output AS BLOB)), 0) + IFNULL(LENGTH(CAST(NEW.reply AS BLOB)), 0)
    WHERE id = NEW.work_id;
END;
CREATE TRIGGER tool_calls_updated AFTER UPDATE OF input, output, reply ON tool_calls WHEN NEW.kind = 'thread' BEGIN
    UPDATE chat_threads SET bytes = bytes + LENGTH(CAST(NEW.input AS BLOB)) - LENGTH(CAST(OLD.input AS BLOB))
        + IFNULL(LENGTH(CAST(NEW.output AS BLOB)), 0) - IFNULL(LENGTH(CAST(OLD.output AS BLOB)), 0)
        + IFNULL(LENGTH(CAST(NEW.reply AS BLOB)), 0) - IFNULL(LENGTH(CAST(OLD.reply AS BLOB)), 0)
    WHERE id = NEW.work_id;
END;
CREATE TRIGGER tool_calls_deleted AFTER DELETE ON tool_calls WHEN OLD.kind = 'thread' BEGIN
    UPDATE chat_threads SET bytes = bytes - LENGTH(CAST(OLD.input AS BLOB))
        - IFNULL(LENGTH(CAST(OLD.output AS BLOB)), 0) - IFNULL(LENGTH(CAST(OLD.reply AS BLOB)), 0)
    WHERE id = OLD.work_id;
END;
