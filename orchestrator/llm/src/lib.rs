//! The gateway: the only way to a model. Contents only.

mod arguments;
mod call_ids;
mod call_phase;
mod dialect;
mod error;
mod estimate;
mod gateway;
pub mod metering;
mod price;
mod provider;
pub mod script;
mod serve;
mod upstream;
pub mod wire;

pub use call_phase::CallPhase;
pub use dialect::preset;
pub use error::{ErrorKind, GatewayError};
pub use gateway::{Answer, AskError, CallContext, CallCost, Failure, Gateway, ProviderHealth, UnpricedModel};
pub use provider::{
    breaker::CallOwner,
    circuit::{BreakerSettings, BreakerState},
    retry::RetrySettings,
};
pub use script::{Script, ScriptError};
pub use serve::serve;
