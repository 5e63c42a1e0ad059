//! Stories of the real worker binary against an orchestrator that a test scripts.

#[cfg(test)]
mod orchestrator;
#[cfg(test)]
mod stories;
