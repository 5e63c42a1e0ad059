//! Parses the two patch formats that models write, and applies edits to texts.
//!
//! Pure: never accesses a file.

use std::borrow::Cow;

use agent::safety::neutralize;
use diffy::{
    Patch,
    patch_set::{FileOperation, ParseOptions, PatchKind, PatchSet},
};

const BEGIN: &str = "*** Begin Patch";
const END: &str = "*** End Patch";
const END_OF_FILE: &str = "*** End of File";

/// One file's part of a patch.
#[derive(Debug)]
pub(crate) enum Edit<'a> {
    /// Creates a file.
    Add {
        /// The path of the file.
        path: String,
        /// The content of the file.
        content: String,
    },
    /// Deletes a file.
    Delete {
        /// The path of the file.
        path: String,
    },
    /// Changes a file and optionally renames it.
    Update {
        /// The path of the file.
        path: String,
        /// The new path.
        to: Option<String>,
        /// The change of its content.
        change: Change<'a>,
    },
}

/// The change of a file's content.
#[derive(Debug)]
pub(crate) enum Change<'a> {
    /// Located by line numbers and context.
    Unified(Patch<'a, str>),
    /// Located by context only.
    Sections(Vec<Section<'a>>),
}

/// A block of context, removed and added lines.
#[derive(Debug, Default)]
pub(crate) struct Section<'a> {
    anchor: Option<&'a str>,
    lines: Vec<Line<'a>>,
    at_end: bool,
}

/// A line of a section.
#[derive(Debug, Clone, Copy)]
enum Line<'a> {
    /// Stays as it is in the file, whose white space may differ from the patch.
    Context(&'a str),
    Removed(&'a str),
    Added(&'a str),
}

impl<'a> Section<'a> {
    /// The lines of a unified diff, without their line breaks.
    fn of_hunk(hunk: &diffy::Hunk<'a, str>) -> Self {
        let text = |line: &'a str| line.strip_suffix('\n').unwrap_or(line);
        let lines = hunk.lines().iter().map(|line| match *line {
            diffy::Line::Context(line) => Line::Context(text(line)),
            diffy::Line::Delete(line) => Line::Removed(text(line)),
            diffy::Line::Insert(line) => Line::Added(text(line)),
        });
        Self { lines: lines.collect(), ..Self::default() }
    }

    /// The lines that the file must contain.
    fn expected(&self) -> Vec<&'a str> {
        let expected = |line: &Line<'a>| match line {
            Line::Context(text) | Line::Removed(text) => Some(*text),
            Line::Added(_) => None,
        };
        self.lines.iter().filter_map(expected).collect()
    }

    /// The replacement for `found`, which are the expected lines as spelled in the file.
    fn replacement(&self, found: &[&'a str]) -> Vec<&'a str> {
        let mut found = found.iter();
        let mut lines = Vec::new();
        for line in &self.lines {
            match line {
                Line::Context(_) => lines.extend(found.next()),
                Line::Removed(_) => {
                    found.next();
                }
                Line::Added(text) => lines.push(*text),
            }
        }
        lines
    }
}

/// Parses a patch in either format.
pub(crate) fn parse(patch: &str) -> Result<Vec<Edit<'_>>, String> {
    let edits = match patch.trim_start().strip_prefix(BEGIN) {
        Some(body) => parse_sections(body)?,
        None => parse_unified(patch)?,
    };
    if edits.is_empty() {
        return Err("the patch is empty: provide a unified diff or `*** Begin Patch`".to_owned());
    }
    Ok(edits)
}

fn parse_unified(patch: &str) -> Result<Vec<Edit<'_>>, String> {
    let git = patch.lines().any(|line| line.starts_with("diff --git "));
    let options = if git { ParseOptions::gitdiff() } else { ParseOptions::unidiff() };
    let mut edits = Vec::new();
    for file in PatchSet::parse(patch, options) {
        let file = file.map_err(|error| format!("invalid patch: {error}"))?;
        let operation = file.operation().clone();
        let PatchKind::Text(change) = file.into_patch() else {
            return Err("binary patches are not supported".to_owned());
        };
        edits.push(unified_edit(&operation, change)?);
    }
    Ok(edits)
}

fn unified_edit<'a>(operation: &FileOperation<'_, str>, change: Patch<'a, str>) -> Result<Edit<'a>, String> {
    let plain = |path: &Cow<'_, str>, prefix: &str| path.strip_prefix(prefix).unwrap_or(path).to_owned();
    Ok(match operation {
        FileOperation::Create(path) => {
            let content = diffy::apply("", &change).map_err(|error| format!("{path}: {error}"))?;
            Edit::Add { path: plain(path, "b/"), content }
        }
        FileOperation::Delete(path) => Edit::Delete { path: plain(path, "a/") },
        FileOperation::Modify { original, modified } => {
            let prefixed = original.starts_with("a/") && modified.starts_with("b/");
            let (from, to) = if prefixed { ("a/", "b/") } else { ("", "") };
            let (path, to) = (plain(original, from), plain(modified, to));
            // The old name may be a backup copy (`--- file.orig`): only git diffs can rename.
            let path = if path == to { path } else { to };
            Edit::Update { path, to: None, change: Change::Unified(change) }
        }
        FileOperation::Rename { from, to } => {
            Edit::Update { path: from.to_string(), to: Some(to.to_string()), change: Change::Unified(change) }
        }
        FileOperation::Copy { .. } => return Err("copies are not supported; add the new file instead".to_owned()),
    })
}

fn parse_sections(body: &str) -> Result<Vec<Edit<'_>>, String> {
    let mut edits: Vec<Edit<'_>> = Vec::new();
    for line in body.lines() {
        if line.trim_end() == END {
            return Ok(edits);
        }
        if let Some(header) = line.strip_prefix("*** ").filter(|_| line.trim_end() != END_OF_FILE) {
            file_header(header.trim_end(), &mut edits)?;
            continue;
        }
        match edits.last_mut() {
            Some(Edit::Add { content, .. }) => {
                let text = line.strip_prefix('+').ok_or("each line of an added file must start with +")?;
                content.push_str(text);
                content.push('\n');
            }
            Some(Edit::Update { change: Change::Sections(sections), .. }) => section_line(line, sections)?,
            _ if line.trim().is_empty() => {}
            _ => {
                return Err(format!("the line {line:?} does not belong to a file; start with `*** Update File: path`"));
            }
        }
    }
    Err(format!("the patch does not end with `{END}`"))
}

fn file_header<'a>(header: &'a str, edits: &mut Vec<Edit<'a>>) -> Result<(), String> {
    if let Some(path) = header.strip_prefix("Add File: ") {
        edits.push(Edit::Add { path: path.to_owned(), content: String::new() });
    } else if let Some(path) = header.strip_prefix("Delete File: ") {
        edits.push(Edit::Delete { path: path.to_owned() });
    } else if let Some(path) = header.strip_prefix("Update File: ") {
        edits.push(Edit::Update { path: path.to_owned(), to: None, change: Change::Sections(Vec::new()) });
    } else if let (Some(path), Some(Edit::Update { to, .. })) = (header.strip_prefix("Move to: "), edits.last_mut()) {
        *to = Some(path.to_owned());
    } else {
        return Err(format!("unknown header `*** {header}`"));
    }
    Ok(())
}

fn section_line<'a>(line: &'a str, sections: &mut Vec<Section<'a>>) -> Result<(), String> {
    if let Some(anchor) = line.strip_prefix("@@") {
        let anchor = Some(anchor.trim()).filter(|anchor| !anchor.is_empty());
        sections.push(Section { anchor, ..Section::default() });
        return Ok(());
    }
    if sections.is_empty() {
        sections.push(Section::default());
    }
    let Some(section) = sections.last_mut() else { return Ok(()) };
    if line.trim_end() == END_OF_FILE {
        section.at_end = true;
        return Ok(());
    }
    match (line.chars().next(), line.get(1..)) {
        // An empty line of context often comes without its leading space.
        (None, _) => section.lines.push(Line::Context("")),
        (Some(' '), Some(text)) => section.lines.push(Line::Context(text)),
        (Some('-'), Some(text)) => section.lines.push(Line::Removed(text)),
        (Some('+'), Some(text)) => section.lines.push(Line::Added(text)),
        _ => return Err(format!("the line {line:?} must start with a space, - or +")),
    }
    Ok(())
}

impl Change<'_> {
    /// Applies the change to `text`.
    pub(crate) fn apply(&self, text: &str) -> Result<String, String> {
        match self {
            Self::Unified(patch) => diffy::apply(text, patch)
                .or_else(|error| apply_to_neutralized(text, patch).ok_or(error))
                .map_err(|error| format!("{error}: read the file and correct the context")),
            Self::Sections(sections) => apply_sections(text, sections),
        }
    }
}

/// Applies a diff whose context was copied from the neutralized text. `None`: the text has nothing to neutralize, or
/// the context differs in another way.
fn apply_to_neutralized(text: &str, patch: &Patch<'_, str>) -> Option<String> {
    if neutralize(text) == text {
        return None;
    }
    let sections: Vec<_> = patch.hunks().iter().map(Section::of_hunk).collect();
    apply_sections(text, &sections).ok()
}

fn apply_sections<'a>(text: &'a str, sections: &[Section<'a>]) -> Result<String, String> {
    let final_newline = text.is_empty() || text.ends_with('\n');
    let body = text.strip_suffix('\n').unwrap_or(text);
    let lines: Vec<&str> = if text.is_empty() { Vec::new() } else { body.split('\n').collect() };
    let (mut result, mut cursor): (Vec<&str>, usize) = (Vec::new(), 0);
    for section in sections {
        let mut from = cursor;
        if let Some(anchor) = section.anchor {
            let at = lines.iter().skip(from).position(|line| line.trim() == anchor);
            let at = at.ok_or_else(|| format!("line {anchor:?} not found"))?;
            from += at + 1;
        }
        let expected = section.expected();
        let at = if expected.is_empty() {
            if section.anchor.is_some() && !section.at_end { from } else { lines.len() }
        } else {
            find(&lines, &expected, from, section.at_end).ok_or_else(|| not_found(&expected))?
        };
        let end = at + expected.len();
        result.extend_from_slice(&lines[cursor..at]);
        result.extend(section.replacement(&lines[at..end]));
        cursor = end;
    }
    result.extend_from_slice(&lines[cursor..]);
    let mut text = result.join("\n");
    if final_newline && !result.is_empty() {
        text.push('\n');
    }
    Ok(text)
}

fn not_found(expected: &[&str]) -> String {
    format!("the lines starting with {:?} were not found: read the file and correct them", expected[0])
}

/// Finds the lines: first exactly, then ignoring trailing white space, then ignoring leading and trailing white space,
/// then as the model read them, which is neutralized.
fn find(lines: &[&str], expected: &[&str], from: usize, at_end: bool) -> Option<usize> {
    let last = lines.len().checked_sub(expected.len())?;
    let from = if at_end { last.max(from) } else { from };
    let same: [fn(&str, &str) -> bool; 4] = [
        |a, b| a == b,
        |a, b| a.trim_end() == b.trim_end(),
        |a, b| a.trim() == b.trim(),
        |a, b| neutralize(a) == neutralize(b),
    ];
    same.iter()
        .find_map(|same| (from..=last).find(|at| lines[*at..].iter().zip(expected).all(|(line, old)| same(line, old))))
}

#[cfg(test)]
mod tests;
