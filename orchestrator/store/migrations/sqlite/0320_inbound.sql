-- Entries of the log of deliveries that use up no id, and ids that are kept for a time.
CREATE INDEX webhook_deliveries_logged ON webhook_deliveries (routine_id, id) WHERE id_digest IS NULL;
CREATE INDEX webhook_deliveries_kept ON webhook_deliveries (received_at) WHERE id_digest IS NOT NULL;

-- Events that were dropped because too many of the user waited, since the user was told.
CREATE TABLE routine_event_drops (
    user_id TEXT NOT NULL PRIMARY KEY,
    dropped INTEGER NOT NULL,
    notified_at TEXT NOT NULL
);

-- Notifications that are posted to a webhook.
CREATE TABLE notification_deliveries (
    id BLOB NOT NULL PRIMARY KEY,
    notification_id BLOB NOT NULL REFERENCES notifications (id) ON DELETE CASCADE,
    routine_id BLOB NOT NULL,
    user_id TEXT NOT NULL,
    url TEXT NOT NULL,
    status TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    -- When it is posted next, while its status is pending.
    next_attempt_at TEXT,
    last_attempt_at TEXT,
    -- The process that posts it at the moment. A delivery that another process left behind may have arrived.
    claimed_by BLOB,
    response_status INTEGER,
    error TEXT,
    created_at TEXT NOT NULL
);
CREATE INDEX notification_deliveries_by_notification ON notification_deliveries (notification_id);
CREATE INDEX notification_deliveries_due ON notification_deliveries (next_attempt_at) WHERE status = 'pending';
CREATE INDEX notification_deliveries_by_user ON notification_deliveries (user_id, next_attempt_at) WHERE status = 'pending';
CREATE INDEX notification_deliveries_claimed ON notification_deliveries (claimed_by) WHERE claimed_by IS NOT NULL;
