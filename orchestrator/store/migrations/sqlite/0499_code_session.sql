-- The session that made the code, without which it is refused; NULL if a token or an operator made it.
ALTER TABLE session_codes ADD COLUMN session_id TEXT;
