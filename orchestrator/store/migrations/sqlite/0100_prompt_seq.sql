-- Prompts are numbered by their job's row, as events are: ids follow the wall clock, which may be set back.
ALTER TABLE jobs ADD COLUMN last_prompt_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE prompts ADD COLUMN seq INTEGER;
-- 'user', or 'system' for a nudge: it does not hold up completion and is not delivered to a new attempt.
ALTER TABLE prompts ADD COLUMN source TEXT NOT NULL DEFAULT 'user';
UPDATE prompts SET seq = (SELECT COUNT(*) FROM prompts AS p WHERE p.job_id = prompts.job_id AND p.id <= prompts.id);
UPDATE jobs SET last_prompt_seq = (SELECT COUNT(*) FROM prompts WHERE prompts.job_id = jobs.id)
    WHERE id IN (SELECT job_id FROM prompts);
CREATE UNIQUE INDEX prompts_by_seq ON prompts (job_id, seq);
DROP INDEX prompts_by_job;
