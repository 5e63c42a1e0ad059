//! A job's files on the real engine: uploaded before the start, created inside, downloaded while it runs and after its
//! end, also with the command line; and what a hostile job leaves in its workspace.

use std::{fs, os::unix::fs::MetadataExt as _};

use protocol::{ErrorCode, EventData, FileEntry, FileKind, JobId, JobState};
use serde_json::{Value, json};
use tests::User;

use crate::{
    jobs::{WAIT_FOR_RELEASE, command_job, is_tool_use},
    stack::Stack,
};

/// A held job that runs a command.
async fn held(user: &User, command: &str) -> JobId {
    let mut body = command_job(command);
    body["hold"] = json!(true);
    user.create(body).await
}

async fn start(user: &User, job: JobId) {
    user.post(&format!("/api/jobs/{job}/start"), &json!({})).await.expect(202);
}

#[tokio::test]
async fn a_job_processes_an_uploaded_archive_and_its_output_can_be_downloaded() {
    let stack = Stack::start().await;
    let token = stack.token("ada", "user").await;
    let ada = User::at(stack.base(), Some(token.clone()));
    let local = tempfile::tempdir().unwrap();
    let at = |name: &str| local.path().join(name).display().to_string();
    fs::create_dir(at("in")).unwrap();
    fs::write(at("in/a.txt"), "one\ntwo\n").unwrap();
    fs::write(at("in/count.sh"), "wc -l < in/a.txt > out/lines\n").unwrap();
    let packed =
        std::process::Command::new("tar").args(["-C", &at("."), "-czf", &at("in.tgz"), "in"]).status().unwrap();
    assert!(packed.success());

    let task =
        format!("run: mkdir out && sh in/count.sh && echo changed >> in/a.txt && rm in/count.sh && {WAIT_FOR_RELEASE}");
    let created = stack.gantry_as(&token, &["job", "create", "--hold", &task]).await;
    assert_eq!(created.code, Some(0), "{created:?}");
    let id: JobId = created.stdout.trim().parse().unwrap();
    let name = id.to_string();
    let gantry = async |arguments: &[&str]| {
        let ended = stack.gantry_as(&token, arguments).await;
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended
    };
    gantry(&["job", "put", &name, "--archive", &at("in.tgz")]).await;
    assert_eq!(ada.job(id).await.state, JobState::Pending);
    gantry(&["job", "start", &name]).await;
    ada.wait_for_event(id, "the tool call", is_tool_use).await;
    let lines = async || {
        let reply = ada.get(&format!("/api/jobs/{id}/files/out/lines")).await;
        reply.status.is_success().then_some(reply.body)
    };
    tests::until("the file that the running job writes", async || lines().await == Some(json!(2))).await;
    // The command waits for a file that is uploaded.
    fs::write(at("go"), "").unwrap();
    gantry(&["job", "put", &name, &at("go")]).await;
    assert_eq!(ada.wait_for_end(id).await.state, JobState::Completed);

    gantry(&["job", "get", &name, "in/a.txt", "-o", &at("back.txt")]).await;
    assert_eq!(fs::read_to_string(at("back.txt")).unwrap(), "one\ntwo\nchanged\n");
    assert_eq!(gantry(&["job", "get", &name, "out/lines", "-o", "-"]).await.stdout.trim(), "2");
    let listed = gantry(&["job", "files", &name, "--json"]).await;
    let listed: Vec<FileEntry> = listed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen: Vec<_> = listed.iter().map(|entry| (entry.path.as_str(), entry.kind)).collect();
    let directory = FileKind::Directory;
    assert_eq!(seen, [("go", FileKind::File), ("in", directory), ("out", directory)]);
    gantry(&["job", "get", &name, "--archive", "-o", &at("out.tar")]).await;
    let names = std::process::Command::new("tar").args(["-tf", &at("out.tar")]).output().unwrap();
    let mut names: Vec<_> = std::str::from_utf8(&names.stdout).unwrap().lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["go", "in/", "in/a.txt", "out/", "out/lines"]);

    for (arguments, code) in [
        (vec!["job", "put", &name, &at("go"), "late"], 5),
        (vec!["job", "start", &name], 5),
        (vec!["job", "get", &name, "none", "-o", "-"], 4),
        (vec!["job", "get", &name, "in", "-o", "-"], 5),
        (vec!["job", "get", &name, "../x", "-o", "-"], 2),
        (vec!["job", "put", &name, &at("in")], 5),
    ] {
        let ended = stack.gantry_as(&token, &arguments).await;
        assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
    }
    stack.finish().await;
}

#[tokio::test]
async fn links_left_by_a_hostile_job_are_not_followed() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let command = "ln -s /etc/passwd link; ln -s / root; mkfifo fifo; truncate -s 900M holes; mkdir d; \
                   python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; mknod null c 1 3; \
                   touch d/plain; chmod 000 d/plain; echo made";
    let id = held(&ada, command).await;
    let at = |path: &str| format!("/api/jobs/{id}/files/{path}");
    ada.put(&at("mine"), "application/octet-stream", "mine").await.expect(201);
    start(&ada, id).await;
    assert_eq!(ada.wait_for_end(id).await.state, JobState::Completed);
    let mut results = ada.events(id).await.into_iter().filter_map(|event| match event.data {
        EventData::ToolResult { output, .. } => Some(output),
        _ => None,
    });
    assert!(results.next_back().is_some_and(|output| output.contains("made")));

    for path in ["link", "fifo", "sock"] {
        ada.get(&at(path)).await.problem(ErrorCode::NotAFile);
    }
    ada.get(&at("root/etc/passwd")).await.problem(ErrorCode::NotADirectory);
    ada.get(&at("null")).await.problem(ErrorCode::NotFound);
    ada.get(&at("holes")).await.problem(ErrorCode::TooLarge);
    let page = ada.get(&format!("/api/jobs/{id}/files")).await.expect(200);
    let kinds: Vec<(&str, &str)> = page.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry: &Value| (entry["path"].as_str().unwrap(), entry["kind"].as_str().unwrap()))
        .collect();
    let (file, link, other) = ("file", "symlink", "other");
    assert_eq!(
        kinds,
        [
            ("d", "directory"),
            ("fifo", other),
            ("holes", file),
            ("link", link),
            ("mine", file),
            ("root", link),
            ("sock", other)
        ]
    );
    assert_eq!(
        fs::metadata(stack.workspace(id).join("mine")).unwrap().uid(),
        10_001,
        "the agent could have changed it"
    );
    stack.finish().await;
}
