-- Sessions of browsers are tokens: with the token that they come from, which ends them when it is revoked, SHA-256 of the key that changes
-- must name, and where and when they were last used.
ALTER TABLE tokens ADD COLUMN origin_jti TEXT;
ALTER TABLE tokens ADD COLUMN key_digest TEXT;
ALTER TABLE tokens ADD COLUMN last_used_at TEXT;
ALTER TABLE tokens ADD COLUMN address TEXT;
ALTER TABLE tokens ADD COLUMN agent TEXT;
CREATE INDEX tokens_by_origin ON tokens (origin_jti) WHERE origin_jti IS NOT NULL;
CREATE INDEX sessions_by_user ON tokens (user_id, last_used_at) WHERE key_digest IS NOT NULL;

-- Codes that open a session once, by their SHA-256. A row is deleted when its code is used, and after its end when its user makes another.
CREATE TABLE session_codes (
    digest             TEXT NOT NULL PRIMARY KEY,
    user_id            TEXT NOT NULL,
    role               TEXT NOT NULL,
    -- The token that it was made with; NULL if an operator made it.
    origin_jti         TEXT,
    created_at         TEXT NOT NULL,
    expires_at         TEXT NOT NULL,
    -- The end of the session that it opens, at the latest.
    session_expires_at TEXT NOT NULL
);
CREATE INDEX session_codes_by_user ON session_codes (user_id, created_at);
