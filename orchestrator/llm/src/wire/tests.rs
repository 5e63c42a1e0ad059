//! Answers in the shapes of several servers (the files in `fixtures`), requests, patches and taps.

mod answers;
mod patches;
mod requests;
