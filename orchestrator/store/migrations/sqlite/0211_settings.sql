-- The settings of users who have changed them, as JSON.
CREATE TABLE user_settings (
    user_id    TEXT NOT NULL PRIMARY KEY,
    settings   TEXT NOT NULL,
    updated_at TEXT NOT NULL
);
