//! Entries of a workspace whose names have a text in them.
//!
//! Bounded in entries and time, and reports whether it has looked at all of them. Follows no link and reads no file.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    time::Duration,
};

use protocol::{JobId, WorkspacePath};
use tokio_util::sync::CancellationToken;

use super::{
    Cutoff, DirPage, FileError, Workspaces,
    dir::{Metadata, walk::Walk},
    files::{file_entry, open_descendant},
};

/// Entries that are looked at.
const MAX_ENTRIES: u64 = 200_000;
/// Time for a search.
const TIMEOUT: Duration = Duration::from_secs(2);
/// A longer path cannot be asked for, so it is left out.
const MAX_PATH_BYTES: u64 = 4_095;

/// What is searched for.
#[derive(Debug)]
pub struct NameSearch<'a> {
    /// A part of the name, in any case.
    pub text: &'a str,
    /// Only paths that sort after this one.
    pub after: Option<&'a OsStr>,
    /// Maximum number of entries.
    pub limit: usize,
}

impl Workspaces {
    /// Finds entries below a directory by their names, the first ones by path.
    pub fn search(
        &self,
        job: JobId,
        path: &WorkspacePath,
        search: &NameSearch<'_>,
        cancelled: &CancellationToken,
    ) -> Result<DirPage, FileError> {
        let dir = match self.open(job).and_then(|top| Ok(open_descendant(&top, path.components())?)) {
            Err(FileError::NotFound) if path.is_root() => return Ok(DirPage::EMPTY),
            other => other?,
        };
        let walk = Walk::new(dir, MAX_ENTRIES).with_cutoff(Cutoff::after(TIMEOUT, cancelled));
        find(walk, path, search)
    }
}

fn find(mut walk: Walk, path: &WorkspacePath, search: &NameSearch<'_>) -> Result<DirPage, FileError> {
    let text = search.text.to_lowercase();
    // The first ones only; one more than the page tells whether there is a next one.
    let mut first: BTreeMap<Vec<u8>, Metadata> = BTreeMap::new();
    let prefix_bytes = path.join(b"").len() as u64;
    let mut is_complete = true;
    loop {
        let entry = match walk.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(FileError::TooLarge(_) | FileError::TimedOut) => {
                is_complete = false;
                break;
            }
            Err(error) => return Err(error),
        };
        if !entry.name.to_string_lossy().to_lowercase().contains(&text) {
            continue;
        }
        if prefix_bytes + walk.path_bytes(&entry.name) > MAX_PATH_BYTES {
            is_complete = false;
            continue;
        }
        let found = path.join(walk.current_path().join(&entry.name).as_os_str().as_bytes());
        if search.after.is_none_or(|after| found.as_slice() > after.as_bytes()) {
            first.insert(found, entry.metadata);
            if first.len() > search.limit + 1 {
                first.pop_last();
            }
        }
    }
    let has_more = first.len() > search.limit;
    if has_more {
        first.pop_last();
    }
    let last = first.last_key_value().filter(|_| has_more);
    let next_after = last.map(|(path, _)| OsString::from_vec(path.clone()));
    let entries = first.iter().map(|(path, metadata)| file_entry(path, metadata)).collect();
    Ok(DirPage { entries, next_after, is_complete: is_complete && !walk.has_missed_entries })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, time::Instant};

    use super::*;

    struct Fixture {
        _root: tempfile::TempDir,
        workspaces: Workspaces,
    }

    const JOB: JobId = JobId::nil();

    impl Fixture {
        fn with(names: &[&str]) -> Self {
            let root = tempfile::tempdir().unwrap();
            let workspaces = Workspaces::new(root.path().join("w"));
            workspaces.create(JOB, &[]).unwrap();
            for name in names {
                let path = workspaces.path(JOB).join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "x").unwrap();
            }
            Self { _root: root, workspaces }
        }

        fn page(&self, path: &str, text: &str, after: Option<&OsStr>) -> DirPage {
            let search = NameSearch { text, after, limit: 2 };
            let path = WorkspacePath::parse_for_list(path).unwrap();
            self.workspaces.search(JOB, &path, &search, &CancellationToken::new()).unwrap()
        }

        /// All paths, page by page.
        fn paths(&self, path: &str, text: &str) -> Vec<String> {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = self.page(path, text, after.as_deref());
                assert!(page.is_complete && page.entries.len() <= 2);
                found.extend(page.entries.into_iter().map(|entry| entry.path));
                after = page.next_after;
                if after.is_none() {
                    return found;
                }
            }
        }

        fn find_within(&self, max_entries: u64, cutoff: Cutoff) -> DirPage {
            let walk = Walk::new(self.workspaces.open(JOB).unwrap(), max_entries).with_cutoff(cutoff);
            let all = WorkspacePath::parse_for_list("").unwrap();
            find(walk, &all, &NameSearch { text: "a", after: None, limit: 200 }).unwrap()
        }
    }

    #[test]
    fn names_are_found_in_any_case_page_by_page_and_links_lead_nowhere() {
        let fixture = Fixture::with(&["src/Parser.rs", "src/sub/parser_test.rs", "a/PARSER", "other", "parsers/x"]);
        symlink("/etc", fixture.workspaces.path(JOB).join("parser-link")).unwrap();
        let all = ["a/PARSER", "parser-link", "parsers", "src/Parser.rs", "src/sub/parser_test.rs"];
        assert_eq!(fixture.paths("", "parser"), all);
        assert_eq!(fixture.paths("src", "PARSER"), ["src/Parser.rs", "src/sub/parser_test.rs"]);
        assert_eq!(fixture.paths("", "passwd"), [""; 0]);
        assert_eq!(fixture.paths("", "sr"), ["src"], "by the name, not by the path");
    }

    #[test]
    fn a_search_that_ends_early_is_not_complete() {
        let names: Vec<_> = (0..600).map(|n| format!("a{n}")).collect();
        let fixture = Fixture::with(&names.iter().map(String::as_str).collect::<Vec<_>>());
        let cut = fixture.find_within(100, Cutoff::default());
        assert_eq!((cut.entries.len(), cut.is_complete), (100, false));
        let late = Cutoff { deadline: Some(Instant::now()), ..Cutoff::default() };
        let cut = fixture.find_within(MAX_ENTRIES, late);
        assert!(cut.entries.len() < 600 && !cut.is_complete, "{}", cut.entries.len());
        let whole = fixture.find_within(MAX_ENTRIES, Cutoff::default());
        assert_eq!((whole.entries.len(), whole.next_after.is_some(), whole.is_complete), (200, true, true));
    }
}
