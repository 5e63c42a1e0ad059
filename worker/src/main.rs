//! The worker: the process in the container.

fn main() {}
