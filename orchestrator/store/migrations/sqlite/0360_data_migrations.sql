-- How far the migrations of data are that run in steps at the start (data_migrations.rs).
CREATE TABLE data_migrations (
    name TEXT NOT NULL PRIMARY KEY,
    -- The row id up to which its table has been migrated.
    position INTEGER NOT NULL,
    is_finished INTEGER NOT NULL
);
