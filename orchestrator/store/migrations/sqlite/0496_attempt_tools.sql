-- The names that `server__*` in the tools of a job stands for in its current attempt: a JSON array, NULL until they are known.
ALTER TABLE jobs ADD COLUMN attempt_tools TEXT;
