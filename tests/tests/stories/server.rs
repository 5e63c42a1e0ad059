//! Stories of the server as its operator has it: backups, stops, restarts and retention.

mod backup;
mod drain;
mod restarts;
mod retention;
mod status;
