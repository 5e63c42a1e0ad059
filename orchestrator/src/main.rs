//! The `gantry` binary: the daemon and the command line.

fn main() {}
