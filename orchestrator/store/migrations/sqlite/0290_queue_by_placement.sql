-- The queue is read by user and placement: jobs in containers and those of the orchestrator itself have separate slots.
DROP INDEX jobs_queue;
CREATE INDEX jobs_queue ON jobs (state, held, user_id, placement, priority DESC, id) WHERE state = 'pending';
