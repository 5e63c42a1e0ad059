//! What a person sees of a conversation: the text that is printed, and the question at its end.
//!
//! Owns where the cursor is: what arrives while a question is shown gets separate lines, and the question is shown
//! again.

use protocol::{ChatHistory, Gate};
use serde_json::Value;

use super::{event::ChatEvent, lines, render::Renderer};
use crate::{
    exit::CliError,
    output::{Format, Output},
};

/// The terminal, or where the output goes instead.
pub(super) struct Screen<'a> {
    output: &'a mut Output,
    renderer: Renderer,
    /// A person types the lines and reads the answers.
    is_interactive: bool,
    /// The cursor is behind a question.
    is_question_shown: bool,
}

impl<'a> Screen<'a> {
    pub(super) fn new(output: &'a mut Output) -> Self {
        let renderer = Renderer::new(output.paint, output.is_live, output.width.filter(|_| output.is_live));
        let is_interactive = output.format == Format::Text && output.is_live && lines::are_typed();
        Self { output, renderer, is_interactive, is_question_shown: false }
    }

    pub(super) const fn is_interactive(&self) -> bool {
        self.is_interactive
    }

    /// Shows a question to a person, unless one is shown.
    pub(super) fn ask(&mut self, question: &str) -> Result<(), CliError> {
        if !self.is_interactive || self.is_question_shown {
            return Ok(());
        }
        self.is_question_shown = true;
        self.output.raw(question.as_bytes())
    }

    pub(super) const fn entered(&mut self) {
        self.is_question_shown = false;
    }

    /// The person has pressed Ctrl-C, which the terminal shows where the cursor is.
    pub(super) fn interrupted(&mut self) -> Result<(), CliError> {
        if !self.is_interactive {
            return Ok(());
        }
        self.is_question_shown = false;
        self.renderer.line_has_ended();
        self.output.raw(b"\n")
    }

    /// Moves the cursor from the question to the next line.
    pub(super) fn leave_question(&mut self) -> Result<(), CliError> {
        if std::mem::take(&mut self.is_question_shown) { self.output.raw(b"\n") } else { Ok(()) }
    }

    /// Prints an event.
    pub(super) fn event(&mut self, raw: &str, event: &ChatEvent, is_own: bool) -> Result<(), CliError> {
        if self.output.format == Format::Json {
            let named: Value = event.named(raw);
            return self.output.json(&named);
        }
        match self.renderer.event(event).filter(|_| !is_own) {
            Some(text) => self.print(&text),
            None => Ok(()),
        }
    }

    /// Prints the call that waits.
    pub(super) fn gate(&mut self, gate: &Gate) -> Result<(), CliError> {
        if self.output.format == Format::Json {
            return Ok(());
        }
        let text = self.renderer.gate(gate);
        self.print(&text)
    }

    /// Shows a person the last entries of a thread, and where they are.
    pub(super) fn opening(&mut self, history: Option<&ChatHistory>, head: &str) -> Result<(), CliError> {
        let earlier = history.map(|history| self.renderer.earlier(history)).unwrap_or_default();
        self.print(&earlier)?;
        let head = self.output.paint.dim(head);
        self.print(&format!("{head}\n"))
    }

    fn print(&mut self, text: &str) -> Result<(), CliError> {
        if text.is_empty() {
            return Ok(());
        }
        self.leave_question()?;
        self.output.raw(text.as_bytes())
    }

    /// Prints a note on standard error.
    pub(super) fn note(&mut self, text: &str) -> Result<(), CliError> {
        self.begin_line()?;
        self.output.note(text);
        Ok(())
    }

    /// Prints an error that does not end the program.
    pub(super) fn error(&mut self, error: &CliError) -> Result<(), CliError> {
        self.begin_line()?;
        self.output.error(error);
        Ok(())
    }

    fn begin_line(&mut self) -> Result<(), CliError> {
        self.leave_question()?;
        if self.renderer.line_has_ended() { self.output.raw(b"\n") } else { Ok(()) }
    }
}
