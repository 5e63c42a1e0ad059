-- The numbers of a user's routines, or of all, without their long texts.
CREATE INDEX routines_summary ON routines (user_id, enabled, consecutive_failures, verified, next_fire_at);
