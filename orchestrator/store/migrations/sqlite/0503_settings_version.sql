-- Increases with each change, so that a change can name what it was made from. A user who has set none is at version 0.
ALTER TABLE user_settings ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
