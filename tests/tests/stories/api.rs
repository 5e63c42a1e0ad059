//! Stories of the public API: its document, streams of events, limits and refused requests.

mod api_document;
mod command_line_lists;
mod events;
mod floods;
mod instance_events;
mod job_events;
mod limits;
mod metrics;
mod refusals;
mod refused_values;
