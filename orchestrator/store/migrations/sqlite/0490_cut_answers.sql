-- Whether the output limit of the model cut the answer.
ALTER TABLE job_texts ADD COLUMN result_cut BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE routine_runs ADD COLUMN cut BOOLEAN NOT NULL DEFAULT FALSE;
