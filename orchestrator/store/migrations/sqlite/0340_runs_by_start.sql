-- When a run of a user last started: the user who has waited longest is next.
CREATE INDEX routine_runs_by_start ON routine_runs (user_id, attempt_started_at) WHERE attempt_started_at IS NOT NULL;
