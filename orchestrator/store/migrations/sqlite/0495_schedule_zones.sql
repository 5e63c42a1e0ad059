-- A schedule without a zone has been in UTC, and stays there: its zone is stored, because a new one takes its user's zone.
UPDATE routines SET trigger = json_set(trigger, '$.timezone', 'UTC')
WHERE trigger_type = 'cron' AND json_valid(trigger) AND trigger ->> '$.timezone' IS NULL;
