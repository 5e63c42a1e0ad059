-- The gate of the run that waits, or of the last one that did.
ALTER TABLE chat_transcripts ADD COLUMN gate_id BLOB;
-- How long the turn of that run has worked, without the time that it waited for a person.
ALTER TABLE chat_transcripts ADD COLUMN worked_ms INTEGER NOT NULL DEFAULT 0;
UPDATE chat_transcripts
SET gate_id = (SELECT id FROM gates WHERE gates.thread_id = chat_transcripts.thread_id ORDER BY id DESC LIMIT 1);
