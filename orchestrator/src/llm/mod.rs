//! The gateway: the only way to a model. Contents only.

mod arguments;
pub mod script;
mod scripted;
mod serve;

pub use script::{Script, ScriptError};
pub use scripted::Player;
pub use serve::serve;
