//! The engine ring: the Docker engine's code against a real engine. Fails, and never skips, when there is none.
//!
//! Each test has an instance id of its own and leaves neither container nor folder.

// In one module with this attribute, since clippy takes only that for tests, which may unwrap.
#[cfg(test)]
mod ring {
    mod adoption;
    mod ends;
    mod ground;
    mod lifecycle;
    mod posture;
    mod readiness;
    mod trouble;
    mod within;
}
