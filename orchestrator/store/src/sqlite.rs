//! The database: the connections that write and read, its files, and how rows become records. Contents only.

pub(crate) mod backup;
pub(crate) mod by_turns;
pub(crate) mod data_migrations;
pub(crate) mod db_counts;
pub(crate) mod file_mode;
pub(crate) mod hour_counts;
pub(crate) mod inconsistent_rows;
pub(crate) mod key_walk;
pub(crate) mod list_walks;
pub(crate) mod readers;
pub(crate) mod rows;
pub(crate) mod search;
pub(crate) mod write_queue;
pub(crate) mod write_tx;
pub(crate) mod writer;
