-- Jobs, of which a fifth is one user's, with their texts and prompts. The row id of a job is its number.
CREATE TEMP TABLE made AS
SELECT n, r, tail, {start} + ({now} - {start}) * n / {jobs} AS ms,
    iif(n % 5 = 0, 1, 2 + CAST(({users} - 1) * r * r * r AS INTEGER)) AS u,
    CASE
        WHEN n % 100 < 70 THEN 'completed'
        WHEN n % 100 < 82 THEN 'failed'
        WHEN n % 100 < 92 THEN 'cancelled'
        WHEN n % 100 < 96 THEN 'accepted'
        WHEN n % 100 < 99 THEN 'submitted'
        ELSE 'pending'
    END AS state
FROM numbers WHERE n <= {jobs};

INSERT INTO jobs (
    rowid, id, rev, user_id, title, mode, placement, state, reason, message, priority, labels, limits, image, model, plan, source,
    attempt, repair_attempts, created_at, started_at, last_activity_at, cancel_requested_at, finished_at, container,
    prompts_closed, input_tokens, output_tokens, cost_micro_usd, llm_calls, tool_calls, iterations, last_seq, last_client_seq,
    review, held, session_attempt, last_prompt_seq, prompt_preview, delimiter_nonce, parent_id, depth
)
SELECT n, unhex(printf('%012x', ms) || tail), 5, users.id, printf('Repair the parser of module %d', n % 997), 'worker',
    'container', state,
    CASE state
        WHEN 'failed' THEN CASE n % 4 WHEN 0 THEN 'llm_error' WHEN 1 THEN 'wall_clock' WHEN 2 THEN 'worker_crashed' ELSE 'oom_killed' END
        WHEN 'cancelled' THEN 'cancelled_by_user'
    END,
    iif(state = 'failed', 'it ended after 3 attempts', NULL), n % 3,
    CASE n % 3 WHEN 0 THEN printf('{"team":"t%d","env":"prod"}', n % 31) WHEN 1 THEN printf('{"team":"t%d"}', n % 31) ELSE '{}' END,
    '{"timeout_seconds":3600,"max_iterations":50,"max_tool_calls":500,"max_tokens":0,"max_cost_usd":0.0,"max_children":0,"memory_mb":2048,"cpus":1.0,"pids":256,"disk_mb":1024}',
    'gantry-worker:latest', iif(n % 4 = 0, 'large', 'small'), FALSE,
    CASE n % 4 WHEN 0 THEN 'cli' WHEN 1 THEN 'chat' ELSE 'api' END,
    iif(state = 'pending', 0, 1), 0, at, iif(state = 'pending', NULL, at), iif(state = 'pending', NULL, at),
    iif(state = 'cancelled', at, NULL), iif(state IN ('pending', 'submitted'), NULL, at),
    iif(state = 'pending', NULL, printf('{"id":"%064x","name":"gantry-job-%d-1","image":"gantry-worker:latest","engine":"docker","runtime":"runc","transport":"unix","workspace":"fsize+sweep","node":"host","posture":"%064x","exit_code":0,"oom_killed":false}', n, n, n)),
    state NOT IN ('pending', 'cancelled'), iif(state = 'pending', 0, 3000), iif(state = 'pending', 0, 120),
    iif(state = 'pending', 0, 900), iif(state = 'pending', 0, 3), state <> 'pending', iif(state = 'pending', 0, 3), CASE WHEN n % 1000 = 0 THEN 2008 WHEN state = 'pending' THEN 1 ELSE 8 END,
    CASE WHEN n % 1000 = 0 THEN 2004 WHEN state = 'pending' THEN 0 ELSE 4 END,
    state IN ('submitted', 'accepted'), state = 'pending', iif(state = 'pending', NULL, 1), n % 10 = 0,
    substr(printf('The tests of module %d fail since the last change. Find out why, repair the parser, and run all of its tests again. Report what was wrong and what you changed, with the output of the tests.', n % 997), 1, 200),
    printf('%032x', n),
    -- The first user's job before it.
    iif(n % 100 = 0 AND n > 5, unhex(printf('%012x', {start} + ({now} - {start}) * (n - 5) / {jobs}) || (SELECT tail FROM numbers WHERE numbers.n = made.n - 5)), NULL),
    iif(n % 100 = 0 AND n > 5, 1, 0)
FROM (SELECT *, strftime('%Y-%m-%dT%H:%M:%f+00:00', ms / 1000.0, 'unixepoch') AS at FROM made) AS made
CROSS JOIN users ON users.u = made.u;

INSERT INTO job_texts (job_id, prompt, metadata, result_text)
SELECT id, prompt_preview || ' ' || prompt_preview, iif(rowid % 5 = 0, printf('{"ticket":"T-%d"}', rowid), '{}'),
    iif(state IN ('completed', 'accepted', 'submitted'), printf('%-400s', 'The printer dropped the last line; it is repaired, and all tests pass.'), NULL)
FROM jobs ORDER BY jobs.rowid;

INSERT INTO prompts (id, job_id, content, mode, done, created_at, acknowledged_at, seq, source)
SELECT jobs.id, jobs.id, 'Look at the printer as well.', 'steer', FALSE, created_at, created_at, 1, 'user'
FROM jobs WHERE jobs.rowid % 10 = 0 ORDER BY jobs.rowid;

INSERT INTO notifications (id, user_id, job_id, text, created_at, kind, title, read_at)
SELECT id, user_id, id, 'The tests pass.', created_at, 'message', title, iif(jobs.rowid % 50 = 0, NULL, created_at)
FROM jobs WHERE jobs.rowid % 10 = 0 ORDER BY jobs.rowid;

INSERT INTO audit (at, user_id, role, action, job_id, outcome, request_id, jti, source)
SELECT created_at, user_id, 'user', iif(jobs.rowid % 10 = 0, 'job.cancel', 'job.create'), id, 'done', hex(id), 'token-001-01', '127.0.0.1'
FROM jobs ORDER BY jobs.rowid;

-- A repeated request of the last hours gets the recorded answer.
INSERT INTO idempotency_keys (user_id, key, digest, created_at, status, body)
SELECT user_id, printf('order-%d', jobs.rowid), printf('%064x', jobs.rowid),
    strftime('%Y-%m-%dT%H:%M:%f+00:00', ({now} - jobs.rowid % 36000000) / 1000.0, 'unixepoch'), 201,
    printf('{"id":"%s","prompt":"%-1200s"}', lower(hex(id)), 'x')
FROM jobs WHERE jobs.rowid % 40 = 0 ORDER BY jobs.rowid;

DROP TABLE made;
