-- A held job waits in pending until somebody starts it.

ALTER TABLE jobs ADD COLUMN held BOOLEAN NOT NULL DEFAULT FALSE;
