//! Workspace archives: a forbidden entry refuses the whole archive, and sizes are bounded.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    os::unix::{
        fs::{MetadataExt, PermissionsExt, symlink},
        net::UnixListener,
    },
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use orchestrator::auth::Role;
use protocol::{ErrorCode, JobId};
use serde_json::{Value, json};
use tar::{Archive, Builder, EntryType, Header};
use tests::{User, World};

const TAR: &str = "application/x-tar";

async fn held(user: &User, disk_mb: u64) -> JobId {
    let files = json!([{"path": "given.txt", "content": "given"}]);
    user.create(json!({"prompt": "wait", "hold": true, "limits": {"disk_mb": disk_mb}, "files": files})).await
}

/// A header with any name, without the checks that `tar` makes.
fn header(kind: EntryType, name: &str, target: &str, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(1_700_000_000);
    header.set_cksum();
    header
}

fn padded(bytes: &mut Vec<u8>, content: &[u8]) {
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
}

/// A tar with these entries after one valid file.
fn tar(entries: &[(Header, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![];
    for (header, content) in [(header(EntryType::Regular, "good.txt", "", 4), b"good".as_slice())].iter().chain(entries)
    {
        bytes.extend_from_slice(header.as_bytes());
        padded(&mut bytes, content);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn long(name: &str) -> (Header, Vec<u8>) {
    let content = [name.as_bytes(), b"\0"].concat();
    (header(EntryType::GNULongName, "././@LongLink", "", content.len() as u64), content)
}

fn pax(key: &str, value: &str) -> (Header, Vec<u8>) {
    let tail = format!(" {key}={value}\n");
    let mut length = tail.len() + 1;
    while length != tail.len() + length.to_string().len() {
        length += 1;
    }
    let record = format!("{length}{tail}").into_bytes();
    (header(EntryType::XHeader, "pax", "", record.len() as u64), record)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(vec![], Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_workspace_archive_is_complete_without_fifos_and_sockets() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada, 8).await;
    let workspace = world.workspace(id);
    let long = "l".repeat(200);
    fs::create_dir_all(workspace.join("src").join(&long)).unwrap();
    fs::write(workspace.join("src").join(&long).join("x"), vec![7; 100_000]).unwrap();
    fs::write(workspace.join("run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(workspace.join("run.sh"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::hard_link(workspace.join("run.sh"), workspace.join("same.sh")).unwrap();
    symlink("/etc/passwd", workspace.join("out")).unwrap();
    symlink(format!("src/{long}"), workspace.join("in")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(workspace.join("fifo")).status().unwrap().success());
    let _socket = UnixListener::bind(workspace.join("sock")).unwrap();

    let reply = ada.get(&format!("/api/jobs/{id}/archive")).await.expect(200);
    assert_eq!(reply.header("content-type"), Some("application/octet-stream"));
    let sent = ada.bytes(&format!("/api/jobs/{id}/archive")).await;
    let mut seen = BTreeMap::new();
    for entry in Archive::new(sent.as_slice()).entries().unwrap() {
        let mut entry = entry.unwrap();
        let (kind, mode) = (entry.header().entry_type(), entry.header().mode().unwrap());
        let target = entry.link_name().unwrap().map(|target| target.display().to_string());
        let path = entry.path().unwrap().display().to_string();
        let mut content = vec![];
        entry.read_to_end(&mut content).unwrap();
        seen.insert(path, (kind, mode, target, content));
    }
    let (file, script) = (EntryType::Regular, b"#!/bin/sh\n".to_vec());
    let mode = |path: &str| fs::symlink_metadata(workspace.join(path)).unwrap().mode() & 0o777;
    let deep = format!("src/{long}/x");
    let expected = BTreeMap::from([
        ("given.txt".to_owned(), (file, mode("given.txt"), None, b"given".to_vec())),
        ("in".to_owned(), (EntryType::Symlink, 0o777, Some(format!("src/{long}")), vec![])),
        ("out".to_owned(), (EntryType::Symlink, 0o777, Some("/etc/passwd".to_owned()), vec![])),
        ("run.sh".to_owned(), (file, 0o755, None, script.clone())),
        ("same.sh".to_owned(), (file, 0o755, None, script)),
        ("src/".to_owned(), (EntryType::Directory, mode("src"), None, vec![])),
        (format!("src/{long}/"), (EntryType::Directory, mode("src"), None, vec![])),
        (deep.clone(), (file, mode(&deep), None, vec![7; 100_000])),
    ]);
    assert_eq!(seen, expected);
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn an_archive_survives_a_round_trip() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada, 8).await;
    let (archive, workspace) = (format!("/api/jobs/{id}/archive"), world.workspace(id));
    let mut builder = Builder::new(vec![]);
    let mut script = Header::new_gnu();
    script.set_mode(0o6755);
    script.set_size(4);
    script.set_mtime(1_600_000_000);
    builder.append_data(&mut script, "bin/run", b"run\n".as_slice()).unwrap();
    builder.append_data(&mut script.clone(), "bin/".to_owned() + &"long".repeat(60), b"long".as_slice()).unwrap();
    let mut link = header(EntryType::Symlink, "", "", 0);
    builder.append_link(&mut link, "bin/latest", "../bin/run").unwrap();
    let mut interpreter = header(EntryType::Symlink, "", "", 0);
    builder.append_link(&mut interpreter, "bin/python3", "/usr/bin/python3").unwrap();
    let mut second = header(EntryType::Link, "", "", 0);
    builder.append_link(&mut second, "again", "bin/run").unwrap();
    let sent = builder.into_inner().unwrap();
    for (kind, body) in [(TAR, sent.clone()), ("application/gzip", gzip(&sent)), (TAR, sent.clone())] {
        let unpacked = ada.put(&archive, kind, body).await.expect(200);
        assert_eq!(unpacked.body, json!({"entries": 5, "size_bytes": 8}));
    }
    let encoded = ada.request(reqwest::Method::PUT, &archive).header("Content-Encoding", "gzip").body(gzip(&sent));
    tests::Reply::of(encoded).await.expect(200);

    assert_eq!(names(&workspace), ["again", "bin", "given.txt"]);
    let run = fs::metadata(workspace.join("bin/run")).unwrap();
    assert_eq!(run.permissions().mode() & 0o7111, 0o0111, "executable and not setuid");
    assert_eq!(run.mtime(), 1_600_000_000);
    assert_eq!(fs::read_link(workspace.join("bin/latest")).unwrap(), Path::new("../bin/run"));
    assert_eq!(fs::read_to_string(workspace.join("again")).unwrap(), "run\n");
    let owner = fs::metadata(&workspace).unwrap().uid();
    for path in ["bin", "bin/run", "again"] {
        assert_eq!(fs::metadata(workspace.join(path)).unwrap().uid(), owner, "{path}");
    }
    // The downloaded archive is accepted as an upload to another job.
    let other = held(&ada, 8).await;
    let out = ada.bytes(&archive).await;
    ada.put(&format!("/api/jobs/{other}/archive"), TAR, out.clone()).await.expect(200);
    assert_eq!(names(&world.workspace(other)), names(&workspace));
    for path in [workspace, world.workspace(other)] {
        assert_eq!(fs::read_link(path.join("bin/python3")).unwrap(), Path::new("/usr/bin/python3"));
    }
    for job in [id, other] {
        ada.cancel(job).await.expect(202);
    }
    ada.put(&archive, TAR, sent).await.problem(ErrorCode::JobFinished);
    world.finish().await;
}

/// Forbidden entries, with the path that the error names.
fn hostile() -> Vec<(&'static str, Vec<u8>)> {
    let one = |kind, name: &str, target: &str| tar(&[(header(kind, name, target, 0), b"")]);
    let file = |name: &str| tar(&[(header(EntryType::Regular, name, "", 1), b"x")]);
    let after = |(first, content): (Header, Vec<u8>), name: &str| {
        tar(&[(first, &content), (header(EntryType::Regular, name, "", 1), b"x")])
    };
    let (link, hard) = (EntryType::Symlink, EntryType::Link);
    let through = |name: &str, target: &str, below: &'static str| {
        tar(&[(header(link, name, target, 0), b""), (header(EntryType::Regular, below, "", 1), b"x")])
    };
    vec![
        ("/etc/cron.d/x", file("/etc/cron.d/x")),
        ("../x", file("../x")),
        ("a/../../x", file("a/../../x")),
        ("a/../x", file("a/../x")),
        ("a//x", file("a//x")),
        ("/abs/", one(EntryType::Directory, "/abs/", "")),
        ("../d/", one(EntryType::Directory, "../d/", "")),
        ("../long", after(long("../long"), "short")),
        ("/pax", after(pax("path", "/pax"), "short")),
        ("size", after(pax("size", "1000000"), "size")),
        ("holes", after(pax("GNU.sparse.major", "1"), "holes")),
        ("sparse", one(EntryType::GNUSparse, "sparse", "")),
        ("l", one(link, "l", "")),
        ("l/x", through("l", ".", "l/x")),
        ("l/x", through("l", "/tmp", "l/x")),
        ("l/x", through("l", "..", "l/x")),
        ("good.txt/x", file("good.txt/x")),
        ("h", one(hard, "h", "/etc/passwd")),
        ("h", one(hard, "h", "../x")),
        ("h", one(hard, "h", "not-there")),
        ("h", one(hard, "h", "given.txt")),
        ("null", one(EntryType::Char, "null", "")),
        ("sda", one(EntryType::Block, "sda", "")),
        ("fifo", one(EntryType::Fifo, "fifo", "")),
        ("odd", one(EntryType::new(b'Z'), "odd", "")),
        ("good.txt", one(EntryType::Directory, "good.txt", "")),
        ("pax", tar(&[(header(EntryType::XHeader, "pax", "", 100_000), &[b'x'; 100_000])])),
    ]
}

#[tokio::test]
async fn one_forbidden_entry_refuses_the_whole_archive() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada, 8).await;
    for (entry, body) in hostile() {
        for (kind, body) in [(TAR, body.clone()), ("application/gzip", gzip(&body))] {
            let reply = ada.put(&format!("/api/jobs/{id}/archive"), kind, body).await.problem(ErrorCode::Invalid);
            assert_eq!(reply.fields(), [entry], "{:#}", reply.body);
        }
        assert_eq!(names(&world.workspace(id)), ["given.txt"], "after {entry}");
    }
    let whole = tar(&[(header(EntryType::Regular, "cut", "", 5000), &[1; 5000])]);
    let cut = whole[..3000].to_vec();
    let not_gzip = gzip(&whole)[..100].to_vec();
    for (kind, body) in [(TAR, b"not a tar".repeat(200)), (TAR, cut), (TAR, vec![]), ("application/gzip", not_gzip)] {
        let reply = ada.put(&format!("/api/jobs/{id}/archive"), kind, body).await.problem(ErrorCode::Invalid);
        assert_eq!(reply.fields(), ["body"], "{:#}", reply.body);
    }
    ada.put(&format!("/api/jobs/{id}/archive"), "text/html", whole).await.problem(ErrorCode::UnsupportedMediaType);
    assert_eq!(names(&world.workspace(id)), ["given.txt"]);
    assert_eq!(names(&world.config().workspace_dir.join(".staging")), Vec::<String>::new());
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn decompression_bombs_are_refused() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada, 1).await;
    let many = |count: u32| {
        let headers: Vec<Header> = (0..count).map(|n| header(EntryType::Regular, &format!("e{n}"), "", 0)).collect();
        tar(&headers.into_iter().map(|header| (header, b"".as_slice())).collect::<Vec<_>>())
    };
    let hard: Vec<Header> = (0..200).map(|n| header(EntryType::Link, &format!("h{n}"), "big", 0)).collect();
    let big = vec![1; 500 * 1024];
    let mut linked = vec![(header(EntryType::Regular, "big", "", big.len() as u64), big.as_slice())];
    linked.extend(hard.into_iter().map(|header| (header, b"".as_slice())));
    let zeros = vec![0; 64 * 1024 * 1024];
    let bombs: Vec<(&str, &str, Vec<u8>)> = vec![
        ("content", TAR, tar(&[(header(EntryType::Regular, "big", "", 1 << 21), &zeros[..1 << 21])])),
        ("a claim", TAR, tar(&[(header(EntryType::Regular, "big", "", 1 << 40), b"")])),
        ("entries", TAR, many(300)),
        ("hard links", TAR, tar(&linked)),
        ("gzip", "application/gzip", gzip(&tar(&[(header(EntryType::Regular, "big", "", 1 << 26), &zeros)]))),
        // Extension headers without an entry.
        (
            "extensions",
            "application/gzip",
            gzip(&{
                let (extension, record) = pax("comment", &"c".repeat(60_000));
                let all: Vec<_> = (0..100).map(|_| (extension.clone(), record.as_slice())).collect();
                tar(&all)
            }),
        ),
    ];
    for (what, kind, body) in bombs {
        let reply = ada.put(&format!("/api/jobs/{id}/archive"), kind, body).await;
        assert_eq!(reply.body["code"], Value::from("too_large"), "{what}: {:#}", reply.body);
        assert_eq!(names(&world.workspace(id)), ["given.txt"], "after {what}");
    }
    assert_eq!(names(&world.config().workspace_dir.join(".staging")), Vec::<String>::new());
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn an_archive_that_conflicts_with_existing_files_changes_nothing() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada, 1).await;
    let workspace = world.workspace(id);
    fs::create_dir(workspace.join("dir")).unwrap();
    let put = async |entry: Header, content: &[u8]| {
        ada.put(&format!("/api/jobs/{id}/archive"), TAR, tar(&[(entry, content)])).await
    };
    put(header(EntryType::Regular, "dir", "", 1), b"x").await.problem(ErrorCode::NotAFile);
    put(header(EntryType::Directory, "given.txt", "", 0), b"").await.problem(ErrorCode::NotADirectory);
    symlink("dir", workspace.join("link")).unwrap();
    put(header(EntryType::Regular, "link/x", "", 1), b"x").await.problem(ErrorCode::NotADirectory);
    fs::write(workspace.join("half"), vec![1; 600 * 1024]).unwrap();
    put(header(EntryType::Regular, "other", "", 600 * 1024), &vec![1; 600 * 1024]).await.problem(ErrorCode::TooLarge);
    assert_eq!(names(&workspace), ["dir", "given.txt", "half", "link"]);
    // It fits when it replaces existing files.
    put(header(EntryType::Regular, "half", "", 700 * 1024), &vec![2; 700 * 1024]).await.expect(200);
    assert_eq!(names(&workspace), ["dir", "given.txt", "good.txt", "half", "link"]);
    ada.cancel(id).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn the_command_line_uploads_and_downloads_a_directory_with_links_and_holes() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = held(&ada, 8).await.to_string();
    let environment = vec![
        ("GANTRY_URL".to_owned(), ada.base().to_owned()),
        ("GANTRY_TOKEN".to_owned(), world.fresh("ada", Role::User)),
    ];
    let gantry = async |arguments: &[&str]| {
        let ended = tests::install::program::run(&[&["job"], arguments].concat(), &environment).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout
    };
    let (source, target) = (world.directory().join("project"), world.directory().join("back"));
    let links = [(".venv/bin/python3", "/usr/bin/python3"), (".venv/bin/up", "../../..")];
    fs::create_dir_all(source.join(".venv/bin")).unwrap();
    for (path, link) in links {
        symlink(link, source.join(path)).unwrap();
    }
    fs::File::create(source.join("disk.img")).unwrap().set_len(1 << 20).unwrap();
    let printed = gantry(&["put", &id, source.to_str().unwrap(), "project"]).await;
    assert!(printed.ends_with("5 entries, 1048576 bytes"), "{printed}");
    let workspace = world.workspace(id.parse().unwrap()).join("project");
    fs::set_permissions(workspace.join(".venv/bin"), fs::Permissions::from_mode(0o555)).unwrap();
    let printed = gantry(&["get", &id, "project/", "-o", target.to_str().unwrap()]).await;
    assert!(printed.ends_with("(5 entries, 1048576 bytes)"), "{printed}");
    for (path, link) in links {
        for top in [&workspace, &target] {
            assert_eq!(fs::read_link(top.join(path)).unwrap(), Path::new(link));
        }
    }
    assert_eq!(fs::metadata(target.join("disk.img")).unwrap().len(), 1 << 20);
    for top in [workspace, target] {
        let bin = top.join(".venv/bin");
        assert_eq!(fs::metadata(&bin).unwrap().mode() & 0o777, 0o555);
        fs::set_permissions(bin, fs::Permissions::from_mode(0o755)).unwrap();
    }
    ada.cancel(id.parse().unwrap()).await.expect(202);
    world.finish().await;
}
