-- Threads, of which some users have as many as they may, with ten messages each; what is shown of the instance's events.
INSERT INTO chat_threads (rowid, id, user_id, key, title, turn, last_seq, created_at, updated_at)
SELECT n, unhex(printf('%012x', {start} + 1000 * n) || tail), users.id, iif(n <= {users}, 'main', NULL),
    printf('What is the state of module %d?', n % 997), 5, 10, at, at
FROM (
    SELECT n, tail, strftime('%Y-%m-%dT%H:%M:%f+00:00', {start} / 1000.0 + n, 'unixepoch') AS at,
        -- A main session for each user, then a third of the threads for a twenty-fifth of the users.
        iif(n <= {users}, n, iif(n % 3 = 0, 1 + n / 3 % max({users} / 25, 1), 1 + n % {users})) AS u
    FROM numbers WHERE n <= {threads}
) AS made CROSS JOIN users ON users.u = made.u;

INSERT INTO chat_messages (id, thread_id, seq, turn, role, data, due, at)
SELECT unhex(printf('%012x', {start} + 1000 * chat_threads.rowid + n) || printf('7%03x%04x%012x', n, 32768, chat_threads.rowid)),
    chat_threads.id, n, (n + 1) / 2, iif(n % 2 = 1, 'user', 'assistant'),
    iif(n % 2 = 1, '{"content":"What is the state of the parser''s tests?"}', '{"content":"The tests of the parser pass now; the next step is the printer, which still drops the last line."}'),
    FALSE, created_at
FROM chat_threads CROSS JOIN numbers WHERE n <= 10;

INSERT INTO chat_transcripts (thread_id, transcript)
SELECT id, printf('{"nonce":"%032x","messages":[{"role":"system","content":"%-1200s"},{"role":"user","content":"What is the state of the parser''s tests?"},{"role":"assistant","content":"They pass."}]}', rowid, 'You are the user''s assistant in a chat.')
FROM chat_threads ORDER BY rowid;

INSERT INTO thread_calls (
    thread_id, turn, call_id, user_id, at, provider, model, input_tokens, output_tokens, cost_micro_usd, duration_ms,
    request_digest, is_open, estimated_tokens, estimated_micro_usd, reserved_tokens, reserved_micro_usd, finish_reason
)
SELECT id, n, printf('%032x', 5 * chat_threads.rowid + n), user_id, created_at, 'main', 'small', 200, 40, 100, 700,
    printf('%064x', chat_threads.rowid), FALSE, 400, 120, 0, 0, 'stop'
FROM chat_threads CROSS JOIN numbers WHERE n <= 5;

INSERT INTO thread_actions (thread_id, turn, call_id, user_id, at, tool, input, success, output, duration_ms, reply, request_digest)
SELECT id, n, printf('call_%d', n), user_id, created_at, 'memory_search', '{"query":"parser"}', TRUE, 'notes/01.md', 4,
    '{"success":true,"output":"notes/01.md"}', printf('%064x', chat_threads.rowid)
FROM chat_threads CROSS JOIN numbers WHERE n <= 2;

INSERT INTO gates (
    id, thread_id, user_id, kind, state, tool, parameters, parameters_digest, reasoning, can_be_remembered, created_at, expires_at,
    resolved_at, resolved_by, decision
)
SELECT id, id, user_id, 'approval', iif(rowid % 2 = 0, 'approved', 'denied'), 'http', '{"url":"https://example.org/"}', printf('%064x', rowid),
    'The page has the changes.', TRUE, created_at, created_at, created_at, user_id, iif(rowid % 2 = 0, 'approve', 'deny')
FROM chat_threads WHERE rowid % 5 = 0 ORDER BY rowid;

-- A time after the last event of a job: the sequence is shared.
INSERT INTO instance_events (cursor, user_id, kind, run_id, routine_id, at, data)
SELECT (SELECT seq FROM sqlite_sequence WHERE name = 'events') + rowid / 4, user_id, 'run', id, routine_id, created_at,
    printf('{"id":"%s","routine_id":"%s","routine_name":"%s","user_id":"%s","trigger_type":"manual","trigger_detail":{"by":"%s"},"due_at":null,"started_at":null,"completed_at":null,"status":"queued","reason":null,"message":null,"result_summary":null,"tokens_used":0,"cost_usd":0.0,"job_id":null,"attempt":1,"not_before":null,"created_at":"%s"}',
        {uuid_id}, {uuid_routine_id}, routine_name, user_id, user_id, created_at)
FROM routine_runs WHERE rowid % 4 = 0 ORDER BY rowid;
UPDATE sqlite_sequence SET seq = (SELECT MAX(cursor) FROM instance_events) WHERE name = 'events';
