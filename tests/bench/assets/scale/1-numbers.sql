-- What the other files build on: numbers with pseudo-random fractions, the digits of a UUIDv7 after its time, and users.
CREATE TEMP TABLE numbers (n INTEGER PRIMARY KEY, r REAL NOT NULL, tail TEXT NOT NULL);
WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < {numbers})
INSERT INTO numbers
SELECT n, n * 2654435761 % 4294967296 / 4294967296.0,
    printf('7%03x%04x%012x', n * 7919 % 4096, 32768 + n * 104729 % 16384, n)
FROM counted;

CREATE TEMP TABLE users (u INTEGER PRIMARY KEY, id TEXT NOT NULL);
INSERT INTO users SELECT n, printf('user%03d', n) FROM numbers WHERE n <= {users};

CREATE TEMP TABLE days (day INTEGER PRIMARY KEY, date TEXT NOT NULL);
INSERT INTO days SELECT n, date(({now} - n * 86400000) / 1000, 'unixepoch') FROM numbers WHERE n <= 60;

INSERT INTO user_days (user_id, day, tokens, micro_usd)
SELECT id, date, 1000 * u + day, 10 * u + day FROM users CROSS JOIN days;

INSERT INTO deleted_usage (user_id, day, model, input_tokens, output_tokens, cost_micro_usd, tries, tool_calls)
SELECT id, date, 'small', 5000, 300, 1500, 3, 2 FROM users CROSS JOIN days WHERE day % 10 = 0;

INSERT INTO tokens (jti, user_id, role, created_at, expires_at, revoked_at)
SELECT printf('token-%03d-%02d', u, day), id, 'user', date || 'T08:00:00+00:00', date || 'T20:00:00+00:00',
    iif(day % 7 = 0, date || 'T09:00:00+00:00', NULL)
FROM users CROSS JOIN days WHERE day <= 20;

INSERT INTO user_settings (user_id, settings, updated_at)
SELECT id, '{}', strftime('%Y-%m-%dT%H:%M:%f+00:00', {start} / 1000.0, 'unixepoch') FROM users;

INSERT INTO memory_users (number, user_id, documents, bytes) SELECT u, id, 20, 20 * 1000 FROM users;
INSERT INTO memory_documents (user_id, path, version, bytes, updated_at)
SELECT id, printf('notes/%02d.md', day), 1, 1000, date || 'T12:00:00+00:00' FROM users CROSS JOIN days WHERE day <= 20;
INSERT INTO memory_versions (document_id, version, bytes, created_at, author, content)
SELECT id, 1, 1000, updated_at, 'user:' || user_id, printf('%-1000s', 'Notes of ' || updated_at) FROM memory_documents;
INSERT INTO memory_index (rowid, path, content)
SELECT d.id, u.number || 'notes', u.number || 'notes ' || u.number || 'parser'
FROM memory_documents AS d JOIN memory_users AS u USING (user_id);
