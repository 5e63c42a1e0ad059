-- What model calls and tool calls used, by day, user and model. Counted by triggers, so that no statement forgets to and
-- no list adds up calls. What deleted jobs used is a part of it.
CREATE TABLE daily_usage (
    day                TEXT    NOT NULL,
    user_id            TEXT    NOT NULL,
    -- Tool calls have the model ''.
    model              TEXT    NOT NULL,
    input_tokens       INTEGER NOT NULL DEFAULT 0,
    output_tokens      INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens  INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    cost_micro_usd     INTEGER NOT NULL DEFAULT 0,
    -- Calls without a price: the cost is unknown as soon as there is one.
    unpriced_calls     INTEGER NOT NULL DEFAULT 0,
    tries              INTEGER NOT NULL DEFAULT 0,
    tool_calls         INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (day, user_id, model)
) WITHOUT ROWID;
CREATE INDEX daily_usage_by_user ON daily_usage (user_id, day);

INSERT INTO daily_usage (day, user_id, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
    cost_micro_usd, unpriced_calls, tries, tool_calls)
SELECT day, user_id, model, SUM(input_tokens), SUM(output_tokens), SUM(cache_read_tokens), SUM(cache_write_tokens),
    SUM(cost_micro_usd), SUM(unpriced_calls), SUM(tries), SUM(tool_calls)
FROM (
    SELECT day, user_id, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
        IFNULL(cost_micro_usd, 0) AS cost_micro_usd, cost_micro_usd IS NULL AS unpriced_calls, tries, tool_calls
    FROM deleted_usage
    UNION ALL
    SELECT substr(c.at, 1, 10), j.user_id, c.model, c.input_tokens, c.output_tokens, c.cache_read_tokens,
        c.cache_write_tokens, IFNULL(c.cost_micro_usd, 0), c.cost_micro_usd IS NULL, c.tries, 0
    FROM model_calls AS c INDEXED BY llm_calls_usage CROSS JOIN jobs AS j ON j.id = c.work_id
    UNION ALL
    SELECT substr(at, 1, 10), user_id, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
        IFNULL(cost_micro_usd, 0), cost_micro_usd IS NULL, tries, 0
    FROM model_calls WHERE kind <> 'job' AND user_id IS NOT NULL
    UNION ALL
    SELECT substr(c.at, 1, 10), j.user_id, '', 0, 0, 0, 0, 0, 0, 0, 1
    FROM tool_calls AS c CROSS JOIN jobs AS j ON j.id = c.work_id
    UNION ALL
    SELECT substr(at, 1, 10), user_id, '', 0, 0, 0, 0, 0, 0, 0, 1
    FROM tool_calls WHERE kind <> 'job' AND user_id IS NOT NULL
)
GROUP BY day, user_id, model;
DROP TABLE deleted_usage;

-- No other statement reads these.
DROP INDEX llm_calls_usage;
DROP INDEX model_calls_by_user;
DROP INDEX jobs_ended_by_user;

-- A call of a job has the user of its job. What is deleted stays counted, except a call that never began.
CREATE TRIGGER model_calls_counted AFTER INSERT ON model_calls BEGIN
    INSERT INTO daily_usage (day, user_id, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
        cost_micro_usd, unpriced_calls, tries)
    SELECT substr(NEW.at, 1, 10), user_id, NEW.model, NEW.input_tokens, NEW.output_tokens, NEW.cache_read_tokens,
        NEW.cache_write_tokens, IFNULL(NEW.cost_micro_usd, 0), NEW.cost_micro_usd IS NULL, NEW.tries
    FROM (SELECT IFNULL(NEW.user_id, (SELECT user_id FROM jobs WHERE id = NEW.work_id)) AS user_id)
    WHERE user_id IS NOT NULL
    ON CONFLICT (day, user_id, model) DO UPDATE SET input_tokens = input_tokens + excluded.input_tokens,
        output_tokens = output_tokens + excluded.output_tokens,
        cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,
        cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens,
        cost_micro_usd = cost_micro_usd + excluded.cost_micro_usd,
        unpriced_calls = unpriced_calls + excluded.unpriced_calls, tries = tries + excluded.tries;
END;
CREATE TRIGGER model_calls_recounted AFTER UPDATE OF at, model, input_tokens, output_tokens, cache_read_tokens,
    cache_write_tokens, cost_micro_usd, tries ON model_calls BEGIN
    INSERT INTO daily_usage (day, user_id, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
        cost_micro_usd, unpriced_calls, tries)
    SELECT c.day, u.user_id, c.model, c.input, c.output, c.cache_read, c.cache_write, c.cost, c.unpriced, c.tries
    FROM (SELECT IFNULL(NEW.user_id, (SELECT user_id FROM jobs WHERE id = NEW.work_id)) AS user_id) AS u CROSS JOIN (
        SELECT substr(NEW.at, 1, 10) AS day, NEW.model AS model, NEW.input_tokens AS input, NEW.output_tokens AS output,
            NEW.cache_read_tokens AS cache_read, NEW.cache_write_tokens AS cache_write,
            IFNULL(NEW.cost_micro_usd, 0) AS cost, NEW.cost_micro_usd IS NULL AS unpriced, NEW.tries AS tries
        UNION ALL
        SELECT substr(OLD.at, 1, 10), OLD.model, -OLD.input_tokens, -OLD.output_tokens, -OLD.cache_read_tokens,
            -OLD.cache_write_tokens, -IFNULL(OLD.cost_micro_usd, 0), -(OLD.cost_micro_usd IS NULL), -OLD.tries
    ) AS c
    WHERE u.user_id IS NOT NULL
    ON CONFLICT (day, user_id, model) DO UPDATE SET input_tokens = input_tokens + excluded.input_tokens,
        output_tokens = output_tokens + excluded.output_tokens,
        cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens,
        cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens,
        cost_micro_usd = cost_micro_usd + excluded.cost_micro_usd,
        unpriced_calls = unpriced_calls + excluded.unpriced_calls, tries = tries + excluded.tries;
END;
CREATE TRIGGER model_calls_uncounted AFTER DELETE ON model_calls WHEN OLD.is_open BEGIN
    UPDATE daily_usage SET input_tokens = input_tokens - OLD.input_tokens,
        output_tokens = output_tokens - OLD.output_tokens,
        cache_read_tokens = cache_read_tokens - OLD.cache_read_tokens,
        cache_write_tokens = cache_write_tokens - OLD.cache_write_tokens,
        cost_micro_usd = cost_micro_usd - IFNULL(OLD.cost_micro_usd, 0),
        unpriced_calls = unpriced_calls - (OLD.cost_micro_usd IS NULL), tries = tries - OLD.tries
    WHERE day = substr(OLD.at, 1, 10) AND model = OLD.model
        AND user_id = IFNULL(OLD.user_id, (SELECT user_id FROM jobs WHERE id = OLD.work_id));
END;

CREATE TRIGGER tool_calls_counted AFTER INSERT ON tool_calls BEGIN
    INSERT INTO daily_usage (day, user_id, model, tool_calls)
    SELECT substr(NEW.at, 1, 10), user_id, '', 1
    FROM (SELECT IFNULL(NEW.user_id, (SELECT user_id FROM jobs WHERE id = NEW.work_id)) AS user_id)
    WHERE user_id IS NOT NULL
    ON CONFLICT (day, user_id, model) DO UPDATE SET tool_calls = tool_calls + 1;
END;
CREATE TRIGGER tool_calls_recounted AFTER UPDATE OF at ON tool_calls
WHEN substr(NEW.at, 1, 10) <> substr(OLD.at, 1, 10) BEGIN
    INSERT INTO daily_usage (day, user_id, model, tool_calls)
    SELECT d.day, u.user_id, '', d.tool_calls
    FROM (SELECT IFNULL(NEW.user_id, (SELECT user_id FROM jobs WHERE id = NEW.work_id)) AS user_id) AS u CROSS JOIN (
        SELECT substr(NEW.at, 1, 10) AS day, 1 AS tool_calls UNION ALL SELECT substr(OLD.at, 1, 10), -1
    ) AS d
    WHERE u.user_id IS NOT NULL
    ON CONFLICT (day, user_id, model) DO UPDATE SET tool_calls = tool_calls + excluded.tool_calls;
END;
