-- Users take turns in each kind of run by itself: a run that only posts a line uses up no turn of those that take a slot.
DROP INDEX routine_runs_by_start;
CREATE INDEX routine_runs_by_start ON routine_runs (kind, user_id, attempt_started_at) WHERE attempt_started_at IS NOT NULL;
