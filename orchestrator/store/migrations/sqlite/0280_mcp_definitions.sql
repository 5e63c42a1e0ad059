-- Definitions of the tools of MCP servers, as the servers have sent them. The first one of a tool is approved when it is seen
-- (`approved_by` is NULL), a later one when an admin approves it. Each tool has at most one that is not approved: the last one.
CREATE TABLE mcp_definitions (
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    digest TEXT NOT NULL,
    definition TEXT NOT NULL,
    first_seen_at TEXT NOT NULL,
    approved_at TEXT,
    approved_by TEXT,
    PRIMARY KEY (server, tool, digest)
) STRICT, WITHOUT ROWID;
