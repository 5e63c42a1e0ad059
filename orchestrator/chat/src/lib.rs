//! Chat: conversations between a user and an agent that runs in this process. Contents only.

mod chats;
mod commands;
mod conversation;
mod engine;
mod heartbeat_prompt;
mod heartbeat_turn;
mod heartbeats;
mod journal;
mod live;
mod turn;
mod turn_loop;

pub use chats::{ChatError, ChatMessageRequest, Chats, send_rates};
pub use engine::{ChatEngine, ChatParts};
pub use heartbeats::{HeartbeatSettings, Heartbeats};
pub use live::{Lagged, LiveEvent, LiveEvents, LiveSubscription};
