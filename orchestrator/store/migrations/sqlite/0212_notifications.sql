-- Notifications of every origin, which the user lists and marks as read. Those that exist were sent by jobs.
ALTER TABLE notifications RENAME COLUMN content TO text;
ALTER TABLE notifications ADD COLUMN kind TEXT NOT NULL DEFAULT 'message';
ALTER TABLE notifications ADD COLUMN title TEXT NOT NULL DEFAULT '';
ALTER TABLE notifications ADD COLUMN routine_id BLOB;
ALTER TABLE notifications ADD COLUMN run_id BLOB;
ALTER TABLE notifications ADD COLUMN read_at TEXT;
UPDATE notifications SET title = COALESCE((SELECT title FROM jobs WHERE jobs.id = job_id), '');
CREATE INDEX notifications_by_user ON notifications (user_id, id);
CREATE INDEX notifications_unread ON notifications (user_id, id) WHERE read_at IS NULL;
CREATE INDEX notifications_by_time ON notifications (created_at);
