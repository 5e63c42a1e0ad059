-- What lists, counts and sums read, without a walk over whole rows: a job's row lies over many pages when its prompt is long.

-- The queue in the order in which it is served, of each user.
CREATE INDEX jobs_queue ON jobs (state, held, user_id, priority DESC, id) WHERE state = 'pending';
-- Counts by user and state.
CREATE INDEX jobs_by_user_state ON jobs (user_id, state);
-- Jobs that may have been at work since a given time: open ones, and ended ones whose calls are kept.
CREATE INDEX jobs_not_finished ON jobs (user_id, id) WHERE finished_at IS NULL;
CREATE INDEX jobs_ended_by_user ON jobs (user_id, finished_at, id) WHERE trimmed_at IS NULL AND finished_at IS NOT NULL;
-- What usage adds up, without the answers that lie between its columns.
CREATE INDEX llm_calls_usage ON llm_calls
    (job_id, at, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_micro_usd, tries);
-- Old idempotency keys are found without reading the answers of all of them.
CREATE INDEX idempotency_keys_by_time ON idempotency_keys (created_at);
