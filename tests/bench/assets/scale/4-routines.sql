-- Routines, of which a tenth is one user's, and their runs: 1,700 of each two-hundredth routine, few of the others. None is
-- due for a year. The row id of a routine is its number.
INSERT INTO routines (
    rowid, id, user_id, name, enabled, disabled_reason, disabled_at, trigger_type, trigger, action_type, action, guardrails,
    notify, session, wake_mode, deliver, post_to_main, persist_payload, webhook_path, event_source, event_type,
    has_webhook_secret, state, last_run_at, last_status, next_fire_at, run_count, verified,
    consecutive_failures, created_at, updated_at
)
SELECT n, unhex(printf('%012x', {start} + n) || tail), users.id, printf('routine %06d', n), is_enabled,
    iif(is_enabled, NULL, 'user'), iif(is_enabled, NULL, at), trigger_type,
    CASE trigger_type
        WHEN 'every' THEN '{"type":"every","every_seconds":31536000}'
        WHEN 'webhook' THEN printf('{"type":"webhook","path":"hook-%d"}', n)
        WHEN 'event' THEN printf('{"type":"event","pattern":"deploy %d"}', n)
        WHEN 'system_event' THEN '{"type":"system_event","source":"gantry","event_type":"job.failed"}'
        ELSE '{"type":"manual"}'
    END,
    action_type,
    CASE action_type
        WHEN 'lightweight' THEN '{"type":"lightweight","prompt":"Summarise what has changed since yesterday, in three sentences.","max_tokens":4096,"use_tools":false,"max_tool_rounds":3}'
        WHEN 'full_job' THEN '{"type":"full_job","title":"Nightly tests","description":"Run all tests and report what failed.","plan":false,"review":false,"hold":false,"priority":0}'
        ELSE '{"type":"system_event_text","text":"The night is over."}'
    END,
    '{"cooldown_seconds":300,"max_concurrent":1,"dedup_window_seconds":null,"overlap":"skip","catch_up":"once","catch_up_window_seconds":86400,"catch_up_max":10,"retry":{"max_attempts":1,"backoff_seconds":30,"backoff_max_seconds":3600},"disable_after_failures":10,"timeout_seconds":null,"stagger_seconds":0,"until":null,"max_runs":null,"budget":null}',
    '{"on_attention":true,"on_failure":true,"on_success":false}', iif(action_type = 'system_event_text', 'main', 'isolated'),
    'next_heartbeat', FALSE, FALSE, action_type = 'full_job', iif(trigger_type = 'webhook', printf('hook-%d', n), NULL),
    iif(trigger_type = 'system_event', 'gantry', NULL), iif(trigger_type = 'system_event', 'job.failed', NULL), FALSE,
    'Nothing has changed.', at, iif(n % 20 = 0, 'failed', 'ok'),
    iif(is_enabled AND trigger_type = 'every', strftime('%Y-%m-%dT%H:%M:%f+00:00', ({now} + 31536000000) / 1000.0, 'unixepoch'), NULL),
    10, n % 7 > 0, n % 20 = 0, at, at
FROM (
    SELECT n, r, tail, n % 10 > 0 AS is_enabled,
        strftime('%Y-%m-%dT%H:%M:%f+00:00', ({start} + n) / 1000.0, 'unixepoch') AS at,
        iif(n % 10 = 3, 2, iif(r < 0.99, 3 + CAST(({users} - 2) * r * r AS INTEGER), 1)) AS u,
        CASE WHEN n % 20 < 14 THEN 'every' WHEN n % 20 < 16 THEN 'webhook' WHEN n % 20 = 16 THEN 'event' WHEN n % 20 = 17 THEN 'system_event' ELSE 'manual' END AS trigger_type,
        CASE WHEN n % 20 IN (12, 18) THEN 'full_job' WHEN n % 20 IN (13, 19) THEN 'system_event_text' ELSE 'lightweight' END AS action_type
    FROM numbers WHERE n <= {routines}
) AS made CROSS JOIN users ON users.u = made.u;

-- Which routine ran when, in the order of time: almost half of the runs are of each two-hundredth routine. None has more than
-- the 2,000 that are kept.
CREATE TEMP TABLE ran AS
SELECT n, tail, {start} + ({now} - {start}) * n / {runs} AS ms,
    iif(n % 2 = 0 AND n % 7 > 0, 200 * (1 + n / 2 % max({routines} / 200, 1)), 1 + n * 7919 % {routines}) AS routine,
    CASE WHEN n % 40 < 24 THEN 'ok' WHEN n % 40 < 28 THEN 'attention' WHEN n % 40 < 31 THEN 'failed' WHEN n % 40 < 37 THEN 'skipped' WHEN n % 40 < 39 THEN 'missed' ELSE 'failed' END AS status
FROM numbers WHERE n <= {runs};
INSERT INTO routine_runs (
    rowid, id, routine_id, user_id, routine_name, identity, kind, trigger_type, trigger_detail, payload_digest, routine_rev,
    status, reason, message, due_at, started_at, attempt_started_at, completed_at, result_summary, tokens_used, cost_usd,
    missed_from, missed_to, missed_count, created_at
)
SELECT ran.n, unhex(printf('%012x', ms) || tail), routines.id, user_id, name,
    iif(trigger_type = 'every', 'at:' || at, printf('manual:%d', ran.n)), action_type, iif(trigger_type = 'every', 'every', 'manual'),
    iif(trigger_type = 'every', '{}', printf('{"by":"%s"}', user_id)), iif(trigger_type IN ('webhook', 'event'), unhex(printf('%064x', ran.n)), NULL), 1,
    ran.status, CASE ran.status WHEN 'failed' THEN iif(ran.n % 40 = 39, 'cancelled_by_user', 'llm_error') WHEN 'skipped' THEN 'cooldown' WHEN 'missed' THEN 'automation_disabled' END,
    iif(ran.status = 'failed' AND ran.n % 40 < 39, 'the provider did not answer', NULL), iif(trigger_type = 'every', at, NULL),
    iif(has_started, at, NULL), iif(has_started, at, NULL), at, iif(ran.status IN ('ok', 'attention'), 'Nothing has changed.', NULL),
    iif(has_started, 300, 0), 0.0, iif(ran.status = 'missed', at, NULL), iif(ran.status = 'missed', at, NULL), iif(ran.status = 'missed', 1, NULL), at
FROM (
    SELECT *, strftime('%Y-%m-%dT%H:%M:%f+00:00', ms / 1000.0, 'unixepoch') AS at, status IN ('ok', 'attention', 'failed') AS has_started FROM ran
) AS ran CROSS JOIN routines ON routines.rowid = ran.routine;
DROP TABLE ran;

INSERT INTO thread_calls (
    thread_id, turn, call_id, user_id, at, provider, model, input_tokens, output_tokens, cost_micro_usd, duration_ms,
    request_digest, is_open, estimated_tokens, estimated_micro_usd, reserved_tokens, reserved_micro_usd, finish_reason
)
SELECT id, 1, printf('%032x', rowid), user_id, created_at, 'main', 'small', 260, 40, 100, 700, printf('%064x', rowid), FALSE, 400, 120, 0, 0, 'stop'
FROM routine_runs WHERE kind = 'lightweight' AND rowid % 4 = 0 ORDER BY rowid;

INSERT INTO notifications (id, user_id, text, created_at, kind, title, routine_id, run_id, read_at)
SELECT id, user_id, 'The provider did not answer.', created_at, 'run_failed', 'Failed: ' || routine_name, routine_id, id,
    iif(rowid % 80 = 28, NULL, created_at)
FROM routine_runs WHERE rowid % 20 = 8 ORDER BY rowid;

-- The log of a webhook shows 200 deliveries, and one of them has many more.
INSERT INTO webhook_deliveries (id, routine_id, received_at, delivery_id, id_digest, body_digest, verdict, status)
SELECT unhex(printf('%012x7%03x8000%012x', {start} + 1000 * n, n % 4096, 100000 * routines.rowid + n)), routines.id, strftime('%Y-%m-%dT%H:%M:%f+00:00', {start} / 1000.0 + n, 'unixepoch'),
    printf('delivery-%d', n), iif(n % 2 = 0, unhex(printf('%064x', n)), NULL), iif(n % 2 = 0, unhex(printf('%064x', n)), NULL),
    iif(n % 2 = 0, 'accepted', 'not_matched'), iif(n % 2 = 0, 202, 200)
FROM routines CROSS JOIN numbers WHERE trigger_type = 'webhook' AND n <= iif(routines.rowid = 14, {routines} / 10, 10);
