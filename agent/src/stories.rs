//! Stories: the whole loop with a scripted model, real tools behind the real executor, and tokio's paused time.

mod approvals;
mod context;
mod cut;
mod guards;
mod plans;
mod prompts;
mod turns;
mod waits;
mod world;

pub(crate) use world::context;
