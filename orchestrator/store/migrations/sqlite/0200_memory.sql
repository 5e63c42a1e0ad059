-- Memory: documents of users, by path, with their last versions.
CREATE TABLE memory_users (
    -- Begins each of the user's terms in memory_index, so that a search reads no term of another user.
    number INTEGER PRIMARY KEY,
    user_id TEXT NOT NULL UNIQUE,
    documents INTEGER NOT NULL DEFAULT 0,
    -- Of all kept versions.
    bytes INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE memory_documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id TEXT NOT NULL,
    path TEXT NOT NULL,
    -- The current one.
    version INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    updated_at TEXT NOT NULL,
    UNIQUE (user_id, path)
);

CREATE TABLE memory_versions (
    document_id INTEGER NOT NULL REFERENCES memory_documents (id) ON DELETE CASCADE,
    version INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    created_at TEXT NOT NULL,
    author TEXT NOT NULL,
    -- The last column, so that a list of versions does not read it.
    content TEXT NOT NULL,
    PRIMARY KEY (document_id, version)
);

-- Terms of the current versions, by memory_documents.id. The program writes the terms, separated by spaces; the tokenizer adds stems.
CREATE VIRTUAL TABLE memory_index USING fts5 (
    path, content, content = '', contentless_delete = 1, tokenize = "porter ascii tokenchars '+#'"
);
