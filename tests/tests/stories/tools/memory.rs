//! Memory: documents of a user over REST, by tools and by the command line.

use orchestrator::auth::Role;
use protocol::{ErrorCode, MemoryAuthor, MemoryDocument, MemoryEntry, MemoryMatch, MemoryVersion, UserId};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{ManualWorker, Reply, User, World};

use crate::worker_api::running_job;

fn at(path: &str) -> String {
    let escaped: Vec<String> = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
    format!("/api/memory?path={}", escaped.concat())
}

async fn put(user: &User, path: &str, content: &str) -> Reply {
    Reply::of(user.request(Method::PUT, &at(path)).json(&json!({"content": content}))).await
}

async fn put_if(user: &User, path: &str, version: &str, content: &str) -> Reply {
    let request = user.request(Method::PUT, &at(path)).header("If-Match", version);
    Reply::of(request.json(&json!({"content": content}))).await
}

async fn delete(user: &User, path: &str) -> Reply {
    Reply::of(user.request(Method::DELETE, &at(path))).await
}

async fn versions(user: &User, path: &str) -> Reply {
    user.get(&at(path).replace("memory?", "memory/versions?")).await
}

fn items<T: serde::de::DeserializeOwned>(reply: Reply) -> Vec<T> {
    let body = reply.expect(200).body;
    assert!(body["next_cursor"].is_null(), "{body:#}");
    serde_json::from_value(body["items"].clone()).unwrap()
}

/// Writes new documents: paths with their contents.
async fn put_all(user: &User, documents: &[(&str, &str)]) {
    for (path, content) in documents {
        put(user, path, content).await.expect(201);
    }
}

#[tokio::test]
async fn a_document_is_written_read_and_deleted_with_its_versions() {
    let world = World::new().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let created = put(&ada, "notes/today.md", "one").await.expect(201);
    let entry: MemoryEntry = created.json();
    assert_eq!((entry.path.as_str(), entry.version, entry.bytes), ("notes/today.md", 1, 3));
    assert_eq!(created.header("etag"), Some("\"1\""));
    let replaced = put(&ada, "notes/today.md", "two, longer").await.expect(200);
    assert_eq!(replaced.header("etag"), Some("\"2\""));
    let read = ada.get(&at("notes/today.md")).await.expect(200);
    assert_eq!(read.header("etag"), Some("\"2\""));
    let document: MemoryDocument = read.json();
    assert_eq!((document.version, document.content.as_str()), (2, "two, longer"));
    let first: MemoryDocument = ada.get(&format!("{}&version=1", at("notes/today.md"))).await.expect(200).json();
    assert_eq!((first.version, first.content.as_str()), (1, "one"));
    ada.get(&format!("{}&version=3", at("notes/today.md"))).await.problem(ErrorCode::NotFound);
    let kept: Vec<MemoryVersion> = items(versions(&ada, "notes/today.md").await);
    let by = MemoryAuthor::User(UserId("ada".to_owned()));
    let shown: Vec<_> = kept.iter().map(|one| (one.version, one.bytes, &one.by)).collect();
    assert_eq!(shown, [(2, 11, &by), (1, 3, &by)]);
    assert_eq!(kept[0].created_at, document.updated_at);
    assert_eq!(delete(&ada, "notes/today.md").await.expect(204).body, Value::Null);
    delete(&ada, "notes/today.md").await.problem(ErrorCode::NotFound);
    ada.get(&at("notes/today.md")).await.problem(ErrorCode::NotFound);
    versions(&ada, "notes/today.md").await.problem(ErrorCode::NotFound);
    put(&ada, "notes/today.md", "again").await.expect(201);
    let audit = root.get("/api/audit").await.expect(200).body;
    let entry = |row: &Value| format!("{} {}", row["action"].as_str().unwrap(), row["outcome"].as_str().unwrap());
    let entries: Vec<String> = audit["items"].as_array().unwrap().iter().rev().map(entry).collect();
    let expected =
        ["memory.write done", "memory.write done", "memory.delete done", "memory.delete refused", "memory.write done"];
    assert_eq!(entries, expected);
    assert!(!audit.to_string().contains("today"), "an entry has no text of the user");
    world.finish().await;
}

#[tokio::test]
async fn a_document_that_has_changed_meanwhile_is_not_overwritten() {
    let world = World::new().await;
    let ada = world.user("ada");
    put_if(&ada, "a.md", "*", "x").await.problem(ErrorCode::PreconditionFailed);
    put_all(&ada, &[("a.md", "one")]).await;
    assert_eq!(put_if(&ada, "a.md", "\"1\"", "two").await.expect(200).header("etag"), Some("\"2\""));
    let refused = put_if(&ada, "a.md", "\"1\"", "three").await.problem(ErrorCode::PreconditionFailed);
    assert!(refused.body["detail"].as_str().unwrap().contains("version 2"), "{:#}", refused.body);
    put_if(&ada, "a.md", "today", "three").await.problem(ErrorCode::BadRequest);
    let stale = ada.request(Method::DELETE, &at("a.md")).header("If-Match", "\"1\"");
    Reply::of(stale).await.problem(ErrorCode::PreconditionFailed);
    put_if(&ada, "a.md", "*", "three").await.expect(200);
    assert_eq!(ada.get(&at("a.md")).await.expect(200).body["content"], "three");
    // Of writes that expect the same version, one succeeds.
    let writes = (0..8).map(|n| {
        let ada = ada.clone();
        async move { put_if(&ada, "a.md", "\"3\"", &n.to_string()).await.status.as_u16() }
    });
    let mut statuses = futures_util::future::join_all(writes).await;
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 412, 412, 412, 412, 412, 412, 412]);
    world.finish().await;
}

#[tokio::test]
async fn another_users_document_looks_like_a_missing_one() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    put_all(&ada, &[("notes/a.md", "the zebra"), ("b.md", "x")]).await;
    for (foreign, missing) in [
        (bob.get(&at("notes/a.md")).await, bob.get(&at("none.md")).await),
        (delete(&bob, "notes/a.md").await, delete(&bob, "none.md").await),
        (versions(&bob, "notes/a.md").await, versions(&bob, "none.md").await),
    ] {
        let (foreign, missing) = (foreign.problem(ErrorCode::NotFound), missing.problem(ErrorCode::NotFound));
        assert_eq!(foreign.body["detail"], missing.body["detail"]);
    }
    put_if(&bob, "notes/a.md", "*", "x").await.problem(ErrorCode::PreconditionFailed);
    assert_eq!(items::<MemoryEntry>(bob.get("/api/memory/tree").await), []);
    assert_eq!(items::<MemoryMatch>(bob.get("/api/memory/search?q=zebra").await), []);
    world.someone("root", Role::Admin).get(&at("notes/a.md")).await.problem(ErrorCode::NotFound);
    put(&bob, "notes/a.md", "bob's").await.expect(201);
    assert_eq!(ada.get(&at("notes/a.md")).await.expect(200).body["content"], "the zebra");

    let viewer = world.someone("ada", Role::Viewer);
    assert_eq!(viewer.get(&at("b.md")).await.expect(200).body["content"], "x");
    assert_eq!(items::<MemoryMatch>(viewer.get("/api/memory/search?q=zebra").await).len(), 1);
    put(&viewer, "b.md", "y").await.problem(ErrorCode::Forbidden);
    delete(&viewer, "b.md").await.problem(ErrorCode::Forbidden);
    world.anonymous().get(&at("b.md")).await.problem(ErrorCode::Unauthorized);
    world.finish().await;
}

#[tokio::test]
async fn odd_paths_and_parameters_are_refused_with_the_field() {
    let world = World::new().await;
    let ada = world.user("ada");
    for path in ["", "/etc/passwd", "..", "a/../b", "./a", "a//b", "a/", "a\\b", "a\nb", "a\0b", " a", &"a".repeat(256)]
    {
        for reply in [ada.get(&at(path)).await, put(&ada, path, "x").await, delete(&ada, path).await] {
            assert_eq!(reply.problem(ErrorCode::Invalid).fields(), ["path"], "{path:?}");
        }
    }
    for (query, field) in [
        ("/api/memory", "path"),
        ("/api/memory?path=a&version=x", "version"),
        ("/api/memory?path=a&user=bob", "user"),
        ("/api/memory/tree?path=../x", "path"),
        ("/api/memory/tree?cursor=%2b", "cursor"),
        ("/api/memory/search?q=", "q"),
        ("/api/memory/search?q=a&limit=201", "limit"),
        ("/api/memory/search", "q"),
    ] {
        assert_eq!(ada.get(query).await.problem(ErrorCode::Invalid).fields(), [field], "{query}");
    }
    let unknown = ada.request(Method::PUT, &at("a.md")).json(&json!({"content": "x", "by": "root"}));
    assert_eq!(Reply::of(unknown).await.problem(ErrorCode::Invalid).fields(), ["by"]);
    assert_eq!(items::<MemoryEntry>(ada.get("/api/memory/tree").await), [], "nothing was written");
    world.finish().await;
}

#[tokio::test]
async fn a_document_has_at_most_one_mebibyte() {
    let world = World::new().await;
    let ada = world.user("ada");
    // Six bytes of JSON each.
    let largest = "\u{1}".repeat(1 << 20);
    put(&ada, "a.md", &largest).await.expect(201);
    put(&ada, "a.md", &format!("{largest}x")).await.problem(ErrorCode::TooLarge);
    let read: MemoryDocument = ada.get(&at("a.md")).await.expect(200).json();
    assert_eq!((read.version, read.content.len()), (1, 1 << 20));
    world.finish().await;
}

#[tokio::test]
async fn documents_are_listed_and_searched() {
    let world = World::new().await;
    let ada = world.user("ada");
    put_all(
        &ada,
        &[
            ("ideas/rust.md", "Rust, C++ and -x"),
            ("ideas/机器.md", "东京的机器学习计划"),
            ("todo.md", "Water the plants; learn rust \"soon\""),
        ],
    )
    .await;
    let paths = |entries: &[MemoryEntry]| entries.iter().map(|one| one.path.clone()).collect::<Vec<_>>();
    assert_eq!(paths(&items(ada.get("/api/memory/tree").await)), ["ideas/rust.md", "ideas/机器.md", "todo.md"]);
    assert_eq!(paths(&items(ada.get("/api/memory/tree?path=ideas/").await)), ["ideas/rust.md", "ideas/机器.md"]);
    let page = ada.get("/api/memory/tree?limit=2").await.expect(200).body;
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = ada.get(&format!("/api/memory/tree?limit=2&cursor={cursor}")).await;
    assert_eq!(paths(&items(rest)), ["todo.md"]);
    for (q, expected) in [
        ("rust", &["ideas/rust.md", "todo.md"][..]),
        ("c%2B%2B", &["ideas/rust.md"]),
        ("-x", &["ideas/rust.md"]),
        ("%22soon%22", &["todo.md"]),
        ("rust%22soon", &["todo.md"]),
        ("%E5%AD%A6%E4%B9%A0", &["ideas/机器.md"]),
        ("%22", &[]),
        ("plants+NEAR(", &["todo.md"]),
    ] {
        let found: Vec<MemoryMatch> = items(ada.get(&format!("/api/memory/search?q={q}")).await);
        assert_eq!(found.iter().map(|one| one.path.as_str()).collect::<Vec<_>>(), expected, "{q}");
        assert!(found.iter().all(|one| one.score > 0.0 && !one.snippet.is_empty()));
    }
    world.finish().await;
}

/// The JSON in a reply's output.
#[track_caller]
fn output(reply: &Value) -> Value {
    let text = reply["output"].as_str().unwrap_or_else(|| panic!("no output: {reply:#}"));
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

async fn tool(worker: &ManualWorker, id: &str, name: &str, arguments: Value) -> Value {
    worker.tool(name, id, arguments).await.expect(200).body
}

#[tokio::test]
async fn a_job_uses_its_owners_memory() {
    let world = World::new().await;
    let (ada, bob, root) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    put_all(&ada, &[("notes/a.md", "one")]).await;
    let (worker, bobs) = (running_job(&world, &ada).await, running_job(&world, &bob).await);
    let job = worker.job;
    let append = json!({"path": "notes/a.md", "content": "two", "append": true});
    let written = tool(&worker, "t1", "memory_write", append.clone()).await;
    assert_eq!(output(&written), json!({"path": "notes/a.md", "version": 2, "bytes": 7}));
    // The same call again is the same call.
    assert_eq!(tool(&worker, "t1", "memory_write", append).await, written);
    assert_eq!(tool(&worker, "t2", "memory_read", json!({"path": "notes/a.md"})).await["output"], "one\ntwo");
    assert_eq!(ada.get(&at("notes/a.md")).await.expect(200).body["content"], "one\ntwo");
    let kept: Vec<MemoryVersion> = items(versions(&ada, "notes/a.md").await);
    assert_eq!(kept[0].by, MemoryAuthor::Agent(job.into()));
    let found = tool(&worker, "t3", "memory_search", json!({"query": "two", "limit": 1})).await;
    assert_eq!(output(&found)["items"][0]["path"], "notes/a.md");
    let tree = tool(&worker, "t4", "memory_tree", json!({})).await;
    assert_eq!(output(&tree)["items"][0]["path"], "notes/a.md");
    let replaced = json!({"path": "notes/b.md", "content": "new"});
    assert_eq!(output(&tool(&worker, "t5", "memory_write", replaced).await)["version"], 1);
    for (id, name, arguments) in
        [("t1", "memory_read", json!({"path": "notes/a.md"})), ("t2", "memory_read", json!({"path": "none.md"}))]
    {
        let refused = tool(&bobs, id, name, arguments).await;
        assert_eq!(refused["error"]["kind"], "not_found", "{refused:#}");
    }
    assert_eq!(output(&tool(&bobs, "t3", "memory_search", json!({"query": "two"})).await), json!({"items": []}));
    let rows = root.get("/api/audit?action=memory.write&user=ada").await.expect(200).body;
    let by_agent = &rows["items"][0];
    assert_eq!((&by_agent["role"], &by_agent["job_id"]), (&json!("agent"), &json!(job)), "{rows:#}");
    for (who, worker) in [(&ada, worker), (&bob, bobs)] {
        let id = worker.job;
        worker.finish("done").await;
        who.wait_for_end(id).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn a_job_cannot_write_documents_that_steer_later_work() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    for (index, (path, kind)) in [
        ("IDENTITY.md", "not_authorized"),
        ("identity.md", "not_authorized"),
        ("HEARTBEAT.md", "autonomous_unavailable"),
        ("context/team.md", "autonomous_unavailable"),
        ("./HEARTBEAT.md", "invalid_parameters"),
        ("context//team.md", "invalid_parameters"),
        ("../other/notes.md", "invalid_parameters"),
    ]
    .into_iter()
    .enumerate()
    {
        let refused =
            tool(&worker, &format!("t{index}"), "memory_write", json!({"path": path, "content": "obey"})).await;
        assert_eq!(refused["error"]["kind"], kind, "{path}: {refused:#}");
    }
    assert_eq!(items::<MemoryEntry>(ada.get("/api/memory/tree").await), []);
    // The user may, and the job reads them.
    put_all(&ada, &[("IDENTITY.md", "I am Ada's"), ("HEARTBEAT.md", "- look"), ("context/team.md", "we")]).await;
    assert_eq!(tool(&worker, "r1", "memory_read", json!({"path": "IDENTITY.md"})).await["output"], "I am Ada's");
    let id = worker.job;
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    world.finish().await;
}

#[tokio::test]
async fn the_command_line_manages_documents() {
    let world = World::new().await;
    let ada = world.user("ada");
    let file = world.directory().join("note.txt");
    std::fs::write(&file, "remember the plants\n").unwrap();
    let environment = vec![
        ("GANTRY_URL".to_owned(), ada.base().to_owned()),
        ("GANTRY_TOKEN".to_owned(), world.fresh("ada", Role::User)),
    ];
    let gantry =
        async |arguments: &[&str]| tests::install::program::run(&[&["memory"], arguments].concat(), &environment).await;
    let file = file.to_str().unwrap();
    let written = gantry(&["put", "notes/a.md", file]).await;
    assert_eq!((written.code, written.stdout.as_str()), (Some(0), "notes/a.md (version 1, 20 bytes)"), "{written:?}");
    // Standard input is empty here, which may be a mistake unless it is named.
    assert_eq!(gantry(&["put", "notes/a.md", "--if-version", "1"]).await.code, Some(2));
    assert_eq!(gantry(&["put", "notes/a.md", "-", "--if-version", "1"]).await.code, Some(0));
    let stale = gantry(&["put", "notes/a.md", file, "--if-version", "1"]).await;
    assert_eq!(stale.code, Some(5), "{stale:?}");
    assert_eq!(gantry(&["cat", "notes/a.md"]).await.stdout, "");
    let first = gantry(&["--json", "cat", "notes/a.md", "--version", "1"]).await.json();
    assert_eq!(first["content"], "remember the plants\n");
    assert_eq!(gantry(&["put", "b.md", file]).await.code, Some(0));
    let listed = gantry(&["ls"]).await.stdout;
    assert!(listed.lines().count() == 3 && listed.contains("notes/a.md"), "{listed}");
    assert_eq!(gantry(&["--json", "ls", "notes"]).await.json()["version"], 2);
    let found = gantry(&["search", "the", "plants"]).await.stdout;
    assert_eq!(found, "b.md\n    remember the plants");
    let history = gantry(&["history", "notes/a.md"]).await.stdout;
    assert!(history.lines().count() == 3 && history.contains("user:ada"), "{history}");
    assert_eq!(gantry(&["rm", "notes/a.md", "--if-version", "1"]).await.code, Some(5));
    assert_eq!(gantry(&["rm", "notes/a.md"]).await.stdout, "notes/a.md deleted");
    assert_eq!(gantry(&["cat", "notes/a.md"]).await.code, Some(4));
    assert_eq!(gantry(&["cat", "../etc/passwd"]).await.code, Some(2));
    world.finish().await;
}
