-- Whether a call of the job had no price: the job's cost is then not known.
ALTER TABLE jobs ADD COLUMN has_unpriced_calls BOOLEAN NOT NULL DEFAULT FALSE;
UPDATE jobs SET has_unpriced_calls = TRUE
    WHERE id IN (SELECT job_id FROM llm_calls WHERE cost_micro_usd IS NULL AND NOT is_open);
-- An open call has cost nothing yet; the cost of a call without a price is NULL.
UPDATE llm_calls SET cost_micro_usd = 0 WHERE is_open AND cost_micro_usd IS NULL;
