-- When a finished job's events and calls were trimmed; its row, its result and its last events stay.
ALTER TABLE jobs ADD COLUMN trimmed_at TEXT;
CREATE INDEX jobs_to_trim ON jobs (finished_at) WHERE trimmed_at IS NULL AND finished_at IS NOT NULL;
