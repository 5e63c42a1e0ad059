//! Requests for child jobs: every setting is at most the parent's, and the parent's where the request names none.

use protocol::{CreateJob, InputFile, LimitsRequest};

use super::{Accepted, Ceiling, Rejected, ToolSelection, check, within_priorities};
use crate::job::{Descendants, JobRecord};

/// What a tool call asks of a child job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChildRequest {
    pub prompt: String,
    /// The display title; the prompt's first line by default.
    pub title: Option<String>,
    /// Limits, each at most the parent's.
    pub limits: Option<LimitsRequest>,
    /// Tools, each one of the parent's.
    pub tools: Option<Vec<String>>,
    /// Files put into the workspace before the work starts.
    pub files: Vec<InputFile>,
    /// Whether the work starts with a plan; by default as the operator has set.
    pub plan: Option<bool>,
    /// The parent's image.
    pub image: Option<String>,
}

/// Validates the request of `parent` for a child. The parent's tools are names: all tools of a server are, for a child,
/// those that its parent has. `trees` are the jobs below it and below each job above it.
pub fn check_child(
    asked: ChildRequest,
    parent: &JobRecord,
    trees: &[Descendants],
    operator: &Ceiling,
) -> Result<(CreateJob, Accepted), Rejected> {
    let brief = &parent.brief;
    let ceiling = ceiling_of(parent, trees, operator);
    let mut request = CreateJob {
        prompt: asked.prompt,
        title: asked.title,
        limits: Some(with_defaults(&asked.limits.unwrap_or_default(), &ceiling)),
        tools: asked.tools,
        files: asked.files,
        plan: asked.plan,
        image: asked.image,
        priority: within_priorities(brief.priority),
        effort: brief.effort,
        ..CreateJob::default()
    };
    let accepted = check(&request, &ceiling)?;
    request.tools = match &request.tools {
        Some(list) => Some(selected(list, &ceiling)),
        None => brief.tools.is_some().then(|| ceiling.tools.clone()),
    };
    // Not checked again: the list may name tools that were left out of `tools`, where it has no effect.
    request.approve.clone_from(&brief.approve);
    Ok((request, accepted))
}

/// The tools of the ceiling that a valid list selects.
fn selected(list: &[String], ceiling: &Ceiling) -> Vec<String> {
    let selection = ToolSelection::of(list);
    ceiling.tools.iter().filter(|tool| selection.includes(tool)).cloned().collect()
}

/// The highest values that a child may ask for: the parent's, as far as the operator still allows them.
fn ceiling_of(parent: &JobRecord, trees: &[Descendants], operator: &Ceiling) -> Ceiling {
    let brief = &parent.brief;
    let allowed = operator.restrict(&brief.limits, (&brief.image, &brief.model), brief.tools.as_deref());
    let mut limits = allowed.limits;
    limits.max_children = parent.max_children_of_child(trees).min(limits.max_children);
    Ceiling {
        limits,
        default_limits: operator.default_limits,
        default_plan: operator.default_plan,
        default_image: allowed.image,
        images: Vec::new(),
        default_model: allowed.model,
        models: Vec::new(),
        tools: allowed.tools.unwrap_or_else(|| operator.tools.clone()),
        // A job has only those tools of MCP servers that its list names.
        mcp_servers: Vec::new(),
    }
}

/// The limits that were asked for, and the parent's for the others.
fn with_defaults(asked: &LimitsRequest, ceiling: &Ceiling) -> LimitsRequest {
    let parents = &ceiling.limits;
    LimitsRequest {
        timeout_seconds: asked.timeout_seconds.or(Some(parents.timeout_seconds)),
        max_iterations: asked.max_iterations.or(Some(parents.max_iterations)),
        max_tool_calls: asked.max_tool_calls.or(Some(parents.max_tool_calls)),
        // Without a value these two are the ceiling's, which is the parent's.
        max_tokens: asked.max_tokens,
        max_cost_usd: asked.max_cost_usd,
        max_children: asked.max_children.or(Some(parents.max_children)),
        memory_mb: asked.memory_mb.or(Some(parents.memory_mb)),
        cpus: asked.cpus.or(Some(parents.cpus)),
        pids: asked.pids.or(Some(parents.pids)),
        disk_mb: asked.disk_mb.or(Some(parents.disk_mb)),
    }
}

#[cfg(test)]
mod tests {
    use protocol::{JobState, Limits};
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::job::sample;

    fn operator() -> Ceiling {
        let limits = Limits { memory_mb: 8_192, cpus: 4.0, max_children: 10, pids: 1_024, ..Limits::default() };
        let names = |names: [&str; 3]| names.map(str::to_owned).to_vec();
        Ceiling {
            limits: Limits { timeout_seconds: 86_400, max_iterations: 500, disk_mb: 8_192, ..limits },
            default_limits: Limits::default(),
            default_plan: false,
            default_image: "i".to_owned(),
            images: vec!["other".to_owned()],
            default_model: "m".to_owned(),
            models: vec!["large".to_owned()],
            tools: names(["shell", "echo", "create_job"]),
            mcp_servers: vec!["server".to_owned()],
        }
    }

    fn parent() -> JobRecord {
        sample::job(JobState::InProgress).with_brief(|brief| {
            brief.limits = Limits {
                timeout_seconds: 600,
                max_iterations: 60,
                max_tool_calls: 40,
                max_tokens: 9_000,
                max_cost_usd: 2.5,
                max_children: 4,
                memory_mb: 4_096,
                cpus: 2.0,
                pids: 100,
                disk_mb: 2_048,
            };
            (brief.image, brief.model, brief.priority) = ("other".to_owned(), "large".to_owned(), 7);
            brief.approve = vec!["memory_write".to_owned()];
        })
    }

    const TREES: [Descendants; 1] = [Descendants { max_children: 4, count: 1 }];

    fn asked(limits: Value) -> ChildRequest {
        let limits = Some(serde_json::from_value(limits).unwrap());
        ChildRequest { prompt: "work".to_owned(), limits, ..ChildRequest::default() }
    }

    #[test]
    fn a_child_inherits_what_it_does_not_ask_for() {
        let parent = parent();
        let (request, accepted) = check_child(asked(json!({})), &parent, &TREES, &operator()).unwrap();
        assert_eq!(accepted.limits, Limits { max_children: 2, ..parent.brief.limits });
        assert_eq!((accepted.image.as_str(), accepted.model.as_str()), ("other", "large"));
        assert_eq!((request.priority, request.tools, request.approve), (7, None, parent.brief.approve.clone()));
        let narrowed = parent.with_brief(|brief| brief.tools = Some(vec!["echo".to_owned()]));
        let (request, _) = check_child(asked(json!({})), &narrowed, &TREES, &operator()).unwrap();
        assert_eq!(request.tools, narrowed.brief.tools);
    }

    #[test]
    fn a_child_may_ask_for_less() {
        let limits = json!({"timeout_seconds": 60, "max_tokens": 100, "max_children": 0, "memory_mb": 64, "cpus": 0.5});
        let asked = ChildRequest { tools: Some(vec!["echo".to_owned()]), ..asked(limits) };
        let (request, accepted) = check_child(asked, &parent(), &TREES, &operator()).unwrap();
        let Limits { timeout_seconds, max_tokens, max_children, memory_mb, cpus, .. } = accepted.limits;
        assert_eq!((timeout_seconds, max_tokens, max_children, memory_mb), (60, 100, 0, 64));
        assert!((cpus - 0.5).abs() < f64::EPSILON);
        assert_eq!(request.tools, Some(vec!["echo".to_owned()]));
    }

    #[rstest]
    #[case::timeout(json!({"timeout_seconds": 601}), "limits.timeout_seconds")]
    #[case::iterations(json!({"max_iterations": 61}), "limits.max_iterations")]
    #[case::tool_calls(json!({"max_tool_calls": 41}), "limits.max_tool_calls")]
    #[case::tokens(json!({"max_tokens": 9_001}), "limits.max_tokens")]
    #[case::cost(json!({"max_cost_usd": 2.6}), "limits.max_cost_usd")]
    #[case::children(json!({"max_children": 3}), "limits.max_children")]
    #[case::memory(json!({"memory_mb": 4_097}), "limits.memory_mb")]
    #[case::cpus(json!({"cpus": 2.1}), "limits.cpus")]
    #[case::pids(json!({"pids": 101}), "limits.pids")]
    #[case::disk(json!({"disk_mb": 2_049}), "limits.disk_mb")]
    fn more_than_the_parents_is_refused_by_its_field(#[case] limits: Value, #[case] field: &str) {
        let refused = check_child(asked(limits), &parent(), &TREES, &operator());
        let Err(Rejected::Invalid(errors)) = refused else { panic!("{refused:?}") };
        assert_eq!(errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), [field]);
    }

    #[rstest]
    #[case::all_of_a_server(&["srv__*"], &["srv__a", "srv__b"])]
    #[case::built_in_and_more(&["+srv__a"], &["shell", "srv__a"])]
    #[case::built_in_and_a_server(&["+srv__*"], &["shell", "srv__a", "srv__b"])]
    fn all_tools_of_a_server_are_those_of_the_parent(#[case] list: &[&str], #[case] expected: &[&str]) {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let parent = parent().with_brief(|brief| brief.tools = Some(names(&["shell", "srv__a", "srv__b"])));
        let operator = Ceiling { mcp_servers: names(&["srv", "other"]), ..operator() };
        let asked_for = |list: &[&str]| ChildRequest { tools: Some(names(list)), ..asked(json!({})) };
        let (request, _) = check_child(asked_for(list), &parent, &TREES, &operator).unwrap();
        assert_eq!(request.tools, Some(names(expected)));
        let refused = check_child(asked_for(&["other__*"]), &parent, &TREES, &operator);
        assert!(matches!(refused, Err(Rejected::NotAvailable(_))), "{refused:?}");
    }

    #[test]
    fn a_child_has_files_a_plan_and_no_image_but_its_parents() {
        let file =
            InputFile { path: "a".to_owned(), content: Some("text".to_owned()), content_base64: None, mode: None };
        let asked = |image: &str| ChildRequest {
            files: vec![file.clone()],
            plan: Some(true),
            image: Some(image.to_owned()),
            ..asked(json!({}))
        };
        let (request, accepted) = check_child(asked("other"), &parent(), &TREES, &operator()).unwrap();
        assert_eq!((request.plan, accepted.image.as_str()), (Some(true), "other"));
        assert_eq!(accepted.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["a"]);
        let refused = check_child(asked("i"), &parent(), &TREES, &operator());
        let Err(Rejected::Invalid(errors)) = refused else { panic!("{refused:?}") };
        assert_eq!(errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), ["image"]);
    }

    #[test]
    fn a_tool_that_the_parent_has_not_is_refused() {
        let narrowed = parent().with_brief(|brief| brief.tools = Some(vec!["echo".to_owned()]));
        let asked = ChildRequest { tools: Some(vec!["echo".to_owned(), "shell".to_owned()]), ..asked(json!({})) };
        let refused = check_child(asked, &narrowed, &TREES, &operator());
        let Err(Rejected::Invalid(errors)) = refused else { panic!("{refused:?}") };
        assert_eq!(errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), ["tools[1]"]);
    }
}
