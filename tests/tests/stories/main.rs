//! Stories: the behaviour of a whole orchestrator as users, workers and the engine see it.

#[cfg(test)]
mod api_document;
#[cfg(test)]
mod approvals;
#[cfg(test)]
mod architecture;
#[cfg(test)]
mod archives;
#[cfg(test)]
mod audit;
#[cfg(test)]
mod backup;
#[cfg(test)]
mod budgets;
#[cfg(test)]
mod cancel;
#[cfg(test)]
mod changes;
#[cfg(test)]
mod chat;
#[cfg(test)]
mod children;
#[cfg(test)]
mod create;
#[cfg(test)]
mod deletion;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod drain;
#[cfg(test)]
mod endings;
#[cfg(test)]
mod events;
#[cfg(test)]
mod files;
#[cfg(test)]
mod floods;
#[cfg(test)]
mod gates;
#[cfg(test)]
mod gates_in_chat;
#[cfg(test)]
mod hold;
#[cfg(test)]
mod hooks;
#[cfg(test)]
mod host_jobs;
#[cfg(test)]
mod http_tool;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod instance_events;
#[cfg(test)]
mod language;
#[cfg(test)]
mod leaks;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod links;
#[cfg(test)]
mod live_output;
#[cfg(test)]
mod logs;
#[cfg(test)]
mod mcp;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod model_context;
#[cfg(test)]
mod model_faults;
#[cfg(test)]
mod notifications;
#[cfg(test)]
mod outages;
#[cfg(test)]
mod prompts;
#[cfg(test)]
mod queue;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod refused_values;
#[cfg(test)]
mod restarts;
#[cfg(test)]
mod retention;
#[cfg(test)]
mod review;
#[cfg(test)]
mod routines;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod session;
#[cfg(test)]
mod settings;
#[cfg(test)]
mod stuck;
#[cfg(test)]
mod tool_policy;
#[cfg(test)]
mod upstream;
#[cfg(test)]
mod usage;
#[cfg(test)]
mod user_storage;
#[cfg(test)]
mod worker_api;
#[cfg(test)]
mod worker_tools;
