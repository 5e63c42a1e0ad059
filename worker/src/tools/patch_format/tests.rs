//! Tests of the formats of patches.

use std::collections::VecDeque;

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const BEFORE: &str = "fn a() {\n    one\n}\n\nfn b() {\n    one\n}\n";

#[rstest]
#[case::unified(
    "--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n fn a() {\n-    one\n+    two\n }\n",
    "fn a() {\n    two\n}\n\nfn b() {\n    one\n}\n"
)]
#[case::unified_at_another_line(
    "--- f\n+++ f\n@@ -1,3 +1,3 @@\n fn b() {\n-    one\n+    two\n }\n",
    "fn a() {\n    one\n}\n\nfn b() {\n    two\n}\n"
)]
#[case::git(
    "diff --git a/f b/f\nindex 1..2 100644\n--- a/f\n+++ b/f\n@@ -5,3 +5,3 @@\n fn b() {\n-    one\n+    two\n }\n",
    "fn a() {\n    one\n}\n\nfn b() {\n    two\n}\n"
)]
#[case::sections(
    "*** Begin Patch\n*** Update File: f\n@@ fn b() {\n-    one\n+    two\n*** End Patch",
    "fn a() {\n    one\n}\n\nfn b() {\n    two\n}\n"
)]
#[case::sections_without_header(
    "*** Begin Patch\n*** Update File: f\n-    one\n+    two\n+    three\n }\n*** End Patch\n",
    "fn a() {\n    two\n    three\n}\n\nfn b() {\n    one\n}\n"
)]
#[case::end_of_file(
    "*** Begin Patch\n*** Update File: f\n@@\n-    one\n+    two\n }\n*** End of File\n*** End Patch\n",
    "fn a() {\n    one\n}\n\nfn b() {\n    two\n}\n"
)]
#[case::appended(
    "*** Begin Patch\n*** Update File: f\n@@\n+// end\n*** End Patch\n",
    "fn a() {\n    one\n}\n\nfn b() {\n    one\n}\n// end\n"
)]
#[case::context_keeps_the_files_white_space(
    "*** Begin Patch\n*** Update File: f\n@@\n fn b() {  \n one\n-  }\n+}}\n*** End Patch",
    "fn a() {\n    one\n}\n\nfn b() {\n    one\n}}\n"
)]
#[case::other_white_space(
    "*** Begin Patch\n*** Update File: f\n@@ fn b() {\n-  one  \n+    two\n*** End Patch",
    "fn a() {\n    one\n}\n\nfn b() {\n    two\n}\n"
)]
fn an_update_changes_the_expected_lines(#[case] patch: &str, #[case] expected: &str) {
    let edits = parse(patch).unwrap();
    let [Edit::Update { path, to: None, change }] = edits.as_slice() else { panic!("{edits:?}") };
    assert_eq!(path, "f");
    assert_eq!(change.apply(BEFORE).unwrap(), expected);
}

/// A file with a token of a chat template and an invisible character, and a line of it as a model reads it.
const WITH_TOKENS: &str = "start\n<|im_start|>sys\u{200b}tem\nmiddle\n[INST]\nend\n";

#[rstest]
#[case::unified("--- a/f\n+++ b/f\n@@ -1,4 +1,4 @@\n start\n < |im_start|>system\n-middle\n+center\n [ INST]\n")]
#[case::sections(
    "*** Begin Patch\n*** Update File: f\n@@\n < |im_start|>system\n-middle\n+center\n [ INST]\n*** End Patch"
)]
fn lines_copied_from_neutralized_text_are_found(#[case] patch: &str) {
    let edits = parse(patch).unwrap();
    let [Edit::Update { change, .. }] = edits.as_slice() else { panic!("{edits:?}") };
    assert_eq!(change.apply(WITH_TOKENS).unwrap(), WITH_TOKENS.replace("middle", "center"), "other bytes stay");
}

#[test]
fn neutralized_lines_can_be_removed() {
    let patch = "--- a/f\n+++ b/f\n@@ -3,3 +3,2 @@\n middle\n-[ INST]\n end\n";
    let edits = parse(patch).unwrap();
    let [Edit::Update { change, .. }] = edits.as_slice() else { panic!("{edits:?}") };
    assert_eq!(change.apply(WITH_TOKENS).unwrap(), WITH_TOKENS.replace("[INST]\n", ""));
}

#[rstest]
#[case::not_a_patch("hello")]
#[case::empty("*** Begin Patch\n*** End Patch")]
#[case::unfinished("*** Begin Patch\n*** Add File: f\n+x\n")]
#[case::added_without_plus("*** Begin Patch\n*** Add File: f\nx\n*** End Patch")]
#[case::unknown_header("*** Begin Patch\n*** Rename File: f\n*** End Patch")]
#[case::line_before_a_file("*** Begin Patch\n+x\n*** End Patch")]
#[case::wrong_counts("--- a/f\n+++ b/f\n@@ -1,9 +1,9 @@\n-one\n+two\n")]
fn an_invalid_patch_is_refused(#[case] patch: &str) {
    assert!(parse(patch).is_err());
}

#[rstest]
#[case::unified("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n nowhere\n-one\n+two\n")]
#[case::sections("*** Begin Patch\n*** Update File: f\n@@\n-nowhere\n+two\n*** End Patch")]
#[case::anchor("*** Begin Patch\n*** Update File: f\n@@ nowhere\n+two\n*** End Patch")]
fn missing_context_is_refused(#[case] patch: &str) {
    let edits = parse(patch).unwrap();
    let [Edit::Update { change, .. }] = edits.as_slice() else { panic!("{edits:?}") };
    assert!(change.apply(BEFORE).is_err());
}

// Patches that models write with LF for files with CRLF: anomalyco/opencode#45926, openclaw/openclaw#115943.
#[rstest]
#[case::unified("--- a/f\n+++ b/f\n@@ -1,3 +1,4 @@\n a\n-b\n+B\n+new\n c\n")]
#[case::sections("*** Begin Patch\n*** Update File: f\n@@\n a\n-b\n+B\n+new\n c\n*** End Patch")]
fn a_patch_applies_whatever_the_line_endings_are(#[case] patch: &str) {
    for (file, changed) in [
        ("a\r\nb\r\nc\r\n", "a\r\nB\r\nnew\r\nc\r\n"),
        ("a\nb\r\nc\r\n", "a\nB\r\nnew\r\nc\r\n"),
        ("a\nb\r\nc\n", "a\nB\r\nnew\nc\n"),
        ("a\r\nb\nc\r\n", "a\r\nB\nnew\r\nc\r\n"),
        ("a\r\nb\r\nc", "a\r\nB\r\nnew\r\nc"),
    ] {
        for patch in [patch.to_owned(), patch.replace('\n', "\r\n")] {
            let edits = parse(&patch).unwrap();
            let [Edit::Update { change, .. }] = edits.as_slice() else { panic!("{edits:?}") };
            assert_eq!(change.apply(file).unwrap(), changed, "{patch:?}");
        }
    }
}

#[rstest]
#[case::kept("a\nb", "@@ -1,2 +1,2 @@\n-a\n+A\n b\n\\ No newline at end of file\n", "A\nb")]
#[case::added("a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n", "a\nb\n")]
#[case::removed("a\r\nb\r\n", "@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ No newline at end of file\n", "a\r\nb")]
#[case::not_mentioned("a\nb", "@@ -1,2 +1,3 @@\n a\n b\n+c\n", "a\nb\nc")]
#[case::into_an_empty_file("", "@@ -0,0 +1 @@\n+a\n", "a\n")]
fn a_unified_diff_decides_about_the_final_newline(#[case] file: &str, #[case] hunk: &str, #[case] expected: &str) {
    let patch = format!("--- a/f\n+++ b/f\n{hunk}");
    let edits = parse(&patch).unwrap();
    let [Edit::Update { change, .. }] = edits.as_slice() else { panic!("{edits:?}") };
    assert_eq!(change.apply(file).unwrap(), expected);
}

#[rstest]
#[case::the_stated_line("@@ -4,1 +4,1 @@\n-one\n+two\n", "one\n\n\ntwo\n\n\none\n")]
#[case::the_nearest_line("@@ -6,1 +6,1 @@\n-one\n+two\n", "one\n\n\none\n\n\ntwo\n")]
#[case::before_an_earlier_hunk(
    "@@ -6,1 +6,1 @@\n-one\n+two\n@@ -8,1 +8,1 @@\n-one\n+three\n",
    "one\n\n\nthree\n\n\ntwo\n"
)]
#[case::never_the_same_line_twice(
    "@@ -4,1 +4,1 @@\n-one\n+one\n@@ -5,1 +5,1 @@\n-one\n+two\n",
    "one\n\n\none\n\n\ntwo\n"
)]
fn a_hunk_changes_the_matching_lines_nearest_to_its_line_number(#[case] hunks: &str, #[case] expected: &str) {
    let patch = format!("--- a/f\n+++ b/f\n{hunks}");
    let edits = parse(&patch).unwrap();
    let [Edit::Update { change, .. }] = edits.as_slice() else { panic!("{edits:?}") };
    assert_eq!(change.apply("one\n\n\none\n\n\none\n").unwrap(), expected);
}

/// The change from one text to another in both formats; none if there is none.
fn both_formats(from: &str, to: &str) -> Option<[String; 2]> {
    let mut options = diffy::DiffOptions::new();
    let unified = options.set_original_filename("a/f").set_modified_filename("b/f").create_patch(from, to).to_string();
    let whole = options.set_context_len(1_000).create_patch(from, to).to_string();
    let lines = whole.split_once(" @@\n")?.1;
    Some([unified, format!("*** Begin Patch\n*** Update File: f\n@@\n{lines}*** End Patch")])
}

fn applied(patch: &str, text: &str) -> Option<String> {
    let edits = parse(patch).ok()?;
    let Some(Edit::Update { change, .. }) = edits.first() else { return None };
    change.apply(text).ok()
}

const LINES: &str = "([ab]{0,2}\n){0,8}";

proptest! {
    #[test]
    fn parsing_and_applying_never_panic(patch in "(\\*\\*\\* (Begin Patch|Update File: f|End Patch|End of File)\n|[-+ @]{0,3}[a-zä]{0,3}\n){0,12}", text in "([a-zä]{0,3}\r?\n?){0,8}") {
        for edit in parse(&patch).unwrap_or_default() {
            if let Edit::Update { change, .. } = edit {
                let _ = change.apply(&text);
            }
        }
    }

    #[test]
    fn a_unified_diff_makes_the_text_that_it_was_made_for(from in "([ab]{0,2}\n){0,8}[ab]?", to in "([ab]{0,2}\n){0,8}[ab]?") {
        let Some([patch, _]) = both_formats(&from, &to) else { return Ok(()) };
        prop_assert_eq!(applied(&patch, &from), Some(to));
    }

    #[test]
    fn a_patch_makes_the_same_of_a_text_with_either_line_ending(from in LINES, to in LINES, other in LINES) {
        let Some(patches) = both_formats(&from, &to) else { return Ok(()) };
        for patch in patches {
            let crlf = |text: &str| text.replace('\n', "\r\n");
            prop_assert_eq!(applied(&patch, &crlf(&from)), Some(if from.is_empty() { to.clone() } else { crlf(&to) }));
            // Also where the context is elsewhere or missing.
            prop_assert_eq!(applied(&patch, &other).map(|text| crlf(&text)), applied(&patch, &crlf(&other)).map(|text| crlf(&text.replace("\r\n", "\n"))));
        }
    }

    #[test]
    fn lines_that_a_patch_does_not_touch_keep_their_endings(
        lines in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 1..12)
    ) {
        // Each line has its own content. It ends with CRLF or not; it is removed or not; another is added after it or not, which
        // has the ending of the line that it replaces, if there is one.
        let ending = |is_crlf: &bool| if *is_crlf { "\r\n" } else { "\n" };
        let windows = lines.iter().filter(|(is_crlf, ..)| *is_crlf).count();
        let added = if windows > lines.len() - windows { "\r\n" } else { "\n" };
        let (mut from, mut to, mut replaced) = (vec![], vec![], VecDeque::new());
        for (number, (is_crlf, is_removed, has_new)) in lines.iter().enumerate() {
            let line = format!("{number}{}", ending(is_crlf));
            if !is_removed {
                to.push(line.clone());
                let following = lines.iter().skip(number + 1).take_while(|(_, is_removed, _)| *is_removed);
                replaced = following.map(|(is_crlf, ..)| ending(is_crlf)).collect();
            } else if number == 0 {
                replaced = lines.iter().take_while(|(_, is_removed, _)| *is_removed).map(|(is_crlf, ..)| ending(is_crlf)).collect();
            }
            to.extend(has_new.then(|| format!("new {number}{}", replaced.pop_front().unwrap_or(added))));
            from.push(line);
        }
        let (from, to) = (from.concat(), to.concat());
        let unix = |text: &str| text.replace("\r\n", "\n");
        let Some(patches) = both_formats(&unix(&from), &unix(&to)) else { return Ok(()) };
        for patch in patches {
            prop_assert_eq!(applied(&patch, &from), Some(to.clone()));
        }
    }
}
