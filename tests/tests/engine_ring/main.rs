//! Tests of the Docker engine module on a real engine. They fail, and are never skipped, when there is no engine.
//!
//! Each test has its own instance id and leaves neither containers nor directories behind.

// In one module with this attribute: clippy allows `unwrap` only in test modules.
#[cfg(test)]
mod ring {
    mod adoption;
    mod ends;
    mod engine_events;
    mod in_container;
    mod lifecycle;
    mod mcp;
    mod posture;
    mod readiness;
    mod setup;
}
