-- What jobs left: 8 events each (one of a job that is held) and 2,000 more of each thousandth job, three model calls, and a tool call.
CREATE TEMP TABLE event_templates (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, data TEXT NOT NULL);
INSERT INTO event_templates VALUES
    (1, 'state', '{"from":null,"to":"pending","reason":null,"message":null}'),
    (2, 'state', '{"from":"pending","to":"in_progress","reason":null,"message":null}'),
    (3, 'message', '{"role":"user","content":"The tests of module # fail since the last change. Find out why, and repair the parser."}'),
    (4, 'llm_call', '{"model":"small","provider":"main","input_tokens":1000,"output_tokens":40,"cost_usd":0.0003,"duration_ms":900,"finish_reason":"tool_calls"}'),
    (5, 'tool_use', '{"call_id":"call_#","tool":"shell","input":{"command":"cargo test -p module"}}'),
    (6, 'tool_result', '{"call_id":"call_#","tool":"shell","success":true,"output":"running 12 tests: 11 passed, 1 failed","truncated":false,"duration_ms":2100}'),
    (7, 'message', '{"role":"assistant","content":"The printer dropped the last line; it is repaired."}'),
    (8, 'state', '{"from":"in_progress","to":"%","reason":null,"message":null}');
INSERT INTO events (job_id, seq, attempt, at, kind, data)
SELECT jobs.id, seq, 1, created_at, kind, replace(replace(data, '#', jobs.rowid), '%', state)
FROM jobs CROSS JOIN event_templates WHERE seq <= last_seq;
INSERT INTO events (job_id, seq, attempt, at, kind, data)
SELECT jobs.id, 8 + n, 1, created_at, 'message', printf('{"role":"assistant","content":"%d: The tests of the parser pass now; the next step is the printer."}', n)
FROM jobs CROSS JOIN numbers WHERE jobs.rowid % 1000 = 0 AND n <= 2000;

INSERT INTO llm_calls (
    job_id, attempt, call_id, at, provider, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
    cost_micro_usd, duration_ms, finish_reason, answer, tries, request_digest, is_open, estimated_tokens, estimated_micro_usd
)
SELECT jobs.id, 1, printf('%026x%06x', jobs.rowid, n), created_at, 'main', model, 1000, 40, 0, 0, 300, 900, 'tool_calls',
    printf('{"content":"%-200s","tool_calls":[],"reasoning":null,"finish_reason":"stop","usage":{"input_tokens":1000,"output_tokens":40,"cache_read_tokens":0,"cache_write_tokens":0}}', 'The parser drops the last line.'),
    1, printf('%064x', jobs.rowid), FALSE, 1200, 400
FROM jobs CROSS JOIN numbers WHERE n <= 3 AND state <> 'pending';

INSERT INTO job_actions (job_id, attempt, call_id, at, tool, input, success, output, duration_ms)
SELECT id, 1, printf('call_%d', jobs.rowid), created_at, 'shell', '{"command":"cargo test -p module"}', TRUE,
    'running 12 tests: 11 passed, 1 failed', 2100
FROM jobs WHERE state <> 'pending' ORDER BY jobs.rowid;
