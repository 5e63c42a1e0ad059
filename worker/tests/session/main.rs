//! Stories of the real worker binary against an orchestrator that a test scripts.

#[cfg(test)]
mod commands;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod orchestrator;
#[cfg(test)]
mod searches;
#[cfg(test)]
mod stories;
