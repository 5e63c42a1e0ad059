//! Stories of jobs: from their creation to their end, and what happens to them in between.

mod cancel;
mod children;
mod create;
mod defaults;
mod deletion;
mod egress;
mod egress_tunnels;
mod endings;
mod hold;
mod host_jobs;
mod lists;
mod live_output;
mod logs;
mod prompts;
mod queue;
mod review;
mod stuck;
