//! A job's files: listed, compared, read, written, packed and unpacked; one endpoint per file. Contents only.

pub(super) mod changes;
pub(super) mod list;
pub(super) mod pack;
pub(super) mod put;
pub(super) mod read;
mod receive;
pub(super) mod unpack;
mod workspace;

pub(super) use workspace::to_api_error;
