//! The log's stories, in a program of their own.

#[cfg(test)]
mod lines;
#[cfg(test)]
mod traces;
