-- The open jobs with their revisions, whose sum shows whether another program has changed one. It replaces an index that
-- had nothing that jobs_by_state does not have.
DROP INDEX jobs_unfinished;
CREATE INDEX jobs_open ON jobs (state, rev) WHERE state IN ('pending', 'in_progress', 'stuck');
