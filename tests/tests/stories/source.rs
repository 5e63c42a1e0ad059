//! Checks of the sources and documents: the architecture, the language and the links.

mod architecture;
mod language;
mod links;
