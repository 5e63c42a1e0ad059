//! Tests of the formats of patches.

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

proptest::proptest! {
    #[test]
    fn parsing_and_applying_never_panic(patch in "(\\*\\*\\* (Begin Patch|Update File: f|End Patch|End of File)\n|[-+ @]{0,3}[a-zä]{0,3}\n){0,12}", text in "([a-zä]{0,3}\n?){0,8}") {
        for edit in parse(&patch).unwrap_or_default() {
            if let Edit::Update { change, .. } = edit {
                let _ = change.apply(&text);
            }
        }
    }
}
