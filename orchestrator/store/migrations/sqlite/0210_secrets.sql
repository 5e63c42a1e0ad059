-- Users' secrets, sealed with the master key of this id. Owner, name and key id are authenticated with the value, so a row that
-- was copied to another owner or name does not open.
CREATE TABLE secrets (
    user_id    TEXT NOT NULL,
    name       TEXT NOT NULL,
    key_id     TEXT NOT NULL,
    nonce      BLOB NOT NULL,
    ciphertext BLOB NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (user_id, name)
);
CREATE INDEX secrets_by_key ON secrets (key_id);
