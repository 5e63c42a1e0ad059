//! Tables of valid and invalid requests.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use protocol::{FileMode, check_path};

use super::*;

fn ceiling() -> Ceiling {
    Ceiling {
        limits: Limits { memory_mb: 4096, cpus: 2.0, ..Limits { timeout_seconds: 7200, ..Limits::default() } },
        default_limits: Limits::default(),
        default_plan: false,
        default_image: "worker:latest".to_owned(),
        images: vec!["other:1".to_owned()],
        default_model: "m".to_owned(),
        models: vec!["n".to_owned()],
        tools: vec!["shell".to_owned(), "echo".to_owned()],
        mcp_servers: vec!["srv".to_owned()],
    }
}

fn checked(fields: &Value) -> Result<Accepted, Rejected> {
    let mut body = json!({"prompt": "do it"});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    check(&serde_json::from_value(body).unwrap(), &ceiling())
}

#[test]
fn a_prompt_of_escaped_characters_may_have_the_maximum_size() {
    let request = CreateJob { prompt: "\"\n".repeat(MAX_PROMPT_BYTES / 2), ..CreateJob::default() };
    assert!(check(&request, &ceiling()).is_ok());
}

#[test]
fn a_request_needs_only_a_prompt() {
    let accepted =
        check(&CreateJob { prompt: "  do it\nwell".to_owned(), ..CreateJob::default() }, &ceiling()).unwrap();
    assert_eq!(accepted.title, "do it");
    assert_eq!(accepted.limits, Limits::default());
    assert_eq!((accepted.image.as_str(), accepted.model.as_str()), ("worker:latest", "m"));
}

#[test]
fn a_request_takes_the_operators_defaults_for_the_rest() {
    let default_limits = Limits { timeout_seconds: 600, max_iterations: 9_000, ..Limits::default() };
    let operator = Ceiling { default_limits, default_plan: true, ..ceiling() };
    let accepted = |fields: Value| {
        let mut body = json!({"prompt": "do it"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        check(&serde_json::from_value(body).unwrap(), &operator).unwrap()
    };
    let Accepted { limits, plan, .. } = accepted(json!({}));
    assert_eq!((limits.timeout_seconds, limits.max_iterations, plan), (600, ceiling().limits.max_iterations, true));
    let Accepted { limits, plan, .. } = accepted(json!({"plan": false, "limits": {"timeout_seconds": 7_200}}));
    assert_eq!((limits.timeout_seconds, plan), (7_200, false));
}

#[rstest]
#[case(json!({"prompt": " \n"}), "prompt")]
#[case(json!({"prompt": "a\0b"}), "prompt")]
#[case(json!({"prompt": "x".repeat(MAX_PROMPT_BYTES + 1)}), "prompt")]
#[case(json!({"prompt": "\u{1}".repeat(MAX_PROMPT_BYTES / 2)}), "prompt")]
#[case(json!({"title": "x".repeat(201)}), "title")]
#[case(json!({"title": "two\nlines"}), "title")]
#[case(json!({"image": "evil:latest"}), "image")]
#[case(json!({"model": "gpt-other"}), "model")]
#[case(json!({"priority": 101}), "priority")]
#[case(json!({"tools": ["shell", "she ll"]}), "tools[1]")]
#[case(json!({"tools": ["shell", "Shell"]}), "tools[1]")]
#[case(json!({"tools": ["nothing_of_ours"]}), "tools[0]")]
#[case(json!({"tools": ["+nothing_of_ours"]}), "tools[0]")]
#[case(json!({"tools": ["+"]}), "tools[0]")]
#[case(json!({"tools": ["*"]}), "tools[0]")]
#[case(json!({"tools": ["shell", "srv__a*"]}), "tools[1]")]
#[case(json!({"tools": ["++shell"]}), "tools[0]")]
#[case(json!({"tools": ["shell", "+echo"]}), "tools")]
#[case(json!({"tools": ["+srv__*", "echo"]}), "tools")]
#[case(json!({"approve": ["+echo"]}), "approve[0]")]
#[case(json!({"approve": ["srv__*"]}), "approve[0]")]
#[case(json!({"labels": {"": "x"}}), "labels.")]
#[case(json!({"labels": {"team": "a\nb"}}), "labels.team")]
#[case(json!({"metadata": {"nul": "\0"}}), "metadata")]
#[case(json!({"priority": -101}), "priority")]
#[case(json!({"priority": i32::MIN}), "priority")]
#[case(json!({"limits": {"timeout_seconds": 0}}), "limits.timeout_seconds")]
#[case(json!({"limits": {"timeout_seconds": 7201}}), "limits.timeout_seconds")]
#[case(json!({"limits": {"memory_mb": 4097}}), "limits.memory_mb")]
#[case(json!({"limits": {"cpus": 0.0}}), "limits.cpus")]
#[case(json!({"limits": {"max_cost_usd": -0.1}}), "limits.max_cost_usd")]
#[case(json!({"limits": {"max_cost_usd": 1e-9}}), "limits.max_cost_usd")]
#[case(json!({"limits": {"max_cost_usd": 1e9}}), "limits.max_cost_usd")]
#[case(json!({"limits": {"max_tokens": 10_000_000_000_000_u64}}), "limits.max_tokens")]
#[case(json!({"limits": {"cpus": 2.5}}), "limits.cpus")]
#[case(json!({"limits": {"pids": 3}}), "limits.pids")]
#[case(json!({"limits": {"max_children": 4}}), "limits.max_children")]
#[case(json!({"files": [{"path": "../x", "content": ""}]}), "files[0].path")]
#[case(json!({"files": [{"path": "/etc/passwd", "content": ""}]}), "files[0].path")]
#[case(json!({"files": [{"path": "a", "content": "", "content_base64": ""}]}), "files[0]")]
#[case(json!({"files": [{"path": "a"}]}), "files[0]")]
#[case(json!({"files": [{"path": "a", "content_base64": "***"}]}), "files[0].content_base64")]
#[case(json!({"files": [{"path": "a", "content": ""}, {"path": "a", "content": ""}]}), "files[1].path")]
#[case(json!({"files": [{"path": "a", "content": ""}, {"path": "a/b", "content": ""}]}), "files")]
fn invalid_fields_are_named(#[case] fields: Value, #[case] field: &str) {
    match checked(&fields) {
        Err(Rejected::Invalid(errors)) => assert_eq!(errors[0].field, field, "{errors:?}"),
        other => panic!("{other:?}"),
    }
}

#[rstest]
#[case(json!({"mode": "command", "command": ["x"]}), "mode")]
#[case(json!({"command": ["x"]}), "command")]
#[case(json!({"egress": {"inject": [{"host": "a.example", "header": "x", "secret": "s"}]}}), "egress.inject")]
#[case(json!({"tools": ["echo", "http"]}), "tools[1]")]
#[case(json!({"tools": ["server__tool"]}), "tools[0]")]
#[case(json!({"tools": ["echo", "server__*"]}), "tools[1]")]
#[case(json!({"tools": ["+server__*"]}), "tools[0]")]
fn unavailable_features_are_refused(#[case] fields: Value, #[case] field: &str) {
    match checked(&fields) {
        Err(Rejected::NotAvailable(errors)) => assert_eq!(errors[0].field, field),
        other => panic!("{other:?}"),
    }
}

#[rstest]
#[case(json!(["shell", "srv__any", "srv__*"]))]
#[case(json!(["+shell", "+srv__any", "+srv__*"]))]
#[case(json!([]))]
fn a_list_of_tools_narrows_or_adds(#[case] tools: Value) {
    let accepted = checked(&json!({"tools": tools}));
    assert!(accepted.is_ok(), "{accepted:?}");
}

#[test]
fn every_invalid_field_is_reported_at_once() {
    let wrong = json!({"prompt": "", "priority": 1000, "limits": {"memory_mb": 1, "cpus": -1.0}});
    let Err(Rejected::Invalid(errors)) = checked(&wrong) else { panic!() };
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["prompt", "priority", "limits.memory_mb", "limits.cpus"]);
}

#[test]
fn files_are_decoded() {
    let text = json!({"path": "a/b.txt", "content": "x"});
    let given = json!({"files": [text, {"path": "c", "content_base64": "AAE=", "mode": "0755"}]});
    let file =
        |path: &str, content: &[u8], mode| WorkspaceFile { path: path.to_owned(), content: content.to_vec(), mode };
    let expected = [file("a/b.txt", b"x", FileMode::Regular), file("c", &[0, 1], FileMode::Executable)];
    assert_eq!(checked(&given).unwrap().files, expected);
}

#[test]
fn a_default_over_the_ceiling_is_lowered_silently() {
    let mut tight = ceiling();
    tight.limits.memory_mb = 512;
    let request = CreateJob { prompt: "x".to_owned(), ..CreateJob::default() };
    assert_eq!(check(&request, &tight).unwrap().limits.memory_mb, 512);
}

#[test]
fn settings_of_an_earlier_job_are_restricted_to_the_present_ceilings() {
    let old = Limits {
        memory_mb: 8192,
        timeout_seconds: 86_400,
        max_tokens: 0,
        max_cost_usd: 5.0,
        cpus: 4.0,
        ..Limits::default()
    };
    let today = Ceiling {
        limits: Limits { memory_mb: 512, max_tokens: 1_000, max_cost_usd: 1.0, ..ceiling().limits },
        ..ceiling()
    };
    let tools = ["shell".to_owned(), "gone".to_owned()];
    let restricted = today.restrict(&old, ("old:1", "m"), Some(&tools));
    let expected = Limits {
        memory_mb: 512,
        timeout_seconds: 7200,
        max_tokens: 1_000,
        max_cost_usd: 1.0,
        cpus: 2.0,
        ..Limits::default()
    };
    assert_eq!(restricted.limits, expected);
    assert_eq!((restricted.image.as_str(), restricted.model.as_str()), ("worker:latest", "m"));
    assert_eq!(restricted.tools, Some(vec!["shell".to_owned()]));
    assert_eq!(
        restricted.changes,
        [
            "timeout_seconds 86400 -> 7200",
            "memory_mb 8192 -> 512",
            "max_tokens no limit -> 1000",
            "cpus 4 -> 2",
            "max_cost_usd 5 -> 1",
            "image old:1 is no longer offered: worker:latest",
            "tools that are no longer offered: gone",
        ]
    );
    for (list, kept) in [
        (vec!["+shell", "+gone__*", "+srv__*"], Some(vec!["+shell", "+srv__*"])),
        (vec!["+gone__one"], None),
        (vec!["gone__*"], Some(vec![])),
    ] {
        let names = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
        let restricted = today.restrict(&Limits::default(), ("other:1", "n"), Some(&names(list)));
        assert_eq!(restricted.tools, kept.map(names));
    }
    let same = ceiling().restrict(&Limits::default(), ("other:1", "n"), None);
    assert_eq!((same.limits, same.changes), (Limits::default(), vec![]));
}

proptest! {
    #[test]
    fn an_accepted_path_stays_inside(path in "[a./\\\\ \u{0}-\u{1f}é]{0,24}") {
        if check_path(&path).is_ok() {
            prop_assert!(!path.starts_with('/') && !path.is_empty());
            prop_assert!(path.split('/').all(|part| !part.is_empty() && part != "." && part != ".."));
        }
    }

    #[test]
    fn a_derived_title_is_one_short_line(prompt in "\\PC{0,200}(\n\\PC{0,50})?") {
        let title = derive_title(&prompt);
        prop_assert!(title.chars().count() <= DERIVED_TITLE_CHARS);
        prop_assert!(!title.chars().any(char::is_control));
    }
}
