//! Lists that the API returns in pages.
//!
//! Owns how pages of a list are read and printed, and the hint at the next page. Never decides what a row shows.

use clap::Args;
use protocol::Page;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Client, zones};
use crate::{
    exit::CliError,
    output::{Column, Format, Output, TableArgs, View, table},
};
use base::clock::Clock;

/// Entries of one request when all are read: the most that the API returns.
const ENTRIES_PER_PAGE: u32 = 200;
/// Items of a page unless another number is given.
pub(crate) const DEFAULT_LIMIT: u32 = 50;

/// Which part of a list is shown, and how.
#[derive(Debug, Clone, Args)]
pub struct PageArgs {
    /// Maximum number of items
    #[arg(long, default_value_t = DEFAULT_LIMIT, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub(crate) limit: u32,
    /// Show all items, however many there are
    #[arg(long, short, conflicts_with = "limit")]
    pub(crate) all: bool,
    /// Cursor of the next page
    #[arg(long)]
    pub(crate) cursor: Option<String>,
    #[command(flatten)]
    pub(crate) table: TableArgs,
}

/// How the items of a list are shown.
pub(crate) struct List<'a, T> {
    /// The columns of the table.
    pub(crate) columns: &'a [Column<T>],
    /// What `--quiet` prints of an item.
    pub(crate) id: fn(&T) -> String,
    /// What is said of a list without items.
    pub(crate) none: Nothing,
}

/// What is said of a list without items.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nothing {
    /// There is no object at all, with how to make one.
    pub(crate) yet: &'static str,
    /// No object matches the filter.
    pub(crate) matches: &'static str,
}

impl Nothing {
    /// Says it, on standard error.
    pub(crate) fn note(self, is_filtered: bool, output: &Output) {
        output.note(&format!("gantry: {}", if is_filtered { self.matches } else { self.yet }));
    }
}

impl<T: DeserializeOwned + Serialize> List<'_, T> {
    /// Prints the list at `url`: as JSON, as one table, or as ids.
    pub(crate) async fn print(
        &self,
        client: &Client,
        (url, filter): (&str, &[(&str, String)]),
        args: &PageArgs,
        output: &mut Output,
    ) -> Result<(), CliError> {
        let Some((items, cursor)) = read(client, (url, filter), args, output).await? else { return Ok(()) };
        if args.table.quiet {
            items.iter().try_for_each(|item| output.line(&(self.id)(item)))?;
        } else if items.is_empty() && cursor.is_none() {
            self.none.note(!filter.is_empty() || args.cursor.is_some(), output);
        } else {
            zones::shown(client, output).await;
            let view = View::new(output, &args.table, Clock::system().now(), client.user());
            let text = table(self.columns, &items, &view);
            output.line(&text)?;
        }
        note_next(cursor.as_deref(), output);
        Ok(())
    }
}

/// Reads a page of the list at `url`, or all of them, with the cursor of the next one. With JSON it prints them as one
/// document, and returns `None`.
pub(crate) async fn read<T: DeserializeOwned + Serialize>(
    client: &Client,
    (url, filter): (&str, &[(&str, String)]),
    args: &PageArgs,
    output: &mut Output,
) -> Result<Option<(Vec<T>, Option<String>)>, CliError> {
    let mut items = Vec::new();
    let mut cursor = args.cursor.clone();
    let limit = if args.all { ENTRIES_PER_PAGE } else { args.limit };
    loop {
        let mut query = filter.to_vec();
        query.push(("limit", limit.to_string()));
        query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let page: Page<T> = client.get(url, &query).await?;
        items.extend(page.items);
        cursor = page.next_cursor;
        if !args.all || cursor.is_none() {
            break;
        }
    }
    if output.format == Format::Json {
        output.json(&Page { items, next_cursor: cursor })?;
        return Ok(None);
    }
    Ok(Some((items, cursor)))
}

#[derive(Deserialize)]
struct EntryPage<T> {
    items: Vec<T>,
    next_cursor: Option<String>,
    /// Of a search that ended before its end.
    #[serde(default)]
    incomplete: bool,
}

/// Passes every page of the list at `url` to `each`. False for a search that has not looked at everything.
pub(crate) async fn for_each<T: DeserializeOwned>(
    client: &Client,
    (url, filter): (&str, &[(&str, String)]),
    mut each: impl FnMut(Vec<T>) -> Result<(), CliError>,
) -> Result<bool, CliError> {
    let (mut cursor, mut is_complete) = (None, true);
    loop {
        let mut query = filter.to_vec();
        query.push(("limit", ENTRIES_PER_PAGE.to_string()));
        query.extend(cursor.take().map(|cursor| ("cursor", cursor)));
        let page: EntryPage<T> = client.get(url, &query).await?;
        is_complete &= !page.incomplete;
        each(page.items)?;
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(is_complete);
        }
    }
}

#[derive(Deserialize)]
struct EventPage {
    items: Vec<Value>,
    next_after: Option<i64>,
}

/// Passes every event of the list at `url` after a position to `each`.
pub(crate) async fn for_each_event(
    client: &Client,
    (url, filter): (&str, &[(&str, String)]),
    mut after: i64,
    mut each: impl FnMut(Value) -> Result<(), CliError>,
) -> Result<(), CliError> {
    loop {
        let mut query = filter.to_vec();
        query.extend([("after", after.to_string()), ("limit", ENTRIES_PER_PAGE.to_string())]);
        let page: EventPage = client.get(url, &query).await?;
        page.items.into_iter().try_for_each(&mut each)?;
        match page.next_after {
            Some(next) if next > after => after = next,
            _ => return Ok(()),
        }
    }
}

/// Prints every entry of the list at `url`: as JSON one by one, or as one table. `none` is said if there is none.
pub(crate) async fn print_entries<T: DeserializeOwned + Serialize>(
    client: &Client,
    (url, filter): (&str, &[(&str, String)]),
    (columns, none): (&[Column<T>], &str),
    output: &mut Output,
) -> Result<(), CliError> {
    let mut items = Vec::new();
    let add = |page: Vec<T>| match output.format {
        Format::Json => page.iter().try_for_each(|entry| output.json(entry)),
        Format::Text => {
            items.extend(page);
            Ok(())
        }
    };
    let is_complete = for_each(client, (url, filter), add).await?;
    if output.format == Format::Text && items.is_empty() {
        output.note(&format!("gantry: {none}"));
    } else if output.format == Format::Text {
        zones::shown(client, output).await;
        let view = View::new(output, &TableArgs::default(), Clock::system().now(), client.user());
        let text = table(columns, &items, &view);
        output.line(&text)?;
    }
    if !is_complete {
        output.note("gantry: there may be more; the search ended before it had looked at everything");
    }
    Ok(())
}

/// Tells how to get the rest of a list, if there is more.
pub(crate) fn note_next(cursor: Option<&str>, output: &Output) {
    if cursor.is_some() {
        output.note("there are more; --all shows them");
    }
}
