-- An event is compared with its user's routines in rounds: how many it had, and the last routine that it was compared with.
ALTER TABLE routine_events ADD COLUMN rounds INTEGER NOT NULL DEFAULT 0;
ALTER TABLE routine_events ADD COLUMN compared_to BLOB;

-- In the order in which they are compared.
DROP INDEX routines_of_messages;
DROP INDEX routines_of_events;
CREATE INDEX routines_of_messages ON routines (user_id, id) WHERE enabled AND trigger_type = 'event';
CREATE INDEX routines_of_events ON routines (user_id, event_source, event_type, id) WHERE enabled AND trigger_type = 'system_event';
