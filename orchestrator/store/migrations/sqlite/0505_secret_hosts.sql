-- The hosts that a secret may be sent to, as a JSON array; empty: any host.
ALTER TABLE secrets ADD COLUMN hosts TEXT NOT NULL DEFAULT '[]';
