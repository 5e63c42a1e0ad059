//! The gateway: the only way to a model. Contents only.

mod arguments;
mod attempt_error;
mod breaker;
mod call_ids;
mod call_phase;
mod circuit;
mod error;
mod estimate;
mod fair_semaphore;
mod gateway;
pub mod metering;
mod price;
mod provider;
mod retry;
pub mod script;
mod serve;
mod upstream;
pub mod wire;

pub use breaker::CallOwner;
pub use call_phase::CallPhase;
pub use circuit::{BreakerSettings, BreakerState};
pub use error::{ErrorKind, GatewayError};
pub use gateway::{Answer, AskError, CallContext, CallCost, Failure, Gateway, ProviderHealth, UnpricedModel};
pub use retry::RetrySettings;
pub use script::{Script, ScriptError};
pub use serve::serve;
