//! The output of commands: format and colors.
//!
//! Owns standard output and standard error. Text from jobs must be escaped by `text` before it is printed.

pub(crate) mod progress;
pub(crate) mod render;
pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod wrap;

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

pub use self::{
    table::{Column, TableArgs, View, table},
    text::one_line,
};
pub(crate) use self::{
    table::{cost, duration, local_time},
    text::{escape_control_chars, truncate, wrapped},
};
use super::{exit::CliError, unix};
use base::{Environment, Zone};

/// Text or JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Human-readable.
    Text,
    /// Machine-readable.
    Json,
}

/// Whether to use colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    Colour,
    /// Not a terminal, or `NO_COLOR` is set.
    Plain,
}

impl Paint {
    fn with(self, code: &str, text: &str) -> String {
        match self {
            Self::Colour if !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            Self::Colour | Self::Plain => text.to_owned(),
        }
    }

    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    pub fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    pub(crate) fn cyan(self, text: &str) -> String {
        self.with("36", text)
    }
}

/// The output of a command.
pub struct Output {
    /// Text or JSON.
    pub format: Format,
    /// Colors on standard output.
    pub paint: Paint,
    /// Standard output is a terminal, so output may be redrawn.
    pub is_live: bool,
    /// Columns of the terminal, or `COLUMNS`. `None`: unlimited.
    pub width: Option<usize>,
    /// `--timezone`, or the zone of the user's settings once it is known.
    pub(crate) chosen_zone: Option<Zone>,
    /// The zone of the machine; `None` if it has no name.
    pub(crate) machine_zone: Option<Zone>,
    out: Box<dyn Write + Send>,
}

impl Output {
    /// The output of this process. `timezone` is the value of `--timezone`.
    pub fn standard(environment: &Environment, json: bool, timezone: Option<&str>) -> Self {
        let is_live = io::stdout().is_terminal();
        let colour = is_live && environment.get("NO_COLOR").is_none();
        Self {
            format: if json { Format::Json } else { Format::Text },
            paint: if colour { Paint::Colour } else { Paint::Plain },
            is_live,
            width: width(environment),
            chosen_zone: timezone.and_then(|name| name.parse().ok()),
            machine_zone: machine_zone(environment),
            out: Box::new(io::stdout()),
        }
    }

    /// Output into a buffer.
    pub fn captured(format: Format) -> (Self, std::sync::Arc<std::sync::Mutex<Vec<u8>>>) {
        let buffer = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let output = Self {
            format,
            paint: Paint::Plain,
            is_live: false,
            width: None,
            chosen_zone: Some(Zone::UTC),
            machine_zone: None,
            out: Box::new(Capture(buffer.clone())),
        };
        (output, buffer)
    }

    /// The zone of the times that are shown. Commands that talk to a server find out the user's zone first.
    pub fn zone(&self) -> Zone {
        self.chosen_zone.or(self.machine_zone).unwrap_or(Zone::UTC)
    }

    /// Prints text and a newline.
    pub fn line(&mut self, text: &str) -> Result<(), CliError> {
        writeln!(self.out, "{text}")?;
        Ok(self.out.flush()?)
    }

    /// Prints bytes unchanged.
    pub fn raw(&mut self, text: &[u8]) -> Result<(), CliError> {
        self.out.write_all(text)?;
        Ok(self.out.flush()?)
    }

    /// Prints a value as one line of JSON.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), CliError> {
        let text = serde_json::to_string(value).map_err(|error| CliError::failed("cannot write JSON", error))?;
        self.line(&text)
    }

    /// Prints JSON or text, depending on the format.
    pub fn either(&mut self, value: &impl Serialize, text: impl FnOnce(Paint) -> String) -> Result<(), CliError> {
        match self.format {
            Format::Json => self.json(value),
            Format::Text => {
                let text = text(self.paint);
                self.line(&text)
            }
        }
    }

    /// Prints a note on standard error.
    pub fn note(&self, text: &str) {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "{text}");
    }

    /// Prints why something could not be done to one of several objects. With JSON it has the object's id as `id`.
    pub(crate) fn error_about(&self, id: &impl ToString, error: &CliError) {
        match self.format {
            Format::Json => {
                let mut value = error.to_json();
                value["id"] = id.to_string().into();
                self.note(&value.to_string());
            }
            Format::Text => self.note(&format!("gantry: {}: {error}", id.to_string())),
        }
    }

    /// Prints the error that ends the command.
    pub fn error(&self, error: &CliError) {
        match self.format {
            Format::Json => self.note(&error.to_json().to_string()),
            Format::Text => self.note(&format!("gantry: {error}")),
        }
    }
}

/// `COLUMNS`, else the width of the terminal on standard output.
pub fn width(environment: &Environment) -> Option<usize> {
    let set = environment.get("COLUMNS").and_then(|columns| columns.parse().ok());
    set.or_else(unix::terminal_width).filter(|columns| *columns > 0)
}

/// `TZ` if it is the name of a zone, else the zone of the machine, if it has a name.
fn machine_zone(environment: &Environment) -> Option<Zone> {
    let set = environment.get("TZ").and_then(|name| name.trim_start_matches(':').parse().ok());
    let of_machine = || iana_time_zone::get_timezone().ok()?.parse().ok();
    set.or_else(of_machine)
}

struct Capture(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
