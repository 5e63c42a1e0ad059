-- Open sessions of browsers. A row is deleted when its session ends, and with the token that it comes from.
CREATE TABLE sessions (
    id           TEXT NOT NULL PRIMARY KEY,
    user_id      TEXT NOT NULL,
    role         TEXT NOT NULL,
    -- The token that it comes from; NULL if an operator made its link.
    origin_jti   TEXT,
    -- SHA-256 of the key that changes are sent with.
    key_digest   TEXT NOT NULL,
    created_at   TEXT NOT NULL,
    last_used_at TEXT NOT NULL,
    expires_at   TEXT NOT NULL,
    address      TEXT,
    agent        TEXT
);
CREATE INDEX sessions_by_user ON sessions (user_id, last_used_at);
CREATE INDEX sessions_by_origin ON sessions (origin_jti) WHERE origin_jti IS NOT NULL;
CREATE INDEX sessions_by_end ON sessions (expires_at);

-- Codes that open a session once, by their SHA-256. A row is deleted when its code is used.
CREATE TABLE session_codes (
    digest             TEXT NOT NULL PRIMARY KEY,
    user_id            TEXT NOT NULL,
    role               TEXT NOT NULL,
    origin_jti         TEXT,
    created_at         TEXT NOT NULL,
    expires_at         TEXT NOT NULL,
    -- The end of the session that it opens, at the latest.
    session_expires_at TEXT NOT NULL
);
CREATE INDEX session_codes_by_user ON session_codes (user_id, created_at);
CREATE INDEX session_codes_by_end ON session_codes (expires_at);
