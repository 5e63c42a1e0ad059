-- Idle threads of which something is kept, by their last use: what the retention looks for.
CREATE INDEX chat_threads_to_empty ON chat_threads (updated_at) WHERE state = 'idle' AND bytes > 0;
