-- By how much the records exceed the operator's limit although everything was deleted that may be; no row if they do not.
CREATE TABLE retention_excess (
    id         INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    bytes      INTEGER NOT NULL,
    checked_at TEXT    NOT NULL
);
