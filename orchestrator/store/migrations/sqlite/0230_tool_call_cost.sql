-- What a tool declares that a call costs at worst, and what the call cost where the tool knows it.
ALTER TABLE job_actions ADD COLUMN estimated_cost_micro_usd INTEGER NOT NULL DEFAULT 0;
ALTER TABLE job_actions ADD COLUMN cost_micro_usd INTEGER;
