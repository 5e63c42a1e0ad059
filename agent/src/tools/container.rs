//! Definitions of the container-domain tools, shared by the orchestrator, which offers them, and the worker, which
//! implements them.

use protocol::{ApprovalRequirement, ToolDefinition, ToolDomain};
use serde_json::{Value, json};

/// Maximum timeout that a shell command may ask for, in seconds.
pub const MAX_SHELL_TIMEOUT_SECONDS: u64 = 3_600;

/// The definitions of all container-domain tools.
pub fn container_tools() -> Vec<ToolDefinition> {
    vec![
        tool(
            "shell",
            "Runs a command with bash in the workspace. Gives its output, standard error included, and its exit code. \
             There is no terminal, and no network but the hosts that the job may reach; a process left in the background lives on.",
            &json!({
                "command": {"type": "string", "minLength": 1, "description": "run by bash -c"},
                "timeout_seconds": {
                    "type": "integer", "minimum": 1, "maximum": MAX_SHELL_TIMEOUT_SECONDS,
                    "description": "120 when left out"
                },
                "workdir": {"type": "string", "description": "directory to start in; the workspace when left out"}
            }),
            &["command"],
        ),
        tool(
            "read_file",
            "Reads a text file of the workspace, by lines. Without offset and limit: its first 2000 lines.",
            &json!({
                "path": {"type": "string", "minLength": 1, "description": "relative to the workspace"},
                "offset": {"type": "integer", "minimum": 1, "description": "first line, from 1"},
                "limit": {"type": "integer", "minimum": 1, "description": "how many lines"}
            }),
            &["path"],
        ),
        tool(
            "write_file",
            "Writes a file of the workspace, whole; makes the directories above it. Replaces what was there.",
            &json!({
                "path": {"type": "string", "minLength": 1, "description": "relative to the workspace"},
                "content": {"type": "string"}
            }),
            &["path", "content"],
        ),
        tool(
            "list_dir",
            "Lists a directory of the workspace: one entry a line, directories with a final slash, files with their size.",
            &json!({"path": {"type": "string", "description": "relative to the workspace; the workspace itself when left out"}}),
            &[],
        ),
        tool(
            "apply_patch",
            "Changes files of the workspace by a patch: a unified diff (---/+++/@@, git's too), or `*** Begin Patch` with \
             `*** Add File: P`, `*** Update File: P`, `*** Delete File: P` sections and `*** End Patch`. Applied whole or \
             not at all.",
            &json!({"patch": {"type": "string", "minLength": 1}}),
            &["patch"],
        ),
        tool(
            "glob",
            "Finds files of the workspace by name, such as `*.py` (at any depth) or `src/**/*.rs`. One path a line.",
            &json!({
                "pattern": {"type": "string", "minLength": 1},
                "path": {"type": "string", "description": "directory to search; the workspace when left out"}
            }),
            &["pattern"],
        ),
        tool(
            "grep",
            "Finds lines of the workspace's text files by a regular expression. One `path:line:text` a line.",
            &json!({
                "pattern": {"type": "string", "minLength": 1, "description": "regular expression, Rust syntax"},
                "path": {"type": "string", "description": "file or directory to search; the workspace when left out"},
                "include": {"type": "string", "description": "only files of this name, such as `*.py`"}
            }),
            &["pattern"],
        ),
    ]
}

/// The definition of the container-domain tool of this name.
pub fn container_tool(name: &str) -> Option<ToolDefinition> {
    container_tools().into_iter().find(|tool| tool.name == name)
}

/// The approval that a call of a container-domain tool needs.
pub fn container_tool_requirement(name: &str) -> ApprovalRequirement {
    match name {
        "shell" | "write_file" | "apply_patch" => ApprovalRequirement::UnlessAutoApproved,
        _ => ApprovalRequirement::Never,
    }
}

fn tool(name: &str, description: &str, properties: &Value, required: &[&str]) -> ToolDefinition {
    let parameters = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false
    });
    ToolDefinition::new(name, description, parameters, ToolDomain::Container)
}
