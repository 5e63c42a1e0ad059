-- Each filter of a list of jobs, runs or routines has an index in the order of the list, so that a page reads no more
-- than it shows. An end of an id is found by its last four digits.

-- Counts of jobs are in job_counts.
DROP INDEX jobs_by_state;
DROP INDEX jobs_by_user_state;
CREATE INDEX jobs_by_state ON jobs (state, id);
CREATE INDEX jobs_by_user_state ON jobs (user_id, state, id);
CREATE INDEX jobs_by_id_end ON jobs (substr(id, -2));

CREATE INDEX routine_runs_by_trigger ON routine_runs (trigger_type, status, id);
CREATE INDEX routine_runs_by_user_trigger ON routine_runs (user_id, trigger_type, status, id);
CREATE INDEX routine_runs_by_id_end ON routine_runs (substr(id, -2));
CREATE INDEX firings_by_trigger ON firings (trigger_type, status, id);
CREATE INDEX firings_by_user_trigger ON firings (user_id, trigger_type, status, id);
CREATE INDEX firings_by_id_end ON firings (substr(id, -2));

-- What routines are filtered by, beside each other and without their definitions.
DROP INDEX routines_by_user;
CREATE INDEX routines_by_user
    ON routines (user_id, id, enabled, verified, consecutive_failures, last_status, trigger_type, action_type);
CREATE INDEX routines_in_order
    ON routines (id, enabled, verified, consecutive_failures, last_status, trigger_type, action_type, name);
CREATE INDEX routines_by_id_end ON routines (substr(id, -2));
