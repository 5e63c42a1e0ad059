//! A job from its prompt to its result: what its readers see, and what the engine shows while it runs.

use std::collections::BTreeMap;

use protocol::{EventData, Job, JobState, JobSummary, Page};
use serde_json::{Value, json};
use tests::User;

use crate::{
    engine::inspect,
    jobs::{WAIT_FOR_RELEASE, command_job, is_tool_use, release},
    stack::{REMOVAL_TIMEOUT, Stack, image, runtime, scaled},
};

#[tokio::test]
async fn a_job_completes_and_all_interfaces_show_the_same_result() {
    let stack = Stack::start().await;
    let token = stack.token("ada", "user").await;
    let ada = User::at(stack.base(), Some(token.clone()));

    let id = ada.create_job("echo: hello out there").await;
    let (streamed, state, _) = ada.stream(id, None).await.rest().await;
    let gone_after = stack.wait_for_removal(id, REMOVAL_TIMEOUT).await;
    assert_eq!(state, JobState::Completed);
    assert!(gone_after < scaled(REMOVAL_TIMEOUT), "{gone_after:?}");

    let job = ada.job(id).await;
    let text = job.result.as_ref().and_then(|result| result.text.as_deref()).unwrap();
    assert!(text.contains("hello out there"), "{text}");
    assert_eq!((job.state, job.reason, job.attempt), (JobState::Completed, None, 1));
    assert!((1..=3).contains(&job.usage.llm_calls), "a trivial task takes at most 3 model calls: {:?}", job.usage);
    assert_eq!(job.usage.tool_calls, 1);

    assert_eq!(ada.events(id).await, streamed, "the list and the stream agree");
    let listed = ada.jobs().await.into_iter().find(|listed| listed.id == id);
    assert_eq!(listed.as_ref(), Some(&job.summary()), "the list and the job agree");
    let summary = ada.get("/api/jobs/summary").await.expect(200);
    assert_eq!(summary.body["states"]["completed"], 1, "{:#}", summary.body);

    let id = id.to_string();
    let shown = stack.gantry_as(&token, &["job", "show", "--json", &id]).await;
    assert_eq!(serde_json::from_value::<Job>(shown.json()).unwrap(), job, "the command line and the job agree");
    let listed = stack.gantry_as(&token, &["job", "list", "--json"]).await;
    assert_eq!(serde_json::from_value::<Page<JobSummary>>(listed.json()).unwrap().items, [job.summary()]);
    let events = stack.gantry_as(&token, &["job", "events", "--json", &id]).await;
    let events: Vec<Value> = events.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(json!(events), json!(streamed), "the command line and the stream agree");
    stack.finish().await;
}

#[tokio::test]
async fn the_command_line_runs_a_job_and_returns_its_exit_code() {
    let stack = Stack::start().await;
    let token = stack.token("ada", "user").await;
    let good = async {
        let ended = stack.gantry_as(&token, &["job", "run", "run: echo six times seven is $((6 * 7))"]).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.contains("six times seven is 42"), "{ended:?}");
    };
    let bad = async {
        let ended = stack.gantry_as(&token, &["job", "run", "fail, please"]).await;
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stdout.contains("llm_error"), "{ended:?}");
    };
    let missing = async {
        let missing = protocol::JobId::generate().to_string();
        let ended = stack.gantry_as(&token, &["job", "show", &missing]).await;
        assert_eq!(ended.code, Some(4), "{ended:?}");
    };
    tokio::join!(good, bad, missing);
    stack.finish().await;
}

#[tokio::test]
async fn the_engine_shows_the_posture_and_the_job_its_container() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let mut body = command_job(WAIT_FOR_RELEASE);
    body["limits"] = json!({"memory_mb": 256, "cpus": 0.5, "pids": 64, "disk_mb": 100});
    let id = ada.create(body).await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    let name = format!("gantry-job-{id}-1");
    let seen = inspect(&name).await;
    let job = ada.job(id).await;
    release(&stack, id);
    let ended = ada.wait_for_end(id).await;
    assert_eq!(ended.state, JobState::Completed);

    let host = &seen["HostConfig"];
    // Under gVisor the engine counts the host's threads.
    let (runtime, pids) = runtime().map_or(("runc".to_owned(), 64), |name| (name, 128 + 16 * 64));
    let is = [
        (&seen["State"]["Running"], json!(true)),
        (&seen["Config"]["User"], json!("10001:10001")),
        (&seen["Config"]["Entrypoint"], json!(["/usr/local/bin/gantry-worker"])),
        (&seen["Config"]["Hostname"], json!(id.short())),
        (&host["NetworkMode"], json!("none")),
        (&host["ReadonlyRootfs"], json!(true)),
        (&host["Privileged"], json!(false)),
        (&host["CapAdd"], Value::Null),
        (&host["CapDrop"], json!(["ALL"])),
        (&host["Memory"], json!(256 << 20)),
        (&host["MemorySwap"], json!(256 << 20)),
        (&host["NanoCpus"], json!(500_000_000)),
        (&host["PidsLimit"], json!(pids)),
        (&host["IpcMode"], json!("private")),
        (&host["CgroupnsMode"], json!("private")),
        (&host["PidMode"], json!("")),
        (&host["UTSMode"], json!("")),
        (&host["RestartPolicy"]["Name"], json!("no")),
        (&host["Init"], json!(false)),
    ];
    for (found, wanted) in is {
        assert_eq!(*found, wanted, "{seen:#}");
    }
    for none in ["Devices", "DeviceRequests", "PortBindings", "VolumesFrom", "GroupAdd", "ExtraHosts", "Links"] {
        // Engines differ in how they represent empty values.
        let found = &host[none];
        assert!([Value::Null, json!([]), json!({})].contains(found), "{none}: {found}");
    }
    let options: Vec<&str> = host["SecurityOpt"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(options.contains(&"no-new-privileges"), "{options:?}");
    assert!(options.iter().any(|option| option.starts_with("seccomp={")), "the project's own profile: {options:?}");
    let mounts: BTreeMap<&str, bool> = seen["Mounts"].as_array().unwrap().iter().map(mount).collect();
    assert_eq!(mounts, BTreeMap::from([("/run/gantry", false), ("/workspace", true)]));
    let tmpfs = host["Tmpfs"].as_object().unwrap();
    assert_eq!(tmpfs.keys().collect::<Vec<_>>(), ["/home/agent", "/tmp"]);
    assert_eq!(tmpfs["/tmp"], "rw,noexec,nosuid,nodev,size=64m");
    let labels = &seen["Config"]["Labels"];
    assert_eq!(labels["gantry.instance-id"], json!(stack.instance.to_string()));
    assert_eq!((&labels["gantry.job-id"], &labels["gantry.attempt"]), (&json!(id.to_string()), &json!("1")));
    assert_eq!((&labels["gantry.owner"], &labels["gantry.role"]), (&json!("ada"), &json!("job")));

    let container = job.container.expect("a running job shows its container");
    assert_eq!(Some(container.id.as_deref()), Some(seen["Id"].as_str()));
    assert_eq!(
        (container.name.as_str(), container.image.as_str(), container.engine.as_str()),
        (name.as_str(), image().as_str(), "docker")
    );
    assert_eq!(
        (container.runtime.as_str(), container.transport.as_str(), container.workspace.as_str()),
        (runtime.as_str(), "unix", "fsize+sweep")
    );
    assert_eq!(json!(container.posture), labels["gantry.posture"]);
    assert_eq!((container.exit_code, container.oom_killed), (None, None));
    stack.finish().await;
}

#[tokio::test]
async fn the_agent_edits_uploaded_files_and_events_record_it() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let id = ada
        .create(json!({
            "prompt": "run: python3 src/double.py numbers.txt | tee doubled.txt",
            "files": [
                {"path": "src/double.py", "content": "import sys\nfor line in open(sys.argv[1]): print(int(line) * 2)\n"},
                {"path": "numbers.txt", "content_base64": "MQoyMQo="},
            ],
        }))
        .await;
    assert_eq!(ada.wait_for_end(id).await.state, JobState::Completed);
    let results: Vec<_> = ada.events(id).await.into_iter().map(|event| event.data).filter_map(container).collect();
    assert_eq!(results, ["2\n42\n[exit 0]"]);
    assert_eq!(std::fs::read_to_string(stack.workspace(id).join("doubled.txt")).unwrap(), "2\n42\n");
    stack.finish().await;
}

fn mount(mount: &Value) -> (&str, bool) {
    (mount["Destination"].as_str().unwrap(), mount["RW"].as_bool().unwrap())
}

fn container(data: EventData) -> Option<String> {
    match data {
        EventData::ToolResult { output, success: true, .. } => Some(output),
        _ => None,
    }
}
