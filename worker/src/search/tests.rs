//! Tests of what searches find and skip.

use std::{fs, path::Path};

use rstest::rstest;
use serde_json::json;

use super::{SearchKind, SearchRequest, search};

fn write(root: &Path, files: &[(&str, &str)]) {
    for (name, content) in files {
        fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
        fs::write(root.join(name), content).unwrap();
    }
}

fn glob(root: &Path, path: &str) -> String {
    let arguments = json!({"pattern": "*", "path": path});
    search(&SearchRequest { kind: SearchKind::Glob, workspace: root.to_owned(), arguments }).unwrap()
}

#[rstest]
#[case::nested(&[(".gitignore", "*.o\n"), ("a/.gitignore", "!keep.o\n"), ("a/keep.o", ""), ("a/x.o", ""), ("b/keep.o", "")], "a/keep.o")]
#[case::ignore_wins(&[(".gitignore", "*.o\n"), (".ignore", "!x.o\n"), ("x.o", ""), ("y.o", "")], "x.o")]
#[case::whole_directory(&[(".gitignore", "/out/\n"), ("out/x", ""), ("in/out/x", "")], "in/out/x")]
#[case::a_path(&[(".gitignore", "a/*.o\n"), ("a/x.o", ""), ("b/a/x.o", "")], "b/a/x.o")]
#[case::exclude(&[(".git/info/exclude", "x\n"), ("x", ""), ("y", "")], "y")]
#[case::inner_repository(&[(".gitignore", "x\n"), ("in/.git/HEAD", ""), ("in/x", ""), ("x", "")], "in/x")]
#[case::byte_order_mark(&[(".gitignore", "\u{feff}x\n"), ("x", ""), ("y", "")], "y")]
#[case::comments(&[(".gitignore", "# y\n\n  \n\\#x\n"), ("#x", ""), ("y", "")], "y")]
#[case::invalid_pattern(&[(".gitignore", "{\nx\n"), ("x", ""), ("y", "")], "y")]
fn ignore_files_apply_as_in_git(#[case] files: &[(&str, &str)], #[case] found: &str) {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), files);
    let lines = glob(root.path(), "");
    let lines: Vec<_> = lines.lines().filter(|line| !line.contains("ignore")).collect();
    assert_eq!(lines, [found]);
}

#[test]
fn a_search_of_a_subdirectory_applies_no_rules_of_its_parents() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), &[(".gitignore", "x\n"), ("in/x", "")]);
    assert_eq!(glob(root.path(), "in"), "in/x");
    assert_eq!(glob(root.path(), "in/x"), "in/x");
}

#[test]
fn links_and_special_files_are_skipped() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), &[("a/x", "")]);
    std::os::unix::fs::symlink("a", root.path().join("link")).unwrap();
    std::os::unix::fs::symlink("a/x", root.path().join("file-link")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.path().join("pipe"), 0o600.into()).unwrap();
    assert_eq!(glob(root.path(), ""), "a/x");
}

#[test]
fn rules_beyond_the_limit_are_reported_and_the_first_ones_apply() {
    let root = tempfile::tempdir().unwrap();
    let many = (0..60_000).map(|number| format!("rule-{number}")).collect::<Vec<_>>().join("\n");
    write(root.path(), &[(".gitignore", &many), ("rule-7", ""), ("rule-59999", "")]);
    let text = glob(root.path(), "");
    assert!(text.starts_with(".gitignore\nrule-59999\n["), "{text}");
    assert!(text.ends_with("too many or too long]"), "{text}");
}

#[test]
fn a_result_is_bounded_in_bytes() {
    let root = tempfile::tempdir().unwrap();
    let name = "n".repeat(200);
    let directory = format!("{name}/{name}/{name}/{name}/{name}");
    let files: Vec<_> = (0..900).map(|number| format!("{directory}/{number}")).collect();
    write(root.path(), &files.iter().map(|file| (file.as_str(), "")).collect::<Vec<_>>());
    let text = glob(root.path(), "");
    assert!((200 * 1024..300 * 1024).contains(&text.len()), "{} bytes", text.len());
    assert!(text.ends_with("there may be more matches; use a narrower search]"));
}

#[test]
fn a_file_that_is_too_large_to_search_whole_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let large = format!("needle\n{}needle\n", "x\n".repeat(9 << 20));
    write(root.path(), &[("large.log", &large), ("small", "needle")]);
    let arguments = json!({"pattern": "needle"});
    let text = search(&SearchRequest { kind: SearchKind::Grep, workspace: root.path().to_owned(), arguments }).unwrap();
    let expected = "large.log:1:needle\nsmall:1:needle\n[… only the first 16 MiB of large.log were searched]";
    assert_eq!(text, expected);
}
