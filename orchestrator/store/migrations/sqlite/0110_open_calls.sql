-- A model call has its row before the provider is asked: open until its usage is known. What it reserved and what its prompt
-- is estimated to cost are kept with it, so that a call which the process did not outlive can be charged.
ALTER TABLE llm_calls ADD COLUMN is_open BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE llm_calls ADD COLUMN estimated_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE llm_calls ADD COLUMN estimated_micro_usd INTEGER;
ALTER TABLE llm_calls ADD COLUMN reserved_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE llm_calls ADD COLUMN reserved_micro_usd INTEGER NOT NULL DEFAULT 0;
ALTER TABLE llm_calls ADD COLUMN reserved_day TEXT;
CREATE INDEX llm_calls_open ON llm_calls (job_id) WHERE is_open;

-- Tool calls of the orchestrator's that have begun: they have a digest, and no reply until they end.
CREATE INDEX job_actions_open ON job_actions (job_id) WHERE reply IS NULL AND request_digest IS NOT NULL;
