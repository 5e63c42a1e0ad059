-- Expired tokens are deleted in steps.
CREATE INDEX tokens_by_expiry ON tokens (expires_at);
