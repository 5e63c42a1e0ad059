//! Checks of the sources and documents: the architecture, the language, the links and the statements of the store.

mod architecture;
mod language;
mod links;
mod statements;
