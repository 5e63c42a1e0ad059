-- Runs and firings with a reason, in the order of their lists.
CREATE INDEX routine_runs_by_reason ON routine_runs (reason, trigger_type, status, id) WHERE reason IS NOT NULL;
CREATE INDEX routine_runs_by_user_reason ON routine_runs (user_id, reason, trigger_type, status, id) WHERE reason IS NOT NULL;
CREATE INDEX firings_by_reason ON firings (reason, trigger_type, status, id);
CREATE INDEX firings_by_user_reason ON firings (user_id, reason, trigger_type, status, id);

-- Both by the hour in which they were recorded, for counts.
ALTER TABLE routine_runs ADD COLUMN created_hour TEXT GENERATED ALWAYS AS (substr(created_at, 1, 13)) VIRTUAL;
CREATE INDEX routine_runs_by_hour ON routine_runs (created_hour, status);
CREATE INDEX routine_runs_by_user_hour ON routine_runs (user_id, created_hour, status);
ALTER TABLE firings ADD COLUMN created_hour TEXT GENERATED ALWAYS AS (substr(created_at, 1, 13)) VIRTUAL;
CREATE INDEX firings_by_hour ON firings (created_hour, status);
CREATE INDEX firings_by_user_hour ON firings (user_id, created_hour, status);

-- A user's routines in the order in which they fire.
CREATE INDEX routines_due_of_user ON routines (user_id, next_fire_at) WHERE enabled AND next_fire_at IS NOT NULL;
