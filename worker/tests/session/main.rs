//! Tests of the real worker binary against a scripted orchestrator.

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
