-- What a user has decided about a tool. A tool without a row has the permission `default`.
CREATE TABLE tool_permissions (
    user_id TEXT NOT NULL,
    tool TEXT NOT NULL,
    permission TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (user_id, tool)
) STRICT, WITHOUT ROWID;

-- The operator's policy: one row, or none. Kept as the document that was set.
CREATE TABLE tool_policy (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    document TEXT NOT NULL,
    updated_at TEXT NOT NULL
) STRICT;
