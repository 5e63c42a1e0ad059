//! Tests of the file tools and of searches on real files in a temporary directory.

use std::{fs, os::unix::fs::symlink, path::PathBuf, sync::Arc};

use agent::{ApprovalContext, Invocation, Tool, ToolContext, ToolError, ToolPolicy};
use protocol::{CallId, EgressView, JobId, ToolErrorKind, UserId, WorkId};
use rstest::rstest;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    file_tool::{FileTool, FileToolKind},
    files::{LIST_DIR, READ_FILE, WRITE_FILE},
    patch::APPLY_PATCH,
    workspace::Workspace,
};
use crate::search::{SearchKind, SearchRequest, search};

struct Fixture {
    directory: tempfile::TempDir,
    workspace: Arc<Workspace>,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let workspace = Arc::new(Workspace::open(directory.path()).unwrap());
        Self { directory, workspace }
    }

    /// Runs a search in this process.
    fn search(&self, kind: SearchKind, arguments: Value) -> Result<String, ToolError> {
        let request = SearchRequest { kind, workspace: self.directory.path().to_owned(), arguments };
        search(&request).map_err(ToolError)
    }

    async fn file(&self, kind: FileToolKind, arguments: Value) -> Result<String, ToolError> {
        let definition = agent::container_tool(kind.name).unwrap();
        let tool = FileTool { kind, definition, workspace: Arc::clone(&self.workspace) };
        tool.call(invocation(arguments)).await.map(|output| output.content.as_str().unwrap().to_owned())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), content).unwrap();
    }
}

fn invocation(arguments: Value) -> Invocation {
    Invocation {
        call_id: CallId("call".to_owned()),
        arguments,
        context: Arc::new(ToolContext {
            owner: UserId::default(),
            work: WorkId::Job(JobId::nil()),
            approval: ApprovalContext::autonomous(),
            policy: ToolPolicy::default(),
            only: None,
            egress: EgressView::default(),
            max_children: 0,
        }),
        stop: CancellationToken::new(),
    }
}

#[rstest]
#[case::parent("../x")]
#[case::deep_parent("a/../../x")]
#[case::absolute("/etc/passwd")]
#[case::link_to_file("out-file")]
#[case::link_to_directory("out-directory/x")]
#[case::absolute_link_chain("chain/x")]
#[tokio::test]
async fn no_path_leaves_the_workspace(#[case] path: &str) {
    let fixture = Fixture::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x"), "secret").unwrap();
    symlink(outside.path().join("x"), fixture.path("out-file")).unwrap();
    symlink(outside.path(), fixture.path("out-directory")).unwrap();
    symlink("out-directory", fixture.path("chain")).unwrap();
    let patch = format!("*** Begin Patch\n*** Update File: {path}\n@@\n-secret\n+changed\n*** End Patch");
    let add = format!("*** Begin Patch\n*** Add File: {path}\n+changed\n*** End Patch");
    let calls = [
        (READ_FILE, json!({"path": path})),
        (WRITE_FILE, json!({"path": path, "content": "changed"})),
        (LIST_DIR, json!({"path": path})),
        (APPLY_PATCH, json!({"patch": patch})),
        (APPLY_PATCH, json!({"patch": add})),
    ];
    for (kind, arguments) in calls {
        let error = fixture.file(kind, arguments.clone()).await.unwrap_err();
        assert_eq!(error.0.kind, ToolErrorKind::Sandbox, "{} {arguments}: {}", kind.name, error.0.message);
    }
    for kind in [SearchKind::Glob, SearchKind::Grep] {
        let error = fixture.search(kind, json!({"pattern": "secret", "path": path})).unwrap_err();
        assert_eq!(error.0.kind, ToolErrorKind::Sandbox, "{kind:?}: {}", error.0.message);
    }
    assert_eq!(fs::read_to_string(outside.path().join("x")).unwrap(), "secret");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_file_is_written_with_its_directories_and_read_by_lines() {
    let fixture = Fixture::new();
    fixture.file(WRITE_FILE, json!({"path": "a/b/c.txt", "content": "one\ntwo\nthree\nfour"})).await.unwrap();
    let inside = fixture.path("a/b/c.txt").display().to_string();
    assert_eq!(fixture.file(READ_FILE, json!({"path": inside})).await.unwrap(), "one\ntwo\nthree\nfour");
    let part = fixture.file(READ_FILE, json!({"path": "a/b/c.txt", "offset": 2, "limit": 2})).await.unwrap();
    assert_eq!(part, "two\nthree\n[… more lines after line 3; continue with offset 4]");
    let end = fixture.file(READ_FILE, json!({"path": "a/b/c.txt", "offset": 4})).await.unwrap();
    assert_eq!(end, "four");
    assert!(fixture.file(READ_FILE, json!({"path": "a/b/c.txt", "offset": 5})).await.is_err());
    assert_eq!(fixture.file(LIST_DIR, json!({"path": "a"})).await.unwrap(), "b/");
    assert_eq!(fixture.file(LIST_DIR, json!({"path": "a/b"})).await.unwrap(), "c.txt (18 bytes)");
}

#[tokio::test]
async fn anything_but_a_text_file_is_refused_without_blocking() {
    let fixture = Fixture::new();
    fs::write(fixture.path("binary"), [0_u8; 100]).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, fixture.path("pipe"), 0o600.into()).unwrap();
    for path in ["binary", "pipe", ".", "missing"] {
        let error = fixture.file(READ_FILE, json!({"path": path})).await.unwrap_err();
        assert_eq!(error.0.kind, ToolErrorKind::Failed, "{path}");
    }
    fixture.write("long", &"x".repeat(300_000));
    let long = fixture.file(READ_FILE, json!({"path": "long"})).await.unwrap();
    assert!(long.len() < 100_000 && long.contains("the last line may be truncated"), "{}", &long[long.len() - 90..]);
}

#[tokio::test]
async fn a_written_file_keeps_its_mode_and_a_link_stays_a_link() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new();
    fixture.write("run.sh", "old");
    fs::set_permissions(fixture.path("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("run.sh", fixture.path("link")).unwrap();
    fixture.file(WRITE_FILE, json!({"path": "link", "content": "new"})).await.unwrap();
    assert_eq!(fs::read_to_string(fixture.path("run.sh")).unwrap(), "new");
    assert_eq!(fs::metadata(fixture.path("run.sh")).unwrap().permissions().mode() & 0o777, 0o755);
    assert!(fs::symlink_metadata(fixture.path("link")).unwrap().is_symlink());
    assert_eq!(fs::read_dir(fixture.directory.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn a_patch_is_applied_atomically() {
    let fixture = Fixture::new();
    fixture.write("a.txt", "one\ntwo\n");
    fixture.write("b.txt", "three\n");
    let good = "*** Begin Patch\n*** Update File: a.txt\n@@\n-two\n+2\n*** Delete File: b.txt\n*** Add File: sub/c.txt\n+new\n*** End Patch";
    assert_eq!(
        fixture.file(APPLY_PATCH, json!({"patch": good})).await.unwrap(),
        "changed a.txt\ndeleted b.txt\nadded sub/c.txt"
    );
    assert_eq!(fs::read_to_string(fixture.path("a.txt")).unwrap(), "one\n2\n");
    assert_eq!(fs::read_to_string(fixture.path("sub/c.txt")).unwrap(), "new\n");
    assert!(!fixture.path("b.txt").exists());

    let incomplete =
        "*** Begin Patch\n*** Update File: a.txt\n@@\n-2\n+two\n*** Update File: missing\n@@\n-x\n+y\n*** End Patch";
    assert!(fixture.file(APPLY_PATCH, json!({"patch": incomplete})).await.is_err());
    assert_eq!(fs::read_to_string(fixture.path("a.txt")).unwrap(), "one\n2\n");

    // `d` cannot be both a file and a directory: the changes made before that error are rolled back.
    let unplaceable = "*** Begin Patch\n*** Update File: a.txt\n@@\n-2\n+two\n*** Add File: d\n+x\n*** Add File: d/e\n+x\n*** End Patch";
    let error = fixture.file(APPLY_PATCH, json!({"patch": unplaceable})).await.unwrap_err();
    assert!(error.0.message.ends_with("nothing was changed"), "{}", error.0.message);
    assert_eq!(fs::read_to_string(fixture.path("a.txt")).unwrap(), "one\n2\n");
    assert!(!fixture.path("d").exists());
}

#[rstest]
#[case::dot_prefix("./f")]
#[case::parent_component("sub/../f")]
#[case::symlink("link")]
#[case::symlinked_directory("here/f")]
#[case::absolute("ROOT/f")]
#[tokio::test]
async fn two_edits_of_one_file_are_both_applied_whatever_the_spelling_of_its_path(#[case] other: &str) {
    let fixture = Fixture::new();
    fixture.write("f", "one\ntwo\n");
    fixture.write("sub/g", "");
    symlink("f", fixture.path("link")).unwrap();
    symlink(".", fixture.path("here")).unwrap();
    let other = other.replace("ROOT", &fixture.directory.path().display().to_string());
    let patch = format!(
        "*** Begin Patch\n*** Update File: f\n@@\n-one\n+1\n*** Update File: {other}\n@@\n-two\n+2\n*** End Patch"
    );
    assert_eq!(fixture.file(APPLY_PATCH, json!({"patch": patch})).await.unwrap(), "changed f");
    assert_eq!(fs::read_to_string(fixture.path("f")).unwrap(), "1\n2\n");
    assert!(fs::symlink_metadata(fixture.path("link")).unwrap().is_symlink());
}

#[tokio::test]
async fn edits_of_two_hard_links_to_one_file_are_refused() {
    let fixture = Fixture::new();
    fixture.write("f", "one\ntwo\n");
    fs::hard_link(fixture.path("f"), fixture.path("g")).unwrap();
    let edit = |name: &str, from: &str, to: &str| format!("*** Update File: {name}\n@@\n-{from}\n+{to}\n");
    let patch = |edits: &[String]| format!("*** Begin Patch\n{}*** End Patch", edits.concat());
    let both = patch(&[edit("f", "one", "1"), edit("g", "two", "2")]);
    let error = fixture.file(APPLY_PATCH, json!({"patch": both})).await.unwrap_err();
    assert!(error.0.message.starts_with("g is a hard link to f"), "{}", error.0.message);
    assert_eq!(fs::read_to_string(fixture.path("f")).unwrap(), "one\ntwo\n");
    let twice = patch(&[edit("f", "one", "1"), edit("./f", "two", "2")]);
    assert_eq!(fixture.file(APPLY_PATCH, json!({"patch": twice})).await.unwrap(), "changed f");
    assert_eq!(fs::read_to_string(fixture.path("f")).unwrap(), "1\n2\n");
}

#[tokio::test]
async fn duplicate_new_files_are_refused_and_deleting_a_link_keeps_its_target() {
    let fixture = Fixture::new();
    fixture.write("target", "kept\n");
    symlink("target", fixture.path("link")).unwrap();
    let twice = "*** Begin Patch\n*** Add File: new/f\n+x\n*** Add File: ./new/f\n+y\n*** End Patch";
    assert!(fixture.file(APPLY_PATCH, json!({"patch": twice})).await.is_err());
    let delete = "*** Begin Patch\n*** Delete File: ./link\n*** End Patch";
    assert_eq!(fixture.file(APPLY_PATCH, json!({"patch": delete})).await.unwrap(), "deleted link");
    assert_eq!(fs::read_to_string(fixture.path("target")).unwrap(), "kept\n");
    assert!(fs::symlink_metadata(fixture.path("link")).is_err());
}

#[tokio::test]
async fn moved_and_restored_files_keep_their_mode() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new();
    let mode = |name: &str| fs::metadata(fixture.path(name)).unwrap().permissions().mode() & 0o777;
    fixture.write("run.sh", "old\n");
    fs::set_permissions(fixture.path("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let moved = "*** Begin Patch\n*** Update File: run.sh\n*** Move to: bin/run.sh\n@@\n-old\n+new\n*** End Patch";
    fixture.file(APPLY_PATCH, json!({"patch": moved})).await.unwrap();
    assert_eq!(mode("bin/run.sh"), 0o755);

    // `d` cannot be both a file and a directory: the file deleted before that error is restored.
    let unplaceable =
        "*** Begin Patch\n*** Delete File: bin/run.sh\n*** Add File: d\n+x\n*** Add File: d/e\n+x\n*** End Patch";
    assert!(fixture.file(APPLY_PATCH, json!({"patch": unplaceable})).await.is_err());
    assert_eq!(
        (mode("bin/run.sh"), fs::read_to_string(fixture.path("bin/run.sh")).unwrap()),
        (0o755, "new\n".to_owned())
    );
}

#[tokio::test]
async fn a_stopped_patch_changes_nothing() {
    let fixture = Fixture::new();
    fixture.write("f", "one\n");
    let patch = "*** Begin Patch\n*** Update File: f\n@@\n-one\n+1\n*** End Patch";
    let definition = agent::container_tool("apply_patch").unwrap();
    let tool = FileTool { kind: APPLY_PATCH, definition, workspace: Arc::clone(&fixture.workspace) };
    let call = invocation(json!({"patch": patch}));
    call.stop.cancel();
    assert!(tool.call(call).await.is_err());
    assert_eq!(fs::read_to_string(fixture.path("f")).unwrap(), "one\n");
}

#[tokio::test]
async fn a_diff_without_a_last_line_break_applies_and_the_file_keeps_its_own() {
    let fixture = Fixture::new();
    fixture.write("f", "one\r\ntwo\r\n");
    let patch = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2";
    fixture.file(APPLY_PATCH, json!({"patch": patch})).await.unwrap();
    assert_eq!(fs::read_to_string(fixture.path("f")).unwrap(), "one\r\n2\r\n");
}

#[tokio::test]
async fn reading_stops_at_the_scan_limit_with_a_notice() {
    let fixture = Fixture::new();
    let line = [&[b'x'; 63][..], b"\n"].concat();
    fs::write(fixture.path("big"), line.repeat((64 << 20) / 64 + 10)).unwrap();
    let lines = (64_u64 << 20) / 64;
    let end = fixture.file(READ_FILE, json!({"path": "big", "offset": lines - 1})).await.unwrap();
    assert!(end.contains("beyond the first 64 MiB"), "{end}");
    let beyond = fixture.file(READ_FILE, json!({"path": "big", "offset": lines + 5})).await.unwrap_err();
    assert!(beyond.0.message.contains("beyond the first 64 MiB"), "{}", beyond.0.message);
}

#[tokio::test]
async fn a_git_diff_creates_changes_and_deletes() {
    let fixture = Fixture::new();
    fixture.write("old.txt", "gone\n");
    fixture.write("kept.txt", "a\nb\n");
    let patch = "diff --git a/new.txt b/new.txt\nnew file mode 100644\nindex 0000000..1111111\n--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+hello\n\
                 diff --git a/old.txt b/old.txt\ndeleted file mode 100644\nindex 1111111..0000000\n--- a/old.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n\
                 diff --git a/kept.txt b/kept.txt\nindex 1111111..2222222 100644\n--- a/kept.txt\n+++ b/kept.txt\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n";
    assert_eq!(
        fixture.file(APPLY_PATCH, json!({"patch": patch})).await.unwrap(),
        "changed kept.txt\nadded new.txt\ndeleted old.txt"
    );
    assert_eq!(fs::read_to_string(fixture.path("kept.txt")).unwrap(), "a\nc\n");
    assert_eq!(fs::read_to_string(fixture.path("new.txt")).unwrap(), "hello\n");
}

#[test]
fn files_are_found_by_name_and_by_content() {
    let fixture = Fixture::new();
    for (name, content) in [
        ("main.py", "import os\nprint('hi')\n"),
        ("src/lib.py", "def hi():\n    pass\n"),
        ("src/lib.rs", "fn hi() {}\n"),
        (".hidden/x.py", "hi\n"),
        (".git/config.py", "hi\n"),
        ("ignored/y.py", "hi\n"),
        (".gitignore", "ignored/\n"),
    ] {
        fixture.write(name, content);
    }
    fs::write(fixture.path("binary.py"), b"hi\0hi\n").unwrap();
    let glob = |arguments| fixture.search(SearchKind::Glob, arguments).unwrap();
    assert_eq!(glob(json!({"pattern": "*.py"})), ".hidden/x.py\nbinary.py\nmain.py\nsrc/lib.py");
    assert_eq!(glob(json!({"pattern": "src/**/*.rs"})), "src/lib.rs");
    assert_eq!(glob(json!({"pattern": "lib.*", "path": "src"})), "src/lib.py\nsrc/lib.rs");
    assert_eq!(glob(json!({"pattern": "*.go"})), "no file matches");
    let grep = |arguments| fixture.search(SearchKind::Grep, arguments).unwrap();
    assert_eq!(
        grep(json!({"pattern": r"\bhi\b"})),
        ".hidden/x.py:1:hi\nmain.py:2:print('hi')\nsrc/lib.py:1:def hi():\nsrc/lib.rs:1:fn hi() {}"
    );
    assert_eq!(grep(json!({"pattern": "hi", "include": "*.rs"})), "src/lib.rs:1:fn hi() {}");
    assert_eq!(grep(json!({"pattern": "print", "path": "main.py"})), "main.py:2:print('hi')");
    assert_eq!(
        fixture.search(SearchKind::Grep, json!({"pattern": "("})).unwrap_err().0.kind,
        ToolErrorKind::InvalidParameters
    );
}
