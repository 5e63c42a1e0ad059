//! Benchmarks: programs that print both sides of a comparison.

fn main() {}
