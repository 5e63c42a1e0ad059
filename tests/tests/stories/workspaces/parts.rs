//! Parts of files (`Range`), and files found by their names.

use std::{fs, process::Command, time::Duration};

use orchestrator::{
    auth::Role,
    clock::{Clock, ManualClock},
};
use protocol::{ErrorCode, FileList, JobId};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, World};

async fn held(user: &User, content: &str) -> (JobId, String) {
    let files = json!([{"path": "a.txt", "content": content}]);
    let id = user.create(json!({"prompt": "wait", "hold": true, "files": files})).await;
    (id, format!("/api/jobs/{id}/files/a.txt"))
}

async fn part(user: &User, path: &str, headers: &[(&str, &str)]) -> Reply {
    let request = user.request(Method::GET, path);
    Reply::of(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

/// A clock some minutes after now: files that are written now have not changed for a while.
fn later() -> ManualClock {
    ManualClock::at(Clock::system().now() + Duration::from_mins(10))
}

#[tokio::test]
async fn a_part_of_a_file_is_read() {
    let world = World::new().await;
    let ada = world.user("ada");
    let (id, path) = held(&ada, "zero,one,two,three").await;
    let read = async |range: &str| {
        let reply = part(&ada, &path, &[("Range", range)]).await;
        let named = reply.header("content-range").unwrap_or_default().to_owned();
        (reply.status.as_u16(), reply.body.as_str().unwrap_or_default().to_owned(), named)
    };
    let given = |status, text: &str, range: &str| (status, text.to_owned(), range.to_owned());
    assert_eq!(read("bytes=5-7").await, given(206, "one", "bytes 5-7/18"));
    assert_eq!(read("bytes=13-").await, given(206, "three", "bytes 13-17/18"));
    assert_eq!(read("bytes=-5").await, given(206, "three", "bytes 13-17/18"));
    assert_eq!(read("bytes=9-1000").await, given(206, "two,three", "bytes 9-17/18"));
    assert_eq!(read("bytes=0-1,4-5").await, given(200, "zero,one,two,three", ""));
    let after = part(&ada, &path, &[("Range", "bytes=18-")]).await;
    assert_eq!(after.header("content-range"), Some("bytes */18"));
    after.problem(ErrorCode::RangeNotSatisfiable);
    let whole = part(&ada, &path, &[]).await.expect(200);
    assert_eq!((whole.header("accept-ranges"), whole.header("content-length")), (Some("bytes"), Some("18")));
    let head = Reply::of(ada.request(Method::HEAD, &path).header("Range", "bytes=1-2")).await.expect(200);
    assert_eq!((head.header("content-length"), &head.body), (Some("18"), &Value::Null));
    // Each user their own files, whatever part of them.
    part(&world.user("bob"), &path, &[("Range", "bytes=0-1")]).await.problem(ErrorCode::NotFound);
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn a_part_belongs_to_the_version_that_the_client_has() {
    let time = later();
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let (id, path) = held(&ada, "first version").await;
    let reply = part(&ada, &path, &[]).await.expect(200);
    let validators: Vec<_> = ["etag", "last-modified"].map(|name| reply.header(name).unwrap().to_owned()).into();
    for validator in &validators {
        let same = part(&ada, &path, &[("Range", "bytes=6-"), ("If-Range", validator)]).await.expect(206);
        assert_eq!(same.body, "version");
    }
    part(&ada, &path, &[("If-None-Match", &validators[0])]).await.expect(304);

    // The same size, and a job can set the same time.
    let file = world.workspace(id).join("a.txt");
    let modified = fs::metadata(&file).unwrap().modified().unwrap();
    fs::write(&file, "other version").unwrap();
    fs::File::options().write(true).open(&file).unwrap().set_modified(modified - Duration::from_hours(1)).unwrap();
    let tag = part(&ada, &path, &[("If-None-Match", &validators[0])]).await.expect(200);
    assert_ne!(tag.header("etag"), Some(validators[0].as_str()));
    let forged = tag.header("last-modified").unwrap();
    for validator in [&validators[0], &validators[1], forged] {
        let changed = part(&ada, &path, &[("Range", "bytes=6-"), ("If-Range", validator)]).await.expect(200);
        assert_eq!(changed.body, "other version", "{validator}");
    }
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn a_file_that_has_just_changed_has_no_tag() {
    let world = World::new().await;
    let ada = world.user("ada");
    let (id, path) = held(&ada, "just written").await;
    let reply = part(&ada, &path, &[]).await.expect(200);
    assert_eq!(reply.header("etag"), None);
    let date = reply.header("last-modified").unwrap();
    let whole = part(&ada, &path, &[("Range", "bytes=5-"), ("If-Range", date)]).await.expect(200);
    assert_eq!(whole.body, "just written");
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn a_file_of_any_size_is_read_in_parts() {
    let world = World::new().await;
    let ada = world.user("ada");
    let (id, _) = held(&ada, "").await;
    fs::File::create(world.workspace(id).join("holes")).unwrap().set_len(1 << 40).unwrap();
    let path = format!("/api/jobs/{id}/files/holes");
    part(&ada, &path, &[]).await.problem(ErrorCode::TooLarge);
    part(&ada, &path, &[("Range", "bytes=1-")]).await.problem(ErrorCode::TooLarge);
    let end = part(&ada, &path, &[("Range", "bytes=-3")]).await.expect(206);
    assert_eq!(end.header("content-range"), Some("bytes 1099511627773-1099511627775/1099511627776"));
    assert_eq!(end.body, "\0\0\0");
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

/// Programs of other authors continue a download that was cut, and see that a whole one is whole.
#[tokio::test(flavor = "multi_thread")]
async fn curl_and_wget_continue_a_download() {
    let world = World::new().await;
    let ada = world.user("ada");
    let content = (0..20_000).fold(String::new(), |text, number| text + &format!("line {number}\n"));
    let (id, path) = held(&ada, &content).await;
    let directory = tempfile::tempdir().unwrap();
    let (url, target) = (format!("{}{path}", ada.base()), directory.path().join("a.txt"));
    let header = format!("Authorization: Bearer {}", world.fresh("ada", Role::User));
    let target_text = target.to_str().unwrap();
    let programs: [(&str, &[&str]); 2] = [
        ("curl", &["-sS", "-C", "-", "-H", &header, "-o", target_text, &url]),
        ("wget", &["-qc", "--header", &header, "-O", target_text, &url]),
    ];
    for (program, arguments) in programs {
        for had in [0, 7, content.len() - 1, content.len()] {
            fs::write(&target, &content[..had]).unwrap();
            let output = Command::new(program).args(arguments).output();
            let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} with {had} bytes: {} {text}", output.status);
            assert!(fs::read_to_string(&target).unwrap() == content, "{program} with {had} bytes");
        }
    }
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn files_are_found_by_name() {
    let world = World::new().await;
    let ada = world.user("ada");
    let files: Vec<_> = ["src/Parser.rs", "src/deep/er/parser.txt", "doc/parser.md", "x"]
        .map(|path| json!({"path": path, "content": ""}))
        .into();
    let id = ada.create(json!({"prompt": "wait", "hold": true, "files": files})).await;
    let find = async |query: &str| ada.get(&format!("/api/jobs/{id}/files?{query}")).await;
    let paths = |list: &FileList| list.items.iter().map(|entry| entry.path.clone()).collect::<Vec<_>>();
    let all: FileList = find("q=pARSER").await.expect(200).json();
    assert_eq!(paths(&all), ["doc/parser.md", "src/Parser.rs", "src/deep/er/parser.txt"]);
    assert_eq!((all.next_cursor, all.incomplete), (None, false));
    let first: FileList = find("q=parser&limit=2").await.expect(200).json();
    let rest: FileList =
        find(&format!("q=parser&limit=2&cursor={}", first.next_cursor.as_ref().unwrap())).await.expect(200).json();
    assert_eq!([paths(&first), paths(&rest)].concat(), ["doc/parser.md", "src/Parser.rs", "src/deep/er/parser.txt"]);
    assert_eq!(paths(&find("q=parser&path=src/deep").await.expect(200).json()), ["src/deep/er/parser.txt"]);
    for query in ["q=", "q=a%2fb", "q=%00", &format!("q={}", "x".repeat(256))] {
        let refused = find(query).await.problem(ErrorCode::Invalid);
        assert_eq!(refused.fields(), ["q"], "{query}");
    }
    find("q=a&path=missing").await.problem(ErrorCode::NotFound);
    world.user("bob").get(&format!("/api/jobs/{id}/files?q=a")).await.problem(ErrorCode::NotFound);
    ada.cancel(id).await.expect(202);
    world.finish().await;
}
