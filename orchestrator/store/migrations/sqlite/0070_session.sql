-- The worker's session: the attempt that needs one (an attempt begun by a version without sessions never does), SHA-256 of its
-- secret once it is open, and the attempt that a rejected call was recorded of.
ALTER TABLE jobs ADD COLUMN session_attempt INTEGER;
ALTER TABLE jobs ADD COLUMN session_hash TEXT;
ALTER TABLE jobs ADD COLUMN session_rejected_attempt INTEGER;
