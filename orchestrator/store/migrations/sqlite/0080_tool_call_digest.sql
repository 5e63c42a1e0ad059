-- What a tool call of the orchestrator's asked for, so that its name is not taken for another call. None for calls from before.

ALTER TABLE job_actions ADD COLUMN request_digest TEXT;
