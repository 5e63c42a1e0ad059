//! The safety layer: what happens to text that crosses a trust boundary. Pure, no I/O; the worker's loop and the
//! orchestrator share it.
//!
//! [`LeakDetector`] finds credentials, [`neutralize`] disarms text that imitates the structure of a conversation,
//! [`wrap_untrusted`] marks where untrusted content begins and ends, and [`screen_outbound`] checks tool arguments that
//! leave the installation. Deciding where each is called belongs to the callers.

mod conversation;
mod delimiter;
mod leak;
mod neutralize;
mod outbound;

pub(crate) use delimiter::MARKER_BYTES;
pub use delimiter::{DELIMITER_NOTICE, DelimiterNonce, unwrap_untrusted, wrap_untrusted};
pub use leak::{
    Finding, Held, LeakAction, LeakDetector, LeakDetectorError, LeakSource, MAX_INDEXED_SECRET_BYTES, MIN_SECRET_BYTES,
    REDACTED, StoredSecret, StreamRedactor,
};
pub use neutralize::neutralize;
pub(crate) use neutralize::visible;
pub use outbound::{OutboundRefused, screen_outbound, tool_sends_arguments};
