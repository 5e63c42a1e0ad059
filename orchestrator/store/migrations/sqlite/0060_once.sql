-- A notification belongs to the call that sent it: made again after a crash, the call sends no second one.
ALTER TABLE notifications ADD COLUMN call TEXT;
CREATE UNIQUE INDEX notifications_by_call ON notifications (job_id, call) WHERE call IS NOT NULL;
-- Old rows of the audit are found without reading all of it.
CREATE INDEX audit_by_time ON audit (at);
