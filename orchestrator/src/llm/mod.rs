//! The gateway: the only way to a model. Contents only.

mod arguments;
mod breaker;
mod call_ids;
mod circuit;
mod error;
mod fair_semaphore;
mod fault;
mod gateway;
mod price;
mod provider;
mod remote;
mod retry;
pub mod script;
mod scripted;
mod serve;

pub use breaker::Caller;
pub use circuit::{BreakerSettings, BreakerState};
pub use error::{ErrorKind, GatewayError};
pub use gateway::{Answer, AskError, CallContext, CallCost, Failure, Gateway, ProviderHealth};
pub use retry::RetrySettings;
pub use script::{Script, ScriptError};
pub use serve::serve;
