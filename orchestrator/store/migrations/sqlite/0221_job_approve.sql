-- The tools that always require approval and that a person has approved for the job, as a JSON list; NULL for none.
ALTER TABLE jobs ADD COLUMN approve TEXT;
