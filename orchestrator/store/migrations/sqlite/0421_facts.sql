-- The kind of the error of the last model call that has ended; NULL if it was answered.
ALTER TABLE jobs ADD COLUMN last_call_error TEXT;
UPDATE jobs SET last_call_error = (SELECT replace(substr(error, 1, instr(error, ': ') - 1), ' ', '_') FROM model_calls
    WHERE model_calls.work_id = jobs.id AND NOT is_open ORDER BY at DESC, model_calls.attempt DESC LIMIT 1)
    WHERE state IN ('in_progress', 'stuck');
-- Whether the message says what a pending job waits for. Such a message may be replaced by another one.
ALTER TABLE jobs ADD COLUMN message_is_wait INTEGER NOT NULL DEFAULT FALSE;
UPDATE jobs SET message_is_wait = TRUE WHERE state = 'pending' AND message LIKE 'waiting: %';
-- What a restarted job is told about the earlier one, after its prompt.
ALTER TABLE job_texts ADD COLUMN note TEXT;
-- The day for which the owner was last told of a problem with the routine that is not its own.
ALTER TABLE routines ADD COLUMN problem_day TEXT;
