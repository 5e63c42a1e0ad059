-- The server that a notification is posted to, with its port, if the URL names one. Servers share the posts at a time.
ALTER TABLE notification_deliveries ADD COLUMN host TEXT GENERATED ALWAYS AS (lower(substr(
    url,
    instr(url, '://') + 3,
    instr(replace(replace(replace(substr(url, instr(url, '://') + 3), '\', '/'), '?', '/'), '#', '/') || '/', '/') - 1
))) VIRTUAL;

-- For the posts of each user that are due, without those to some servers.
DROP INDEX notification_deliveries_by_user;
CREATE INDEX notification_deliveries_by_user ON notification_deliveries (user_id, next_attempt_at, host)
WHERE status = 'pending';
