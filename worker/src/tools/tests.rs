//! Stories of the file tools and of searches, on real files in a folder of their own.

use std::{fs, os::unix::fs::symlink, path::PathBuf, sync::Arc};

use agent::{Invocation, Tool, ToolError};
use protocol::{CallId, JobId, ToolErrorKind};
use rstest::rstest;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    file_tool::{FileTool, FileToolKind},
    files::{LIST_DIR, READ_FILE, WRITE_FILE},
    offer::context,
    patch::APPLY_PATCH,
    workspace::Workspace,
};
use crate::search::{SearchKind, SearchRequest, answer};

struct Bench {
    folder: tempfile::TempDir,
    workspace: Arc<Workspace>,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let workspace = Arc::new(Workspace::open(folder.path()).unwrap());
        Self { folder, workspace }
    }

    /// A search as its own process does it.
    fn search(&self, kind: SearchKind, arguments: Value) -> Result<String, ToolError> {
        let request = SearchRequest { kind, workspace: self.folder.path().to_owned(), arguments };
        answer(&request).map_err(ToolError)
    }

    async fn file(&self, kind: FileToolKind, arguments: Value) -> Result<String, ToolError> {
        let definition = agent::container_tool(kind.name).unwrap();
        let tool = FileTool { kind, definition, workspace: Arc::clone(&self.workspace) };
        tool.call(invocation(arguments)).await.map(|output| output.content.as_str().unwrap().to_owned())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
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
        context: Arc::new(context(JobId::nil(), 0)),
        stop: CancellationToken::new(),
    }
}

#[rstest]
#[case::parent("../x")]
#[case::deep_parent("a/../../x")]
#[case::absolute("/etc/passwd")]
#[case::link_to_file("out-file")]
#[case::link_to_folder("out-folder/x")]
#[case::absolute_link_chain("chain/x")]
#[tokio::test]
async fn no_path_leads_a_file_tool_out(#[case] path: &str) {
    let bench = Bench::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x"), "secret").unwrap();
    symlink(outside.path().join("x"), bench.path("out-file")).unwrap();
    symlink(outside.path(), bench.path("out-folder")).unwrap();
    symlink("out-folder", bench.path("chain")).unwrap();
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
        let refused = bench.file(kind, arguments.clone()).await.unwrap_err();
        assert_eq!(refused.0.kind, ToolErrorKind::Sandbox, "{} {arguments}: {}", kind.name, refused.0.message);
    }
    for kind in [SearchKind::Glob, SearchKind::Grep] {
        let refused = bench.search(kind, json!({"pattern": "secret", "path": path})).unwrap_err();
        assert_eq!(refused.0.kind, ToolErrorKind::Sandbox, "{kind:?}: {}", refused.0.message);
    }
    assert_eq!(fs::read_to_string(outside.path().join("x")).unwrap(), "secret");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_file_is_written_with_its_folders_and_read_by_lines() {
    let bench = Bench::new();
    bench.file(WRITE_FILE, json!({"path": "a/b/c.txt", "content": "one\ntwo\nthree\nfour"})).await.unwrap();
    let inside = bench.path("a/b/c.txt").display().to_string();
    assert_eq!(bench.file(READ_FILE, json!({"path": inside})).await.unwrap(), "one\ntwo\nthree\nfour");
    let part = bench.file(READ_FILE, json!({"path": "a/b/c.txt", "offset": 2, "limit": 2})).await.unwrap();
    assert_eq!(part, "two\nthree\n[… more follows after line 3; read on with offset 4]");
    let end = bench.file(READ_FILE, json!({"path": "a/b/c.txt", "offset": 4})).await.unwrap();
    assert_eq!(end, "four");
    assert!(bench.file(READ_FILE, json!({"path": "a/b/c.txt", "offset": 5})).await.is_err());
    assert_eq!(bench.file(LIST_DIR, json!({"path": "a"})).await.unwrap(), "b/");
    assert_eq!(bench.file(LIST_DIR, json!({"path": "a/b"})).await.unwrap(), "c.txt (18 bytes)");
}

#[tokio::test]
async fn what_is_no_text_file_is_refused_and_never_waited_for() {
    let bench = Bench::new();
    fs::write(bench.path("binary"), [0_u8; 100]).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, bench.path("pipe"), 0o600.into()).unwrap();
    for path in ["binary", "pipe", ".", "missing"] {
        let refused = bench.file(READ_FILE, json!({"path": path})).await.unwrap_err();
        assert_eq!(refused.0.kind, ToolErrorKind::Failed, "{path}");
    }
    bench.write("long", &"x".repeat(300_000));
    let long = bench.file(READ_FILE, json!({"path": "long"})).await.unwrap();
    assert!(long.len() < 100_000 && long.contains("a line may be cut here"), "{}", &long[long.len() - 90..]);
}

#[tokio::test]
async fn a_file_keeps_its_mode_and_a_link_inside_stays_a_link() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    bench.write("run.sh", "old");
    fs::set_permissions(bench.path("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("run.sh", bench.path("link")).unwrap();
    bench.file(WRITE_FILE, json!({"path": "link", "content": "new"})).await.unwrap();
    assert_eq!(fs::read_to_string(bench.path("run.sh")).unwrap(), "new");
    assert_eq!(fs::metadata(bench.path("run.sh")).unwrap().permissions().mode() & 0o777, 0o755);
    assert!(fs::symlink_metadata(bench.path("link")).unwrap().is_symlink());
    assert_eq!(fs::read_dir(bench.folder.path()).unwrap().count(), 2);
}

#[tokio::test]
async fn a_patch_is_applied_whole_or_not_at_all() {
    let bench = Bench::new();
    bench.write("a.txt", "one\ntwo\n");
    bench.write("b.txt", "three\n");
    let good = "*** Begin Patch\n*** Update File: a.txt\n@@\n-two\n+2\n*** Delete File: b.txt\n*** Add File: sub/c.txt\n+new\n*** End Patch";
    assert_eq!(
        bench.file(APPLY_PATCH, json!({"patch": good})).await.unwrap(),
        "changed a.txt\ndeleted b.txt\nadded sub/c.txt"
    );
    assert_eq!(fs::read_to_string(bench.path("a.txt")).unwrap(), "one\n2\n");
    assert_eq!(fs::read_to_string(bench.path("sub/c.txt")).unwrap(), "new\n");
    assert!(!bench.path("b.txt").exists());

    let half =
        "*** Begin Patch\n*** Update File: a.txt\n@@\n-2\n+two\n*** Update File: missing\n@@\n-x\n+y\n*** End Patch";
    assert!(bench.file(APPLY_PATCH, json!({"patch": half})).await.is_err());
    assert_eq!(fs::read_to_string(bench.path("a.txt")).unwrap(), "one\n2\n");

    // `d` cannot be a file and a folder: what was put in place before that shows is taken back.
    let unplaceable = "*** Begin Patch\n*** Update File: a.txt\n@@\n-2\n+two\n*** Add File: d\n+x\n*** Add File: d/e\n+x\n*** End Patch";
    let refused = bench.file(APPLY_PATCH, json!({"patch": unplaceable})).await.unwrap_err();
    assert!(refused.0.message.ends_with("nothing was changed"), "{}", refused.0.message);
    assert_eq!(fs::read_to_string(bench.path("a.txt")).unwrap(), "one\n2\n");
    assert!(!bench.path("d").exists());
}

#[rstest]
#[case::with_a_dot("./f")]
#[case::by_its_folder("sub/../f")]
#[case::by_a_link("link")]
#[case::by_a_linked_folder("here/f")]
#[case::absolutely("ROOT/f")]
#[tokio::test]
async fn two_edits_of_one_file_are_both_made_however_it_is_named(#[case] other: &str) {
    let bench = Bench::new();
    bench.write("f", "one\ntwo\n");
    bench.write("sub/g", "");
    symlink("f", bench.path("link")).unwrap();
    symlink(".", bench.path("here")).unwrap();
    let other = other.replace("ROOT", &bench.folder.path().display().to_string());
    let patch = format!(
        "*** Begin Patch\n*** Update File: f\n@@\n-one\n+1\n*** Update File: {other}\n@@\n-two\n+2\n*** End Patch"
    );
    assert_eq!(bench.file(APPLY_PATCH, json!({"patch": patch})).await.unwrap(), "changed f");
    assert_eq!(fs::read_to_string(bench.path("f")).unwrap(), "1\n2\n");
    assert!(fs::symlink_metadata(bench.path("link")).unwrap().is_symlink());
}

#[tokio::test]
async fn new_files_of_one_name_and_a_deleted_link_are_told_apart() {
    let bench = Bench::new();
    bench.write("target", "kept\n");
    symlink("target", bench.path("link")).unwrap();
    let twice = "*** Begin Patch\n*** Add File: new/f\n+x\n*** Add File: ./new/f\n+y\n*** End Patch";
    assert!(bench.file(APPLY_PATCH, json!({"patch": twice})).await.is_err());
    let delete = "*** Begin Patch\n*** Delete File: ./link\n*** End Patch";
    assert_eq!(bench.file(APPLY_PATCH, json!({"patch": delete})).await.unwrap(), "deleted link");
    assert_eq!(fs::read_to_string(bench.path("target")).unwrap(), "kept\n");
    assert!(fs::symlink_metadata(bench.path("link")).is_err());
}

#[tokio::test]
async fn a_moved_file_and_one_that_is_restored_keep_their_mode() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    let mode = |name: &str| fs::metadata(bench.path(name)).unwrap().permissions().mode() & 0o777;
    bench.write("run.sh", "old\n");
    fs::set_permissions(bench.path("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    let moved = "*** Begin Patch\n*** Update File: run.sh\n*** Move to: bin/run.sh\n@@\n-old\n+new\n*** End Patch";
    bench.file(APPLY_PATCH, json!({"patch": moved})).await.unwrap();
    assert_eq!(mode("bin/run.sh"), 0o755);

    // `d` cannot be a file and a folder: what was deleted before that shows is put back.
    let unplaceable =
        "*** Begin Patch\n*** Delete File: bin/run.sh\n*** Add File: d\n+x\n*** Add File: d/e\n+x\n*** End Patch";
    assert!(bench.file(APPLY_PATCH, json!({"patch": unplaceable})).await.is_err());
    assert_eq!(
        (mode("bin/run.sh"), fs::read_to_string(bench.path("bin/run.sh")).unwrap()),
        (0o755, "new\n".to_owned())
    );
}

#[tokio::test]
async fn a_stopped_patch_changes_nothing() {
    let bench = Bench::new();
    bench.write("f", "one\n");
    let patch = "*** Begin Patch\n*** Update File: f\n@@\n-one\n+1\n*** End Patch";
    let definition = agent::container_tool("apply_patch").unwrap();
    let tool = FileTool { kind: APPLY_PATCH, definition, workspace: Arc::clone(&bench.workspace) };
    let call = invocation(json!({"patch": patch}));
    call.stop.cancel();
    assert!(tool.call(call).await.is_err());
    assert_eq!(fs::read_to_string(bench.path("f")).unwrap(), "one\n");
}

#[tokio::test]
async fn a_file_is_read_as_far_as_the_limit_and_says_so() {
    let bench = Bench::new();
    let line = [&[b'x'; 63][..], b"\n"].concat();
    fs::write(bench.path("big"), line.repeat((64 << 20) / 64 + 10)).unwrap();
    let lines = (64_u64 << 20) / 64;
    let end = bench.file(READ_FILE, json!({"path": "big", "offset": lines - 1})).await.unwrap();
    assert!(end.contains("beyond the first 64 MiB"), "{end}");
    let beyond = bench.file(READ_FILE, json!({"path": "big", "offset": lines + 5})).await.unwrap_err();
    assert!(beyond.0.message.contains("beyond the first 64 MiB"), "{}", beyond.0.message);
}

#[tokio::test]
async fn a_git_diff_creates_changes_and_deletes() {
    let bench = Bench::new();
    bench.write("old.txt", "gone\n");
    bench.write("kept.txt", "a\nb\n");
    let patch = "diff --git a/new.txt b/new.txt\nnew file mode 100644\nindex 0000000..1111111\n--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+hello\n\
                 diff --git a/old.txt b/old.txt\ndeleted file mode 100644\nindex 1111111..0000000\n--- a/old.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n\
                 diff --git a/kept.txt b/kept.txt\nindex 1111111..2222222 100644\n--- a/kept.txt\n+++ b/kept.txt\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n";
    assert_eq!(
        bench.file(APPLY_PATCH, json!({"patch": patch})).await.unwrap(),
        "changed kept.txt\nadded new.txt\ndeleted old.txt"
    );
    assert_eq!(fs::read_to_string(bench.path("kept.txt")).unwrap(), "a\nc\n");
    assert_eq!(fs::read_to_string(bench.path("new.txt")).unwrap(), "hello\n");
}

#[test]
fn files_are_found_by_name_and_by_content() {
    let bench = Bench::new();
    for (name, content) in [
        ("main.py", "import os\nprint('hi')\n"),
        ("src/lib.py", "def hi():\n    pass\n"),
        ("src/lib.rs", "fn hi() {}\n"),
        (".hidden/x.py", "hi\n"),
        (".git/config.py", "hi\n"),
        ("ignored/y.py", "hi\n"),
        (".gitignore", "ignored/\n"),
    ] {
        bench.write(name, content);
    }
    fs::write(bench.path("binary.py"), b"hi\0hi\n").unwrap();
    let glob = |arguments| bench.search(SearchKind::Glob, arguments).unwrap();
    assert_eq!(glob(json!({"pattern": "*.py"})), ".hidden/x.py\nbinary.py\nmain.py\nsrc/lib.py");
    assert_eq!(glob(json!({"pattern": "src/**/*.rs"})), "src/lib.rs");
    assert_eq!(glob(json!({"pattern": "lib.*", "path": "src"})), "src/lib.py\nsrc/lib.rs");
    assert_eq!(glob(json!({"pattern": "*.go"})), "no file matches");
    let grep = |arguments| bench.search(SearchKind::Grep, arguments).unwrap();
    assert_eq!(
        grep(json!({"pattern": r"\bhi\b"})),
        ".hidden/x.py:1:hi\nmain.py:2:print('hi')\nsrc/lib.py:1:def hi():\nsrc/lib.rs:1:fn hi() {}"
    );
    assert_eq!(grep(json!({"pattern": "hi", "include": "*.rs"})), "src/lib.rs:1:fn hi() {}");
    assert_eq!(grep(json!({"pattern": "print", "path": "main.py"})), "main.py:2:print('hi')");
    assert_eq!(
        bench.search(SearchKind::Grep, json!({"pattern": "("})).unwrap_err().0.kind,
        ToolErrorKind::InvalidParameters
    );
}
