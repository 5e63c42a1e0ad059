//! Stories of models: budgets and usage, small models, failing ones and outages.

mod budgets;
mod cut_answers;
mod effort;
mod first_messages;
mod model_context;
mod model_faults;
mod outages;
mod refusals;
mod sent_requests;
mod temperature;
pub(crate) mod upstream;
mod usage;
