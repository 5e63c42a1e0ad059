//! `gantry memory`: the documents of the caller's memory.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use protocol::{
    MemoryContent, MemoryDocument, MemoryEntry, MemoryMatch, MemoryVersion, Page, limits::MAX_MEMORY_DOCUMENT_BYTES,
};

use crate::{
    client::{Client, pages, zones},
    exit::CliError,
    output::{Column, Format, Output, Paint, TableArgs, View, escape_control_chars, one_line, table},
};
use base::clock::Clock;

#[derive(Debug, Subcommand)]
pub enum MemoryCommand {
    /// List documents
    Ls {
        /// Directory (default: all documents)
        #[arg(default_value = "")]
        path: String,
    },
    /// Print a document
    Cat {
        /// Path of the document
        path: String,
        /// An older version
        #[arg(long, value_name = "N")]
        version: Option<u64>,
    },
    /// Write a document from a file or standard input
    Put(PutArgs),
    /// Delete a document with all its versions
    Rm {
        /// Path of the document
        path: String,
        /// Only if this is the current version
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Search documents by words, best match first
    Search(SearchArgs),
    /// List the versions of a document, newest first
    History {
        /// Path of the document
        path: String,
    },
}

#[derive(Debug, Args)]
pub struct PutArgs {
    /// Path of the document
    path: String,
    /// Local file; - or none reads standard input
    file: Option<PathBuf>,
    /// Only if this is the current version
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,
}

#[derive(Debug, Args)]
pub struct SearchArgs {
    /// Words
    #[arg(required = true)]
    words: Vec<String>,
    /// Maximum number of items
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
}

pub(crate) async fn run(command: MemoryCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    match command {
        MemoryCommand::Ls { path } => {
            pages::print_entries(client, ("/api/memory/tree", &[("path", path)]), (ENTRIES, "no documents"), output)
                .await
        }
        MemoryCommand::Cat { path, version } => print(client, path, version, output).await,
        MemoryCommand::Put(args) => put(client, args, output).await,
        MemoryCommand::Rm { path, if_version } => {
            client.delete_if_version("/api/memory", &at(&path), if_version).await?;
            output
                .either(&serde_json::json!({"path": path, "deleted": true}), |_| format!("{} deleted", one_line(&path)))
        }
        MemoryCommand::Search(args) => search(client, args, output).await,
        MemoryCommand::History { path } => {
            let page: Page<MemoryVersion> = client.get("/api/memory/versions", &at(&path)).await?;
            zones::shown(client, output).await;
            let view = View::new(output, &TableArgs::default(), Clock::system().now(), client.user());
            output.either(&page, |_| table(VERSIONS, &page.items, &view))
        }
    }
}

fn at(path: &str) -> [(&'static str, String); 1] {
    [("path", path.to_owned())]
}

/// The entries of a directory.
const ENTRIES: &[Column<MemoryEntry>] = &[
    Column::number("version", |entry, _| entry.version.to_string()),
    Column::number("size", |entry, _| entry.bytes.to_string()),
    Column::text("modified", |entry, view| view.time(entry.updated_at)),
    Column::text("path", |entry, _| one_line(&entry.path)),
];

async fn print(client: &Client, path: String, version: Option<u64>, output: &mut Output) -> Result<(), CliError> {
    let mut query = vec![("path", path)];
    query.extend(version.map(|version| ("version", version.to_string())));
    let document: MemoryDocument = client.get("/api/memory", &query).await?;
    match output.format {
        Format::Json => output.json(&document),
        Format::Text if output.is_live => output.raw(escape_control_chars(&document.content).as_bytes()),
        Format::Text => output.raw(document.content.as_bytes()),
    }
}

async fn put(client: &Client, args: PutArgs, output: &mut Output) -> Result<(), CliError> {
    let content = MemoryContent { content: read(args.file.as_deref().unwrap_or(Path::new("-")))? };
    if args.file.is_none() && content.content.is_empty() {
        return Err(CliError::Usage(
            "standard input is empty; give - as the file to write an empty document".to_owned(),
        ));
    }
    let written: MemoryEntry = client.put_if_version("/api/memory", &at(&args.path), &content, args.if_version).await?;
    output.either(&written, |_| {
        format!("{} (version {}, {} bytes)", one_line(&written.path), written.version, written.bytes)
    })
}

/// Reads a text that a document can hold.
fn read(file: &Path) -> Result<String, CliError> {
    let name = if file == Path::new("-") { "standard input".to_owned() } else { one_line(&file.display().to_string()) };
    let failed = |error| CliError::Usage(format!("{name}: cannot read: {error}"));
    let source: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(file).map_err(failed)?)
    };
    let mut bytes = Vec::new();
    source.take(MAX_MEMORY_DOCUMENT_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > MAX_MEMORY_DOCUMENT_BYTES {
        return Err(CliError::Usage(format!("{name}: is over {MAX_MEMORY_DOCUMENT_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| CliError::Usage(format!("{name}: is not UTF-8 text")))
}

async fn search(client: &Client, args: SearchArgs, output: &mut Output) -> Result<(), CliError> {
    let query = [("q", args.words.join(" ")), ("limit", args.limit.to_string())];
    let page: Page<MemoryMatch> = client.get("/api/memory/search", &query).await?;
    if page.items.is_empty() && output.format == Format::Text {
        output.note("nothing found");
        return Ok(());
    }
    output.either(&page, |paint| matches(paint, &page.items))
}

fn matches(paint: Paint, items: &[MemoryMatch]) -> String {
    let lines =
        items.iter().map(|item| format!("{}\n    {}", paint.bold(&one_line(&item.path)), one_line(&item.snippet)));
    lines.collect::<Vec<_>>().join("\n")
}

/// The versions of a document.
const VERSIONS: &[Column<MemoryVersion>] = &[
    Column::number("version", |item, _| item.version.to_string()),
    Column::number("size", |item, _| item.bytes.to_string()),
    Column::text("written", |item, view| view.time(item.created_at)),
    Column::text("by", |item, _| one_line(&item.by.to_string())),
];

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::exit::Exit;

    #[test]
    fn only_a_text_of_the_permitted_size_is_sent() {
        let written = |bytes: Vec<u8>| {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&bytes).unwrap();
            read(file.path()).map_err(|error| error.exit())
        };
        assert_eq!(written("Grüße\n".into()), Ok("Grüße\n".to_owned()));
        assert_eq!(
            written(vec![b'x'; MAX_MEMORY_DOCUMENT_BYTES]).map(|text| text.len()),
            Ok(MAX_MEMORY_DOCUMENT_BYTES)
        );
        assert_eq!(written(vec![b'x'; MAX_MEMORY_DOCUMENT_BYTES + 1]), Err(Exit::Usage));
        assert_eq!(written(vec![0xff]), Err(Exit::Usage));
        assert_eq!(read(Path::new("/nonexistent/file")).map_err(|error| error.exit()), Err(Exit::Usage));
    }

    #[test]
    fn text_of_documents_cannot_control_the_terminal() {
        let item = MemoryMatch { path: "a".to_owned(), snippet: "\x1b[2J".to_owned(), score: 1.0 };
        assert_eq!(matches(Paint::Plain, &[item]), "a\n    \u{241b}[2J");
    }
}
