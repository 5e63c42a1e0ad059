-- How much the model of a job thinks; NULL is the operator's default.
ALTER TABLE jobs ADD COLUMN effort TEXT;
