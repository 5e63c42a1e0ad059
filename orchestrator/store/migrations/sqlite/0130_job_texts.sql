-- The long texts of a job lie beside its row: lists, counts and updates of a job read and write few pages.
CREATE TABLE job_texts (
    job_id         BLOB NOT NULL PRIMARY KEY REFERENCES jobs (id),
    prompt         TEXT NOT NULL,
    metadata       TEXT NOT NULL,
    result_text    TEXT,
    result_partial TEXT
);
INSERT INTO job_texts (job_id, prompt, metadata, result_text, result_partial)
    SELECT id, prompt, metadata, result_text, result_partial FROM jobs;
-- The first 200 characters of the prompt, which lists show.
ALTER TABLE jobs ADD COLUMN prompt_preview TEXT NOT NULL DEFAULT '';
UPDATE jobs SET prompt_preview = substr(prompt, 1, 200);
ALTER TABLE jobs DROP COLUMN prompt;
ALTER TABLE jobs DROP COLUMN metadata;
ALTER TABLE jobs DROP COLUMN result_text;
ALTER TABLE jobs DROP COLUMN result_partial;
