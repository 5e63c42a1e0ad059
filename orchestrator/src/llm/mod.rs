//! The gateway: the only way to a model. Contents only.

mod arguments;
mod breaker;
mod call_ids;
mod circuit;
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
mod settings;

pub use breaker::Caller;
pub use circuit::{BreakerSettings, BreakerState};
pub use gateway::{Answer, AskError, CallContext, Failure, Gateway, ProviderHealth, Spent};
pub use price::{Price, PriceOverride};
pub use retry::RetrySettings;
pub use script::{Script, ScriptError};
pub use serve::serve;
pub use settings::{ErrorKind, GatewayError, GatewaySettings, ProviderKind, ProviderSettings};
