//! A job's files: listed, read and written only by their owner, while the container is hostile.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use chrono::{DateTime, Utc};
use orchestrator::{
    auth::Role,
    clock::{Clock, ManualClock},
};
use protocol::{ErrorCode, FileEntry, FileKind, JobId, JobState};
use reqwest::Method;
use rustix::fs::{CWD, RenameFlags};
use serde_json::json;
use tests::{Reply, User, World, script_of};

const BYTES: &str = "application/octet-stream";

async fn held(user: &User) -> JobId {
    user.create(json!({"prompt": "wait", "hold": true, "limits": {"disk_mb": 1}, "files": [{"path": "given.txt", "content": "given"}]}))
        .await
}

async fn entries(user: &User, job: JobId, query: &str) -> Vec<FileEntry> {
    let page = user.get(&format!("/api/jobs/{job}/files?{query}")).await.expect(200);
    serde_json::from_value(page.body["items"].clone()).unwrap()
}

#[tokio::test]
async fn an_input_file_is_executable_if_the_request_says_so() {
    let world = World::new().await;
    let ada = world.user("ada");
    let body = |mode: &str| {
        let script = json!({"path": "bin/run", "content": "#!/bin/sh\n", "mode": mode});
        json!({"prompt": "run", "hold": true, "files": [{"path": "a.txt", "content": "a"}, script]})
    };
    let id = ada.create(body("0755")).await;
    let executable = |path: &str| fs::metadata(world.workspace(id).join(path)).unwrap().mode() & 0o111;
    assert_eq!((executable("a.txt"), executable("bin/run")), (0, 0o111));
    for mode in ["0777", "4755", "755"] {
        let refused = ada.post("/api/jobs", &body(mode)).await.problem(ErrorCode::Invalid);
        assert_eq!(refused.fields(), ["files[1].mode"]);
        assert!(refused.body.to_string().contains("must be one of 0644, 0755"), "{:#}", refused.body);
    }
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn a_file_whose_name_is_not_utf8_is_listed_and_read_by_its_bytes() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada).await;
    let dir = world.workspace(id).join(OsStr::from_bytes(b"d\xff"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join(OsStr::from_bytes(b"caf\xe9")), "text").unwrap();
    let listed = entries(&ada, id, "path=d%FF").await;
    let shown = (listed[0].path.as_str(), listed[0].path_bytes.as_deref());
    assert_eq!(shown, ("d\u{fffd}/caf\u{fffd}", Some("ZP8vY2Fm6Q==")));
    assert_eq!(entries(&ada, id, "").await[1].path_bytes, None);
    assert_eq!(ada.bytes(&format!("/api/jobs/{id}/files/d%FF/caf%E9")).await, b"text");
    assert!(!ada.bytes(&format!("/api/jobs/{id}/archive?path=d%FF")).await.is_empty());
    ada.get(&format!("/api/jobs/{id}/files/d%FE/caf%E9")).await.problem(ErrorCode::NotFound);
    ada.put(&format!("/api/jobs/{id}/files/caf%E9"), BYTES, "x").await.problem(ErrorCode::Invalid);
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

/// Creates a FIFO.
fn fifo(path: &Path) {
    let created = std::process::Command::new("mkfifo").arg(path).status().unwrap();
    assert!(created.success());
}

#[tokio::test]
async fn a_held_job_processes_uploaded_files_and_leaves_its_output() {
    let script = script_of(&[
        json!({"when": {"turn": 1}, "reply": {"tool_calls": [
            {"name": "shell", "arguments": {"command": "cat src/in.txt > out.txt; echo more >> src/in.txt; until [ -e go ]; do sleep 0.02; done"}}]}}),
        json!({"reply": {"text": "made"}}),
    ]);
    let world = World::builder().processes().script(script).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "copy", "hold": true})).await;
    let at = |path: &str| format!("/api/jobs/{id}/files/{path}");
    assert_eq!(entries(&ada, id, "").await, [], "a workspace that does not exist yet must be empty");
    ada.get(&at("src/in.txt")).await.problem(ErrorCode::NotFound);

    let put = ada.put(&at("src/in.txt"), BYTES, "grüße\n").await.expect(201);
    assert_eq!((&put.body["path"], &put.body["size_bytes"]), (&json!("src/in.txt"), &json!(8)));
    ada.put(&at("src/in.txt"), BYTES, "hello\n").await.expect(200);
    ada.post(&format!("/api/jobs/{id}/start"), &json!({})).await.expect(202);
    let written = async || ada.get(&at("out.txt")).await.body == json!("hello\n");
    tests::until("the file that the running job writes", written).await;
    ada.put(&at("go"), BYTES, "").await.expect(201);
    ada.wait_for(id, JobState::Completed).await;

    let reply = ada.get(&at("src/in.txt")).await.expect(200);
    assert_eq!(reply.body, json!("hello\nmore\n"));
    assert_eq!(reply.header("content-length"), Some("11"));
    assert_eq!(reply.header("content-disposition"), Some("attachment; filename=\"in.txt\""));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    ada.put(&at("late"), BYTES, "").await.problem(ErrorCode::JobFinished);
    assert!(!world.workspace(id).join("late").exists());
    world.finish().await;
}

#[tokio::test]
async fn a_directory_is_listed_by_name_page_by_page() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada).await;
    let directory = world.workspace(id).join("many");
    fs::create_dir(&directory).unwrap();
    for n in 0..5 {
        fs::write(directory.join(format!("f{n}")), "x").unwrap();
    }
    // File names may be invalid UTF-8.
    fs::write(directory.join(std::ffi::OsStr::new("f\u{fffd}")), "").unwrap();
    let (mut seen, mut cursor) = (vec![], String::new());
    loop {
        let page = ada.get(&format!("/api/jobs/{id}/files?path=many/&limit=2{cursor}")).await.expect(200);
        let items: Vec<FileEntry> = serde_json::from_value(page.body["items"].clone()).unwrap();
        assert!(items.len() <= 2);
        seen.extend(items.into_iter().map(|entry| entry.path));
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, ["many/f0", "many/f1", "many/f2", "many/f3", "many/f4", "many/f\u{fffd}"]);
    for query in ["limit=0", "limit=201", "cursor=zz", "path=..", "path=/etc", "path=a/../..", "colour=red"] {
        ada.get(&format!("/api/jobs/{id}/files?{query}")).await.problem(ErrorCode::Invalid);
    }
    ada.get(&format!("/api/jobs/{id}/files?path=none")).await.problem(ErrorCode::NotFound);
    ada.get(&format!("/api/jobs/{id}/files?path=given.txt")).await.problem(ErrorCode::NotADirectory);
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn only_the_owner_can_access_files() {
    let world = World::new().await;
    let (ada, bob, admin) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    let id = held(&ada).await;
    let viewer = world.someone("ada", Role::Viewer);
    let (file, archive) = (format!("/api/jobs/{id}/files/given.txt"), format!("/api/jobs/{id}/archive"));
    for path in [format!("/api/jobs/{id}/files"), file.clone(), archive.clone()] {
        bob.get(&path).await.problem(ErrorCode::NotFound);
        world.anonymous().get(&path).await.problem(ErrorCode::Unauthorized);
        viewer.get(&path).await.expect(200);
        admin.get(&path).await.expect(200);
    }
    for path in [&file, &archive] {
        bob.put(path, BYTES, "x").await.problem(ErrorCode::NotFound);
        world.anonymous().put(path, BYTES, "x").await.problem(ErrorCode::Unauthorized);
        viewer.put(path, BYTES, "x").await.problem(ErrorCode::Forbidden);
    }
    for missing in [JobId::generate().to_string(), "x".to_owned()] {
        ada.get(&format!("/api/jobs/{missing}/files")).await.problem(ErrorCode::NotFound);
        ada.get(&format!("/api/jobs/{missing}/files/a")).await.problem(ErrorCode::NotFound);
        ada.get(&format!("/api/jobs/{missing}/archive")).await.problem(ErrorCode::NotFound);
        ada.put(&format!("/api/jobs/{missing}/files/a"), BYTES, "").await.problem(ErrorCode::NotFound);
        ada.put(&format!("/api/jobs/{missing}/archive"), BYTES, "").await.problem(ErrorCode::NotFound);
    }
    assert_eq!(ada.bytes(&file).await, b"given");
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn an_invalid_path_is_refused() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada).await;
    for path in [
        "..%2f..%2fgantry.db",
        "a%2f..%2f..%2fx",
        "%2fetc%2fpasswd",
        "%2e%2e%2fx",
        "a%2f%2fb",
        "a%2f.%2fb",
        "a%00b",
        "given.txt%2f",
        &"x".repeat(256),
        &"x/".repeat(2100),
    ] {
        let path = format!("/api/jobs/{id}/files/{path}");
        ada.get(&path).await.problem(ErrorCode::Invalid);
        ada.put(&path, BYTES, "x").await.problem(ErrorCode::Invalid);
    }
    // An agent may create such names; uploads with them are refused.
    for path in ["a%0ab", "a%5cb"] {
        let path = format!("/api/jobs/{id}/files/{path}");
        ada.get(&path).await.problem(ErrorCode::NotFound);
        ada.put(&path, BYTES, "x").await.problem(ErrorCode::Invalid);
    }
    assert_eq!(entries(&ada, id, "").await.len(), 1);
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn links_and_special_files_are_reported_and_neither_followed_nor_read() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada).await;
    let workspace = world.workspace(id);
    let secret = world.directory().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("key"), "the key").unwrap();
    symlink(secret.join("key"), workspace.join("out")).unwrap();
    symlink(&secret, workspace.join("dir-out")).unwrap();
    symlink("given.txt", workspace.join("inside")).unwrap();
    symlink("loop", workspace.join("loop")).unwrap();
    fs::create_dir(workspace.join("dir")).unwrap();
    fifo(&workspace.join("fifo"));
    let _socket = UnixListener::bind(workspace.join("sock")).unwrap();

    let kinds: Vec<(String, FileKind)> =
        entries(&ada, id, "").await.into_iter().map(|entry| (entry.path, entry.kind)).collect();
    let (link, other) = (FileKind::Symlink, FileKind::Other);
    assert_eq!(
        kinds.iter().map(|(name, kind)| (name.as_str(), *kind)).collect::<Vec<_>>(),
        [
            ("dir", FileKind::Directory),
            ("dir-out", link),
            ("fifo", other),
            ("given.txt", FileKind::File),
            ("inside", link),
            ("loop", link),
            ("out", link),
            ("sock", other)
        ]
    );
    let at = |path: &str| format!("/api/jobs/{id}/files/{path}");
    for path in ["dir", "out", "inside", "loop", "fifo", "sock", "dir-out"] {
        ada.get(&at(path)).await.problem(ErrorCode::NotAFile);
    }
    for path in ["dir-out/key", "given.txt/x", "loop/x"] {
        ada.get(&at(path)).await.problem(ErrorCode::NotADirectory);
        ada.put(&at(path), BYTES, "x").await.problem(ErrorCode::NotADirectory);
    }
    ada.get(&format!("/api/jobs/{id}/files?path=dir-out")).await.problem(ErrorCode::NotADirectory);
    ada.put(&at("dir"), BYTES, "x").await.problem(ErrorCode::NotAFile);
    // A link is replaced, not written through.
    ada.put(&at("out"), BYTES, "mine").await.expect(200);
    assert_eq!(fs::read_to_string(secret.join("key")).unwrap(), "the key");
    assert_eq!(fs::read_dir(&secret).unwrap().count(), 1);
    assert_eq!(ada.bytes(&at("out")).await, b"mine");
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replacing_a_file_by_a_link_during_a_read_leaks_nothing() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada).await;
    let secret = world.directory().join("secret");
    fs::create_dir(&secret).unwrap();
    fs::write(secret.join("key"), "the key").unwrap();
    let workspace = world.workspace(id);
    fs::create_dir(workspace.join("d")).unwrap();
    fs::write(workspace.join("d/key"), "harmless").unwrap();
    symlink(&secret, workspace.join("l")).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // The name exists at every moment, as a directory or as a link.
                let (d, l) = (workspace.join("d"), workspace.join("l"));
                rustix::fs::renameat_with(CWD, d, CWD, l, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let swapped = async {
            let mut seen = 0;
            for _ in 0..150 {
                let reply = ada.get(&format!("/api/jobs/{id}/files/d/key")).await;
                let expected = match reply.status.as_u16() {
                    200 => reply.body == json!("harmless"),
                    404 | 409 => true,
                    _ => false,
                };
                assert!(expected, "{reply:?}");
                seen += u32::from(reply.status == 200);
                let tar = ada.bytes(&format!("/api/jobs/{id}/archive")).await;
                assert!(!tar.windows(7).any(|window| window == b"the key"));
                let put = ada.put(&format!("/api/jobs/{id}/files/d/put"), BYTES, "p").await;
                assert!([200, 201, 409].contains(&put.status.as_u16()), "{put:?}");
            }
            seen
        };
        let seen = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(swapped));
        done.store(true, Ordering::Relaxed);
        assert!(seen > 0, "no read succeeded");
    });
    assert_eq!(fs::read_dir(&secret).unwrap().count(), 1, "and nothing was written there");
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn uploads_must_fit_the_remaining_quota_and_belong_to_the_agent() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada).await;
    let at = |path: &str| format!("/api/jobs/{id}/files/{path}");
    ada.put(&at("big"), BYTES, vec![1; 1024 * 1024 + 1]).await.problem(ErrorCode::TooLarge);
    ada.put(&at("a/b/half"), BYTES, vec![1; 600 * 1024]).await.expect(201);
    ada.put(&at("other"), BYTES, vec![1; 600 * 1024]).await.problem(ErrorCode::TooLarge);
    // It fits when it replaces itself.
    ada.put(&at("a/b/half"), BYTES, vec![2; 700 * 1024]).await.expect(200);
    let unannounced = |bytes: usize| {
        let pieces = (0..bytes / 1024).map(|_| Ok::<_, std::io::Error>(vec![3_u8; 1024]));
        let body = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
        ada.request(Method::PUT, &at("streamed")).body(body)
    };
    Reply::of(unannounced(900 * 1024)).await.problem(ErrorCode::TooLarge);
    Reply::of(unannounced(100 * 1024)).await.expect(201);
    let workspace = world.workspace(id);
    let metadata = |path: &str| fs::metadata(workspace.join(path)).unwrap();
    if metadata(".").uid() == 10_001 {
        for path in ["a", "a/b", "a/b/half", "streamed", "given.txt"] {
            assert_eq!((metadata(path).uid(), metadata(path).gid()), (10_001, 10_001), "{path}");
        }
    }
    assert_eq!(metadata("streamed").permissions().mode() & 0o600, 0o600);
    fs::set_permissions(workspace.join("streamed"), fs::Permissions::from_mode(0o4755)).unwrap();
    ada.put(&at("streamed"), BYTES, "#!/bin/sh").await.expect(200);
    assert_eq!(
        metadata("streamed").permissions().mode() & 0o7777 | 0o066,
        0o777 & 0o755 | 0o066,
        "executable, not setuid"
    );
    // Empty files have no bytes, but their number is limited.
    for n in 0..300 {
        fs::write(workspace.join(format!("e{n}")), "").unwrap();
    }
    ada.put(&at("one-more"), BYTES, "").await.problem(ErrorCode::TooLarge);
    let staged = world.config().workspace_dir.join(".staging");
    assert_eq!(fs::read_dir(staged).unwrap().count(), 0, "refused uploads must leave no files");
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn a_read_is_bounded_whatever_size_a_file_claims() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada).await;
    let workspace = world.workspace(id);
    fs::File::create(workspace.join("holes")).unwrap().set_len(1 << 40).unwrap();
    let reported = ada.get(&format!("/api/jobs/{id}/files/holes")).await.problem(ErrorCode::TooLarge);
    assert!(reported.body["detail"].as_str().unwrap().contains("archive"), "{}", reported.body);
    ada.get(&format!("/api/jobs/{id}/archive")).await.problem(ErrorCode::TooLarge);
    fs::remove_file(workspace.join("holes")).unwrap();
    let deep = workspace.join("d/".repeat(600));
    fs::create_dir_all(&deep).unwrap();
    ada.get(&format!("/api/jobs/{id}/archive")).await.problem(ErrorCode::TooLarge);
    ada.put(&format!("/api/jobs/{id}/files/x"), BYTES, "").await.problem(ErrorCode::TooLarge);
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn files_are_removed_after_the_configured_retention() {
    let clock = ManualClock::at(DateTime::<Utc>::from_timestamp(1_800_000_000, 0).unwrap());
    let mut world = World::builder().clock(&clock).set("GANTRY_WORKSPACE_RETENTION_DAYS", 2).build().await;
    let ada = world.user("ada");
    let files = json!([{"path": "deep/er/a", "content": "b"}]);
    let old = ada.create(json!({"prompt": "work", "files": files})).await;
    let waiting = ada.create(json!({"prompt": "wait", "hold": true, "files": files})).await;
    world.manual_worker(old).await.finish("done").await;
    ada.wait_for(old, JobState::Completed).await;
    // As deep as a hostile agent can make it.
    std::fs::create_dir_all(world.workspace(old).join("d/".repeat(1000))).unwrap();
    let file = format!("/api/jobs/{old}/files/deep/er/a");

    clock.advance(Duration::from_hours(48) - Duration::from_secs(1));
    world.restart().await;
    assert_eq!(world.user("ada").bytes(&file).await, b"b");
    clock.advance(Duration::from_secs(2));
    let ada = world.user("ada");
    for path in [&format!("/api/jobs/{old}/files"), &file, &format!("/api/jobs/{old}/archive")] {
        ada.get(path).await.problem(ErrorCode::WorkspaceGone);
    }
    world.user("bob").get(&file).await.problem(ErrorCode::NotFound);
    world.restart().await;
    tests::until("the old workspace to be removed", async || !world.workspace(old).exists()).await;
    let ada = world.user("ada");
    ada.get(&file).await.problem(ErrorCode::WorkspaceGone);
    assert_eq!(
        ada.bytes(&format!("/api/jobs/{waiting}/files/deep/er/a")).await,
        b"b",
        "workspaces of unfinished jobs must be kept"
    );
    assert!(matches!(world.clock(), Clock::Manual(_)));
    ada.cancel(waiting).await.expect(202);
    world.finish().await;
}
