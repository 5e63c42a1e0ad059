//! Tests of the log, in a separate program.

#[cfg(test)]
mod lines;
#[cfg(test)]
mod traces;
