-- The open jobs with their revisions, which are summed to notice a change by another program. The former index of the
-- open jobs is one of jobs_by_state as well.
DROP INDEX jobs_unfinished;
CREATE INDEX jobs_open ON jobs (state, rev) WHERE state IN ('pending', 'in_progress', 'stuck');
