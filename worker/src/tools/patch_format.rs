//! Parses the two patch formats that models write, and applies edits to texts.
//!
//! Pure: never accesses a file.

use std::{borrow::Cow, iter};

use agent::safety::neutralize;
use diffy::{
    Patch,
    patch_set::{FileOperation, ParseOptions, PatchKind, PatchSet},
};

use super::line_endings::{TextLine, TextLines, without_ending};

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
    /// The index of the line where it is expected, in a unified diff.
    near: Option<usize>,
    /// Whether the file then ends with a line break, where a unified diff has that at its end.
    final_newline: Option<bool>,
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
    fn of_hunk(hunk: &diffy::Hunk<'a, str>) -> Self {
        let lines = hunk.lines().iter().map(|line| match *line {
            diffy::Line::Context(line) => Line::Context(without_ending(line)),
            diffy::Line::Delete(line) => Line::Removed(without_ending(line)),
            diffy::Line::Insert(line) => Line::Added(without_ending(line)),
        });
        // Only a last line is without a line break, either the old one or the new one.
        let is_last = |line: &diffy::Line<'_, str>| {
            let (diffy::Line::Context(text) | diffy::Line::Delete(text) | diffy::Line::Insert(text)) = line;
            !text.ends_with('\n')
        };
        let new = |line: &diffy::Line<'_, str>| !matches!(line, diffy::Line::Delete(_));
        let new_last = hunk.lines().iter().rev().find(|line| new(line));
        Self {
            lines: lines.collect(),
            near: Some(hunk.new_range().start().saturating_sub(1)),
            final_newline: hunk.lines().iter().any(is_last).then(|| !new_last.is_some_and(is_last)),
            ..Self::default()
        }
    }

    /// The lines that the file must contain.
    fn expected(&self) -> Vec<&'a str> {
        let expected = |line: &Line<'a>| match line {
            Line::Context(text) | Line::Removed(text) => Some(*text),
            Line::Added(_) => None,
        };
        self.lines.iter().filter_map(expected).collect()
    }

    /// The replacement for `found`, which are the expected lines as spelled in the file. The lines that are added where
    /// others are removed replace these one by one.
    fn replacement(&self, found: &[TextLine<'a>]) -> Vec<TextLine<'a>> {
        let mut found = found.iter();
        let mut lines = Vec::new();
        let is_context = |line: &Line<'_>| matches!(line, Line::Context(_));
        for run in self.lines.chunk_by(|one, next| is_context(one) == is_context(next)) {
            let expected = run.iter().filter(|line| !matches!(line, Line::Added(_))).count();
            let mut old = found.by_ref().take(expected);
            for line in run {
                match line {
                    Line::Context(_) => lines.extend(old.next().copied().map(TextLine::edited)),
                    Line::Removed(_) => {}
                    Line::Added(text) => lines.push(TextLine::new(text).in_place_of(old.next())),
                }
            }
            old.for_each(drop);
        }
        lines
    }

    /// The index of the first of the expected lines, in `lines` from `cursor` on; in a unified diff, in all of them.
    fn position(&self, lines: &[TextLine<'a>], cursor: usize) -> Result<usize, String> {
        let expected = self.expected();
        let found = |found: Option<usize>| found.ok_or_else(|| not_found(&expected));
        let last = lines.len().checked_sub(expected.len());
        if let Some(near) = self.near {
            let near = near.min(lines.len());
            let by_distance = (0..=lines.len())
                .flat_map(|distance| [near.checked_sub(distance), near.checked_add(distance)].into_iter().flatten())
                .filter(|at| last.is_some_and(|last| *at <= last));
            return found(find(lines, &expected, &by_distance));
        }
        let mut from = cursor;
        if let Some(anchor) = self.anchor {
            let at = lines.iter().skip(from).position(|line| line.content.trim() == anchor);
            from += at.ok_or_else(|| format!("line {anchor:?} not found"))? + 1;
        }
        if expected.is_empty() {
            return Ok(if self.anchor.is_some() && !self.at_end { from } else { lines.len() });
        }
        let Some(last) = last else { return found(None) };
        found(find(lines, &expected, &(if self.at_end { last.max(from) } else { from }..=last)))
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
            Self::Unified(patch) => {
                let sections: Vec<_> = patch.hunks().iter().map(Section::of_hunk).collect();
                apply_sections(text, &sections)
            }
            Self::Sections(sections) => apply_sections(text, sections),
        }
    }
}

fn apply_sections<'a>(text: &'a str, sections: &[Section<'a>]) -> Result<String, String> {
    let mut text = TextLines::split(text);
    let mut cursor = 0;
    for section in sections {
        let at = section.position(&text.lines, cursor)?;
        let end = at + section.expected().len();
        if end == text.lines.len() {
            text.has_final_newline = section.final_newline.unwrap_or(text.has_final_newline);
        }
        let replacement = section.replacement(&text.lines[at..end]);
        cursor = at + replacement.len();
        text.lines.splice(at..end, replacement);
    }
    Ok(text.join())
}

fn not_found(expected: &[&str]) -> String {
    let first = expected.first().copied().unwrap_or_default();
    format!("the lines starting with {first:?} were not found: read the file and correct them")
}

/// The first of `positions` with the expected lines: first exactly, then ignoring trailing white space, then ignoring
/// leading and trailing white space, then as the model read them, which is neutralized. Lines that were edited are not
/// found again.
fn find(lines: &[TextLine<'_>], expected: &[&str], positions: &(impl Iterator<Item = usize> + Clone)) -> Option<usize> {
    let same: [fn(&str, &str) -> bool; 4] = [
        |a, b| a == b,
        |a, b| a.trim_end() == b.trim_end(),
        |a, b| a.trim() == b.trim(),
        |a, b| neutralize(a) == neutralize(b),
    ];
    same.iter().find_map(|same| {
        positions
            .clone()
            .find(|at| iter::zip(&lines[*at..], expected).all(|(line, old)| !line.is_edited && same(line.content, old)))
    })
}

#[cfg(test)]
mod tests;
