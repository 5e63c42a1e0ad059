//! The part of a document that is shown for a match.

use std::collections::VecDeque;

use super::{
    query::MemoryQuery,
    words::{WordKind, fold, words},
};

/// Length of a snippet, in bytes of the document.
const SNIPPET_BYTES: usize = 240;
/// What is shown before the first word that matches.
const LEAD_BYTES: usize = 60;
/// Maximum number of matches that are read: the best part of a document is rarely behind these.
const MAX_MATCHES: usize = 100;
/// Words that share this many bytes at their beginning may have the same stem.
const MIN_STEM_BYTES: usize = 3;
/// Longest ending that a stem may lack, such as `-ations`.
const MAX_ENDING_BYTES: usize = 6;

/// A word of the document that matches a word of the query.
#[derive(Clone, Copy)]
struct Hit {
    at: usize,
    word: usize,
}

/// The part of `content` with the most different words of the query, on one line.
pub fn snippet(content: &str, query: &MemoryQuery) -> String {
    let start = best_start(&hits(content, query));
    let lead = content.floor_char_boundary(start.saturating_sub(LEAD_BYTES));
    // Begins with a whole word where there is one.
    let whole = content[lead..start].find(char::is_whitespace).map_or(lead, |at| lead + at);
    let from = if lead == 0 { 0 } else { whole };
    let to = content.floor_char_boundary((from + SNIPPET_BYTES).min(content.len()));
    let shown: Vec<&str> = content[from..to].split(|c: char| c.is_whitespace() || c.is_control()).collect();
    let text = shown.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ");
    let (before, after) = (if from > 0 { "…" } else { "" }, if to < content.len() { "…" } else { "" });
    format!("{before}{text}{after}")
}

fn hits(content: &str, query: &MemoryQuery) -> Vec<Hit> {
    let wanted = &query.words;
    let first_is_enough = wanted.iter().filter(|(kind, _)| *kind != WordKind::Suffix).count() == 1;
    let begins = first_bytes(wanted);
    let bytes = content.as_bytes();
    let (mut hits, mut at) = (vec![], 0);
    while at < bytes.len() && hits.len() < MAX_MATCHES {
        if first_is_enough && !hits.is_empty() {
            break;
        }
        // Most bytes begin no word of the query: they are skipped without reading the word.
        let is_inside = at > 0 && bytes[at].is_ascii() && bytes[at - 1].is_ascii_alphanumeric();
        if is_inside || !begins[usize::from(bytes[at])] {
            at += 1;
            continue;
        }
        let Some(word) = words(&content[at..]).next() else { break };
        let start = at + word.range.start;
        at += word.range.end;
        let text = &content[start..at];
        let folded = fold(word.kind, text);
        for (index, (kind, wanted)) in wanted.iter().enumerate() {
            let place = match kind {
                WordKind::Spaced => (word.kind == *kind && may_share_stem(&folded, wanted)).then_some(0),
                WordKind::Unspaced => folded.find(wanted.as_str()).map(|found| folded[..found].chars().count()),
                WordKind::Suffix => None,
            };
            if let Some(characters) = place {
                let offset = text.char_indices().nth(characters).map_or(0, |(offset, _)| offset);
                hits.push(Hit { at: start + offset, word: index });
            }
        }
    }
    // Several words of the query may be in one run.
    hits.sort_unstable_by_key(|hit| hit.at);
    hits
}

/// The bytes that a word of the query may begin with: ASCII in either case, and the first byte of any other character,
/// which may lose an accent.
fn first_bytes(wanted: &[(WordKind, String)]) -> [bool; 256] {
    let mut begins = [false; 256];
    begins[0xc0..].fill(true);
    for initial in wanted.iter().filter_map(|(_, word)| word.bytes().next()) {
        begins[usize::from(initial.to_ascii_lowercase())] = true;
        begins[usize::from(initial.to_ascii_uppercase())] = true;
    }
    begins
}

/// The index compares stems, which it does not tell: an equal beginning is close enough for a snippet.
fn may_share_stem(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let shared = one.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    let (shorter, longer) = (one.len().min(other.len()), one.len().max(other.len()));
    shared >= MIN_STEM_BYTES && shared + 1 >= shorter && longer - shared <= MAX_ENDING_BYTES
}

/// Where the part with the most different words begins; 0 without a match.
fn best_start(hits: &[Hit]) -> usize {
    let mut window: VecDeque<Hit> = VecDeque::new();
    let (mut start, mut most) = (0, 0);
    for hit in hits {
        window.push_back(*hit);
        while window.front().is_some_and(|first| hit.at - first.at > SNIPPET_BYTES - LEAD_BYTES) {
            window.pop_front();
        }
        let mut different: Vec<usize> = window.iter().map(|hit| hit.word).collect();
        different.sort_unstable();
        different.dedup();
        if different.len() > most {
            (start, most) = (window.front().map_or(0, |first| first.at), different.len());
        }
    }
    start
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn shown(content: &str, query: &str) -> String {
        snippet(content, &MemoryQuery::parse(query).unwrap())
    }

    #[rstest]
    #[case("short\n\ttext", "text", "short text")]
    #[case("", "text", "")]
    #[case("no such word", "zebra", "no such word")]
    fn a_short_document_is_shown_on_one_line(#[case] content: &str, #[case] query: &str, #[case] expected: &str) {
        assert_eq!(shown(content, query), expected);
    }

    #[rstest]
    #[case::exact("Deploys happen on Friday", "deploys")]
    #[case::stem("Deployment happens on Friday", "deploy")]
    #[case::stem_of_the_query("We deploy on Friday", "deployments")]
    #[case::accent("Le Café ferme", "cafe")]
    #[case::inside_a_run("我们的机器学习计划", "学习")]
    #[case::twice_in_a_run("我们的机器学习计划", "计划 机器")]
    fn the_matching_part_of_a_long_document_is_shown(#[case] part: &str, #[case] query: &str) {
        let filler = "lorem ipsum ".repeat(100);
        let text = shown(&format!("{filler}{part}. {filler}"), query);
        assert!(text.contains(part) && text.starts_with('…') && text.ends_with('…'), "{text}");
        assert!(text.len() <= SNIPPET_BYTES + 2 * '…'.len_utf8(), "{text}");
    }

    #[test]
    fn the_part_with_the_most_words_is_shown() {
        let filler = "lorem ipsum ".repeat(50);
        let content = format!("red. {filler} red and green. {filler} green. {filler} red, green and blue! {filler}");
        assert!(shown(&content, "blue green red").contains("red, green and blue!"));
    }

    proptest! {
        #[test]
        fn any_document_and_any_query_have_a_snippet(content in "(\\PC|\n){0,600}", query in "[a-z 東京]{1,20}") {
            let Ok(query) = MemoryQuery::parse(&query) else { return Ok(()) };
            prop_assert!(!snippet(&content, &query).contains('\n'));
        }
    }
}
