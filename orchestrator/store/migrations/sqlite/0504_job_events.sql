-- What the job does now, in a few words; NULL while it waits for its model, and when it does not run.
ALTER TABLE jobs ADD COLUMN activity TEXT;
-- The events of a job are deleted with it.
CREATE INDEX instance_events_by_job ON instance_events (job_id) WHERE kind = 'job';
