-- What model calls and tool calls used, by day, user and model, for each routine and for each value of a label. Counted by
-- triggers, as daily_usage is; a data migration counts the calls from before.
CREATE TABLE daily_group_usage (
    -- routine, or label: and the key.
    dimension          TEXT    NOT NULL,
    day                TEXT    NOT NULL,
    user_id            TEXT    NOT NULL,
    -- The routine's id in hexadecimal digits, or the label's value.
    value              TEXT    NOT NULL,
    -- Tool calls have the model ''.
    model              TEXT    NOT NULL,
    input_tokens       INTEGER NOT NULL DEFAULT 0,
    output_tokens      INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens  INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    cost_micro_usd     INTEGER NOT NULL DEFAULT 0,
    unpriced_calls     INTEGER NOT NULL DEFAULT 0,
    tries              INTEGER NOT NULL DEFAULT 0,
    tool_calls         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (dimension, day, user_id, value, model)
) WITHOUT ROWID;
CREATE INDEX daily_group_usage_by_user ON daily_group_usage (user_id, dimension, day);
CREATE INDEX daily_group_usage_by_day ON daily_group_usage (day);

-- The groups that the calls of a job or a run belong to. The labels of one job that make no sense belong to none.
CREATE VIEW usage_groups (work_id, user_id, dimension, value) AS
SELECT id, user_id, 'routine', lower(hex(routine_id)) FROM jobs WHERE routine_id IS NOT NULL
UNION ALL
SELECT jobs.id, jobs.user_id, 'label:' || label.key, label.value
FROM jobs CROSS JOIN json_each(CASE WHEN json_valid(jobs.labels) THEN jobs.labels ELSE '{}' END) AS label
WHERE label.type = 'text'
UNION ALL
SELECT id, user_id, 'routine', lower(hex(routine_id)) FROM routine_runs;

-- What is inserted here is counted in the groups of its job or run, or taken back if its sign is -1. It has no rows.
CREATE VIEW counted_calls (sign, work_id, at, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
    cost_micro_usd, tries, tool_calls) AS
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL WHERE FALSE;
CREATE TRIGGER counted_calls_grouped INSTEAD OF INSERT ON counted_calls BEGIN
    INSERT INTO daily_group_usage (dimension, day, user_id, value, model, input_tokens, output_tokens, cache_read_tokens,
        cache_write_tokens, cost_micro_usd, unpriced_calls, tries, tool_calls)
    SELECT dimension, substr(NEW.at, 1, 10), user_id, value, NEW.model, NEW.sign * NEW.input_tokens,
        NEW.sign * NEW.output_tokens, NEW.sign * NEW.cache_read_tokens, NEW.sign * NEW.cache_write_tokens,
        NEW.sign * IFNULL(NEW.cost_micro_usd, 0), NEW.sign * (NEW.cost_micro_usd IS NULL), NEW.sign * NEW.tries,
        NEW.sign * NEW.tool_calls
    FROM usage_groups WHERE work_id = NEW.work_id
    ON CONFLICT (dimension, day, user_id, value, model) DO UPDATE SET input_tokens = input_tokens + excluded.input_tokens,
        output_tokens = output_tokens + excluded.output_tokens,
        cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,
        cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens,
        cost_micro_usd = cost_micro_usd + excluded.cost_micro_usd,
        unpriced_calls = unpriced_calls + excluded.unpriced_calls, tries = tries + excluded.tries,
        tool_calls = tool_calls + excluded.tool_calls;
END;

CREATE TRIGGER model_calls_grouped AFTER INSERT ON model_calls WHEN NEW.kind <> 'thread' BEGIN
    INSERT INTO counted_calls VALUES (1, NEW.work_id, NEW.at, NEW.model, NEW.input_tokens, NEW.output_tokens,
        NEW.cache_read_tokens, NEW.cache_write_tokens, NEW.cost_micro_usd, NEW.tries, 0);
END;
CREATE TRIGGER model_calls_regrouped AFTER UPDATE OF at, model, input_tokens, output_tokens, cache_read_tokens,
    cache_write_tokens, cost_micro_usd, tries ON model_calls WHEN NEW.kind <> 'thread' BEGIN
    INSERT INTO counted_calls VALUES
        (-1, OLD.work_id, OLD.at, OLD.model, OLD.input_tokens, OLD.output_tokens, OLD.cache_read_tokens,
            OLD.cache_write_tokens, OLD.cost_micro_usd, OLD.tries, 0),
        (1, NEW.work_id, NEW.at, NEW.model, NEW.input_tokens, NEW.output_tokens, NEW.cache_read_tokens,
            NEW.cache_write_tokens, NEW.cost_micro_usd, NEW.tries, 0);
END;
-- What is deleted stays counted, except a call that never began.
CREATE TRIGGER model_calls_ungrouped AFTER DELETE ON model_calls WHEN OLD.is_open AND OLD.kind <> 'thread' BEGIN
    INSERT INTO counted_calls VALUES (-1, OLD.work_id, OLD.at, OLD.model, OLD.input_tokens, OLD.output_tokens,
        OLD.cache_read_tokens, OLD.cache_write_tokens, OLD.cost_micro_usd, OLD.tries, 0);
END;

CREATE TRIGGER tool_calls_grouped AFTER INSERT ON tool_calls WHEN NEW.kind <> 'thread' BEGIN
    INSERT INTO counted_calls VALUES (1, NEW.work_id, NEW.at, '', 0, 0, 0, 0, 0, 0, 1);
END;
CREATE TRIGGER tool_calls_regrouped AFTER UPDATE OF at ON tool_calls
WHEN NEW.kind <> 'thread' AND substr(NEW.at, 1, 10) <> substr(OLD.at, 1, 10) BEGIN
    INSERT INTO counted_calls VALUES (-1, OLD.work_id, OLD.at, '', 0, 0, 0, 0, 0, 0, 1), (1, NEW.work_id, NEW.at, '', 0, 0, 0, 0, 0, 0, 1);
END;

-- The dearest jobs of each day, so that a list of them reads a bounded number of each.
CREATE INDEX jobs_by_day_cost ON jobs (substr(created_at, 1, 10), cost_micro_usd, id) WHERE cost_micro_usd > 0;
CREATE INDEX jobs_by_user_day_cost ON jobs (user_id, substr(created_at, 1, 10), cost_micro_usd, id)
    WHERE cost_micro_usd > 0;
