//! Model calls and tool calls: their records, their cost and what they sum up to. Contents only.

pub(crate) mod budget;
pub(crate) mod call_key;
pub(crate) mod model_calls;
pub(crate) mod tool_calls;
pub(crate) mod usage;
