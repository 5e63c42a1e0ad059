-- What lists of jobs are filtered by, in the order of the list. The jobs of a routine are one user's.
CREATE INDEX jobs_by_routine ON jobs (routine_id, user_id, id) WHERE routine_id IS NOT NULL;
CREATE INDEX jobs_by_user_source ON jobs (user_id, source, id);
CREATE INDEX jobs_by_user_model ON jobs (user_id, model, id);
CREATE INDEX jobs_by_user_reason ON jobs (user_id, reason, id) WHERE reason IS NOT NULL;

-- Jobs by the hour in which they were created, for counts.
ALTER TABLE jobs ADD COLUMN created_hour TEXT GENERATED ALWAYS AS (substr(created_at, 1, 13)) VIRTUAL;
CREATE INDEX jobs_by_hour ON jobs (created_hour, state);
CREATE INDEX jobs_by_user_hour ON jobs (user_id, created_hour, state);
