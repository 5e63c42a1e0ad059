//! Lists that the API returns in pages.
//!
//! Owns how all pages of a list are read and printed, and the hint at the next page. Never decides what a row shows.

use comfy_table::{CellAlignment, Table, presets};
use protocol::Page;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    client::Client,
    exit::CliError,
    output::{Format, Output, Paint},
};

/// Entries of one request: the most that the API returns.
const ENTRIES_PER_PAGE: &str = "200";

/// The columns of a list.
pub(super) struct Columns<T, const N: usize> {
    /// Their names.
    pub(super) names: [&'static str; N],
    /// The cells of an item.
    pub(super) cells: fn(&T) -> [String; N],
    /// The columns with numbers.
    pub(super) numbers: &'static [usize],
}

impl<T, const N: usize> Columns<T, N> {
    /// A table without rows.
    pub(super) fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(self.names);
        for number in self.numbers {
            if let Some(column) = table.column_mut(*number) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }
}

/// Prints every entry at `path` of the list at `url`: as JSON page by page, or as one table.
pub(super) async fn print_all<T: DeserializeOwned + Serialize, const N: usize>(
    client: &Client,
    (url, path): (&str, &str),
    columns: &Columns<T, N>,
    output: &mut Output,
) -> Result<(), CliError> {
    let mut table = columns.table();
    let mut cursor = None;
    loop {
        let mut query = vec![("path", path.to_owned()), ("limit", ENTRIES_PER_PAGE.to_owned())];
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let page: Page<T> = client.get(url, &query).await?;
        for entry in &page.items {
            match output.format {
                Format::Json => output.json(entry)?,
                Format::Text => drop(table.add_row((columns.cells)(entry))),
            }
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if output.format == Format::Text {
        output.line(&table.trim_fmt())?;
    }
    Ok(())
}

/// How to get the next page, as the last line of a table.
pub(super) fn next_page<T>(page: &Page<T>, paint: Paint) -> String {
    page.next_cursor.as_ref().map(|cursor| paint.dim(&format!("\nmore: --cursor {cursor}"))).unwrap_or_default()
}
