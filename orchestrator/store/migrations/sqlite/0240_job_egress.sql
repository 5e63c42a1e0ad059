-- The hosts that the job may reach, as the JSON of the request; NULL for none.
ALTER TABLE jobs ADD COLUMN egress TEXT;
-- Of the markers around tool results in what the job's model reads: the same in all attempts. NULL for jobs of earlier versions.
ALTER TABLE jobs ADD COLUMN delimiter_nonce TEXT;
