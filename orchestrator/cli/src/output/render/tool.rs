//! One-line summaries of tool calls and their results.
//!
//! Owns which arguments of a tool a person needs to see. Never escapes: the caller does.

use serde_json::Value;

/// The markers of a patch that precede the path of a file.
const PATCH_FILES: [&str; 3] = ["*** Update File: ", "*** Add File: ", "*** Delete File: "];

/// The arguments of a call in a few words.
pub(crate) fn arguments(tool: &str, input: &Value) -> String {
    let text = |name: &str| input.get(name).and_then(Value::as_str);
    match (tool, text("path")) {
        ("write_file", Some(path)) => format!("{path} ({})", bytes(text("content").unwrap_or_default().len())),
        ("apply_patch", _) if text("patch").is_some() => patch(text("patch").unwrap_or_default()),
        ("shell", _) if text("command").is_some() => text("command").unwrap_or_default().to_owned(),
        (_, Some(path)) => with_others(path, input),
        _ => short(input),
    }
}

/// The outcome of a call, and its output without what the outcome says already.
pub(crate) fn outcome<'a>(tool: &str, success: bool, output: &'a str) -> (String, &'a str) {
    let word = if success { "ok" } else { "failed" };
    if tool != "shell" {
        return (word.to_owned(), output);
    }
    let (rest, last) = output.trim_end().rsplit_once('\n').unwrap_or(("", output.trim_end()));
    match last.strip_prefix("[exit ").and_then(|code| code.strip_suffix(']')) {
        Some(code) => (format!("exit {code}"), rest),
        None => (word.to_owned(), output),
    }
}

/// The lines of a patch without its frame. `None`: the call has no patch.
pub(super) fn patch_lines(tool: &str, input: &Value) -> Option<String> {
    let patch = input.get("patch").and_then(Value::as_str).filter(|_| tool == "apply_patch")?;
    let mut files: Vec<&str> = patch.lines().filter_map(patched_file).collect();
    files.dedup();
    // The summary of the call names the only file.
    let is_shown = |line: &&str| if is_header(line) { files.len() > 1 } else { !line.starts_with("*** ") };
    Some(patch.lines().filter(is_shown).collect::<Vec<_>>().join("\n"))
}

/// The text that a call writes to a file.
pub(super) fn written_text<'a>(tool: &str, input: &'a Value) -> Option<&'a str> {
    input.get("content").and_then(Value::as_str).filter(|_| tool == "write_file")
}

fn bytes(count: usize) -> String {
    if count == 1 { "1 byte".to_owned() } else { format!("{count} bytes") }
}

/// The files of a patch, and the numbers of added and removed lines.
fn patch(patch: &str) -> String {
    let mut files: Vec<&str> = patch.lines().filter_map(patched_file).collect();
    files.dedup();
    let count = |sign: char| patch.lines().filter(|line| line.starts_with(sign) && !is_header(line)).count();
    format!("{} +{} −{}", files.join(", "), count('+'), count('-')).trim_start().to_owned()
}

/// The file that a line of a patch names: in the format of `*** Begin Patch`, or in a unified diff.
fn patched_file(line: &str) -> Option<&str> {
    let marked = PATCH_FILES.iter().find_map(|marker| line.strip_prefix(marker));
    let of_diff = || {
        let name = line.strip_prefix("+++ ").or_else(|| line.strip_prefix("--- "))?;
        let name = name.split('\t').next().unwrap_or(name);
        Some(name.strip_prefix("a/").or_else(|| name.strip_prefix("b/")).unwrap_or(name))
    };
    marked.or_else(of_diff).filter(|name| *name != "/dev/null")
}

/// Whether a line of a patch names a file.
fn is_header(line: &str) -> bool {
    line.starts_with("+++ ") || line.starts_with("--- ") || PATCH_FILES.iter().any(|marker| line.starts_with(marker))
}

/// The path first, then the other arguments.
fn with_others(path: &str, input: &Value) -> String {
    let others = input.as_object().into_iter().flatten().filter(|(name, value)| *name != "path" && !value.is_null());
    others.fold(path.to_owned(), |text, (name, value)| match value {
        Value::String(value) => format!("{text} {name}={value}"),
        value => format!("{text} {name}={value}"),
    })
}

/// The only string of a small input, or the JSON of any other input.
fn short(input: &Value) -> String {
    match input {
        Value::Object(fields) if fields.is_empty() => String::new(),
        Value::Object(fields) if fields.len() == 1 => match fields.values().next() {
            Some(Value::String(text)) => text.clone(),
            _ => input.to_string(),
        },
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("write_file", json!({"content": "a\nb", "path": "median.py"}), "median.py (3 bytes)")]
    #[case("write_file", json!({"content": "a", "path": "x"}), "x (1 byte)")]
    #[case("apply_patch", json!({"patch": "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n+z\n*** End Patch"}), "a.py +2 −1")]
    #[case("apply_patch", json!({"patch": "--- a/b.py\n+++ b/b.py\n@@ -1 +1 @@\n-x\n+y\n"}), "b.py +1 −1")]
    #[case("apply_patch", json!({"patch": "--- /dev/null\n+++ b/n.py\n@@ -0,0 +1 @@\n+y\n"}), "n.py +1 −0")]
    #[case("shell", json!({"timeout_seconds": 9, "command": "ls -l"}), "ls -l")]
    #[case("read_file", json!({"path": "a", "offset": 3, "limit": null}), "a offset=3")]
    #[case("echo", json!({"text": "hello"}), "hello")]
    #[case("now", json!({}), "")]
    #[case("http", json!({"method": "GET", "url": "u"}), r#"{"method":"GET","url":"u"}"#)]
    #[case("write_file", json!({"text": 1}), r#"{"text":1}"#)]
    fn a_call_is_summarised(#[case] tool: &str, #[case] input: Value, #[case] wanted: &str) {
        assert_eq!(arguments(tool, &input), wanted);
    }

    #[test]
    fn a_patch_of_one_file_is_shown_without_its_name() {
        let lines = |patch: &str| patch_lines("apply_patch", &json!({"patch": patch})).unwrap();
        assert_eq!(lines("--- a/b.py\n+++ b/b.py\n@@ -1 +1 @@\n-x\n+y\n"), "@@ -1 +1 @@\n-x\n+y");
        let marked = "*** Begin Patch\n*** Update File: a\n-x\n*** Add File: b\n+y\n*** End Patch";
        assert_eq!(lines(marked), "*** Update File: a\n-x\n*** Add File: b\n+y");
    }

    #[rstest]
    #[case("shell", true, "a\nb\n[exit 0]", "exit 0", "a\nb")]
    #[case("shell", false, "[exit 1]", "exit 1", "")]
    #[case("shell", false, "timed out", "failed", "timed out")]
    #[case("echo", true, "[exit 0]", "ok", "[exit 0]")]
    fn the_exit_code_is_the_outcome_of_a_command(
        #[case] tool: &str,
        #[case] success: bool,
        #[case] output: &str,
        #[case] outcome: &str,
        #[case] rest: &str,
    ) {
        assert_eq!(super::outcome(tool, success, output), (outcome.to_owned(), rest));
    }
}
