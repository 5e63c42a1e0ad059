-- The ends of ids of what 0482 leaves out, the states of a user's gates, and the actions of the audit log, in the order of
-- their lists.
CREATE INDEX notifications_by_id_end ON notifications (substr(id, -2));
CREATE INDEX chat_threads_by_id_end ON chat_threads (substr(id, -2));
CREATE INDEX gates_by_id_end ON gates (substr(id, -2));
CREATE INDEX gates_by_user_state ON gates (user_id, state, id);
CREATE INDEX audit_by_action ON audit (action, id);
CREATE INDEX audit_by_user_action ON audit (user_id, action, id);
