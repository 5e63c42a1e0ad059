//! Cleaning, by example and at random.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

mod families;

fn cleaned(text: &str) -> Cleaned {
    clean(text, offered(true))
}

/// With the tools `shell` and `echo`.
fn offered(recovers: bool) -> Offered<'static> {
    Offered { recovers, has_tool: Some(&|name| name == "shell" || name == "echo"), ..Offered::NONE }
}

#[rstest]
#[case::plain("Hello.", "Hello.")]
#[case::thinking("<think>hm</think>\nHello.", "Hello.")]
#[case::upper_case("<Thinking>hm</THINKING>Hello.", "Hello.")]
#[case::twice_at_the_start("<think>a</think>\n<think>b</think>Hello.", "Hello.")]
#[case::in_the_middle("One. <reasoning>two</reasoning> Three.", "One. <reasoning>two</reasoning> Three.")]
#[case::an_open_tag_in_prose("It opens with <think>, and then thinks.", "It opens with <think>, and then thinks.")]
#[case::a_close_in_prose("42. Models end it with </think> as you see.", "42. Models end it with </think> as you see.")]
#[case::both_in_prose("Tags: <think>x</think>.", "Tags: <think>x</think>.")]
#[case::a_close_in_prose_after_thinking(
    "<think>a</think>It ends with </think> always.",
    "It ends with </think> always."
)]
#[case::a_template_that_opens_it("hm hm\n</think>\n\nHello.", "Hello.")]
#[case::never_opened("hm hm</think>Hello.", "Hello.")]
#[case::never_closed("<think>hm hm", "")]
#[case::never_closed_in_prose("Hello.<think>hm hm", "Hello.<think>hm hm")]
#[case::code_within("<think>```rust\nlet a</think>Hello.", "Hello.")]
#[case::fenced("```\n<think>a</think>\n```", "```\n<think>a</think>\n```")]
#[case::tildes("~~~ xml\n<tool_call>\n~~~\nEnd", "~~~ xml\n<tool_call>\n~~~\nEnd")]
#[case::fence_not_closed("```\n<think>a</think>", "```\n<think>a</think>")]
#[case::longer_fence("````\n```\n<think>a</think>\n````", "````\n```\n<think>a</think>\n````")]
#[case::inline("Use `<think>a</think>` so.", "Use `<think>a</think>` so.")]
#[case::double_inline("``a ` <think> b`` c", "``a ` <think> b`` c")]
#[case::lone_backtick("a ` b <tool_call> d", "a ` b  d")]
#[case::backtick_of_another_line("a ` b\n<tool_call>` d", "a ` b\n` d")]
#[case::other_tags("<b>bold</b> a < b > c", "<b>bold</b> a < b > c")]
#[case::html_like_name("<thinker>x</thinker>", "<thinker>x</thinker>")]
#[case::stray_tool_tag("Done.</tool_call>", "Done.")]
#[case::tag_in_prose("It is the <tool_call> tag.", "It is the  tag.")]
#[case::unknown_call("A <tool_call>{\"name\": \"nope\", \"arguments\": {}}</tool_call> B", "A  B")]
#[case::cut_call("A <tool_call>{\"name\": \"ec", "A")]
#[case::harmony_answer("<|channel|>final<|message|>Hello.<|return|>", "Hello.")]
#[case::harmony("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello.", "Hello.")]
#[case::harmony_preamble("<|channel|>commentary<|message|>I look.<|end|>", "I look.")]
#[case::response_of_kimi_k3("<|open|>response<|sep|>{\"a\": 1}<|close|>response<|sep|>", "{\"a\": 1}")]
#[case::harmony_in_prose("A <|channel|>analysis<|message|> opens it.", "A <|channel|>analysis<|message|> opens it.")]
#[case::harmony_never_closed("<|channel|>analysis<|message|>hm", "")]
#[case::channel_of_gemma("<|channel>thought\nhm<channel|>Hello.", "Hello.")]
#[case::mistral_in_prose("Mistral writes [TOOL_CALLS] first.", "Mistral writes [TOOL_CALLS] first.")]
#[case::kimi_in_prose("It is <|tool_call_begin|> there.", "It is <|tool_call_begin|> there.")]
#[case::to_in_prose("to=x is set.", "to=x is set.")]
#[case::analysis_in_prose("analysis of the code", "analysis of the code")]
#[case::python_in_code("```python\necho(message=\"hi\")\n```", "```python\necho(message=\"hi\")\n```")]
#[case::list_in_code("```\n[echo(message=\"hi\")]\n```", "```\n[echo(message=\"hi\")]\n```")]
#[case::unknown_bracket("[tool: nope {}] stays", "[tool: nope {}] stays")]
#[case::links("[a](b) [x] [tool]", "[a](b) [x] [tool]")]
#[case::utf8("<think>\u{1f980}</think>\u{e9}\u{1f980}`\u{e9}`", "\u{e9}\u{1f980}`\u{e9}`")]
#[case::json_of_another_kind("```json\n{\"name\": \"shell\"}\n```", "```json\n{\"name\": \"shell\"}\n```")]
#[case::json_with_more(
    "```json\n{\"name\": \"echo\", \"arguments\": {}, \"version\": 1}\n```",
    "```json\n{\"name\": \"echo\", \"arguments\": {}, \"version\": 1}\n```"
)]
#[case::json_in_another_language(
    "```python\n{\"name\": \"echo\", \"arguments\": {}}\n```",
    "```python\n{\"name\": \"echo\", \"arguments\": {}}\n```"
)]
#[case::package_json("{\"name\": \"echo\", \"version\": \"1\"}", "{\"name\": \"echo\", \"version\": \"1\"}")]
fn strips_tags_outside_code(#[case] given: &str, #[case] text: &str) {
    let cleaned = cleaned(given);
    assert_eq!((cleaned.text.as_str(), cleaned.calls), (text, vec![]));
}

#[test]
fn thinking_is_separated() {
    assert_eq!(cleaned("<think>one</think> <thought>two</thought>A").thinking, "one\ntwo");
    assert_eq!(cleaned("one</think>A").thinking, "one");
    assert_eq!(
        cleaned("<|channel|>analysis<|message|>one<|end|><|start|>assistant<|channel|>final<|message|>A").thinking,
        "one"
    );
    assert_eq!(cleaned("<|channel>thought\none\n<channel|>A").thinking, "one");
}

#[rstest]
#[case::tool_call(r#"<tool_call>{"name": "shell", "arguments": {"command": "ls"}}</tool_call>"#)]
#[case::not_closed(r#"<tool_call>{"name": "shell", "arguments": {"command": "ls"}}"#)]
#[case::other_keys(r#"<function_call>{"tool": "shell", "parameters": {"command": "ls"}}</function_call>"#)]
#[case::arguments_as_string(r#"<tool_call>{"name": "shell", "arguments": "{\"command\": \"ls\"}"}</tool_call>"#)]
#[case::piped(r#"<|tool_call|>{"name": "shell", "arguments": {"command": "ls"}}<|/tool_call|>"#)]
#[case::listed(r#"<tool_calls>[{"name": "shell", "arguments": {"command": "ls"}}]</tool_calls>"#)]
#[case::function_json(r#"<function=shell>{"command": "ls"}</function>"#)]
#[case::function_parameters(
    "<tool_call>\n<function=shell>\n<parameter=command>\nls\n</parameter>\n</function>\n</tool_call>"
)]
#[case::invoke(
    r#"<function_calls><invoke name="shell"><parameter name="command">ls</parameter></invoke></function_calls>"#
)]
#[case::prefixed(r#"<x:function_calls><x:invoke name="shell"><parameter name="command">ls</parameter></x:invoke></x:function_calls>"#)]
#[case::attribute(r#"<tool_call name="shell">{"command": "ls"}</tool_call>"#)]
#[case::bracket(r#"[TOOL_CALL]{"tool": "shell", "args": {"command": "ls"}}[/TOOL_CALL]"#)]
#[case::named_bracket(r#"[tool: shell {"command": "ls"}]"#)]
#[case::named_bracket_closed_first(r#"[tool: shell] {"command": "ls"}"#)]
#[case::block("```json\n{\"name\": \"shell\", \"arguments\": {\"command\": \"ls\"}}\n```")]
#[case::block_with_tool("```\n{\"tool\": \"shell\", \"parameters\": {\"command\": \"ls\"}}\n```")]
#[case::bare(r#"{"name": "shell", "arguments": {"command": "ls"}}"#)]
#[case::closed_by_a_token(r#"{"name": "shell", "arguments": {"command": "ls"}}<|im_end|>"#)]
#[case::closed_by_another_tag("{\"name\": \"shell\", \"arguments\": {\"command\": \"ls\"}}\n</tool_call>")]
#[case::one_brace_too_many(r#"{"name": "shell", "arguments": {"command": "ls"}}}"#)]
#[case::made_up_result(
    "<tool_call>{\"name\": \"shell\", \"arguments\": {\"command\": \"ls\"}}</tool_call>\n<tool_response>\nsome.txt\n</tool_response>"
)]
#[case::token_behind_it(
    "<tool_call>{\"name\": \"shell\", \"arguments\": {\"command\": \"ls\"}}</tool_call>\n<|observation|>"
)]
#[case::tools("<tools>\n{\"name\": \"shell\", \"arguments\": {\"command\": \"ls\"}}\n</tools>")]
#[case::function_without_a_name(r#"<function>{"name": "shell", "arguments": {"command": "ls"}}</function>"#)]
#[case::function_with_a_dash(r#"<function-call> {"name": "shell", "arguments": {"command": "ls"}}"#)]
#[case::lfm2(r#"<|tool_call_start|>[shell(command="ls")]<|tool_call_end|>"#)]
#[case::llama_4(r#"<|python_start|>[shell(command="ls")]<|python_end|>"#)]
#[case::block_of_calls("```JSON\n{\"name\": \"shell\", \"arguments\": {\"command\": \"ls\"}}\n```")]
#[case::message(
    r#"{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "shell", "arguments": "{\"command\": \"ls\"}"}}]}"#
)]
#[case::function_call(r#"{"function_call": {"name": "shell", "arguments": "{\"command\": \"ls\"}"}}"#)]
#[case::tool_call_as_a_key(r#"{"tool_call": {"name": "shell", "arguments": {"command": "ls"}}}"#)]
#[case::action(r#"{"action": "shell", "action_input": {"command": "ls"}}"#)]
#[case::item(r#"{"type": "function_call", "call_id": "c", "name": "shell", "arguments": "{\"command\": \"ls\"}"}"#)]
#[case::carriage_returns("<function=shell>\r\n<parameter=command>\r\nls\r\n</parameter>\r\n</function>")]
#[case::nested_function(r#"{"type": "function", "function": {"name": "shell", "arguments": "{\"command\": \"ls\"}"}}"#)]
fn recovers_calls(#[case] written: &str) {
    let alone = cleaned(written);
    let calls: Vec<(String, Value)> = alone.calls.into_iter().map(|call| (call.name, call.arguments)).collect();
    assert_eq!(calls, [("shell".to_owned(), json!({"command": "ls"}))]);
    assert_eq!(alone.text, "");
    assert_eq!(clean(written, Offered::NONE).calls, []);
}

#[test]
fn recovers_several_in_order_and_keeps_the_words() {
    let text =
        "First.\n<tool_call>{\"name\": \"echo\"}</tool_call>\n<tool_call>{\"name\": \"shell\"}</tool_call>\nThen.";
    let cleaned = cleaned(text);
    let names: Vec<&str> = cleaned.calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!((names, cleaned.text.as_str()), (vec!["echo", "shell"], "First.\n\n\nThen."));
}

#[test]
fn calls_quoted_in_a_parameter_are_text() {
    let text = r#"<invoke name="shell"><parameter name="command">echo '<tool_call>{"name":"echo"}</tool_call>'</parameter></invoke>"#;
    let calls = cleaned(text).calls;
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].arguments["command"], r#"echo '<tool_call>{"name":"echo"}</tool_call>'"#);
}

proptest! {
    #[test]
    fn any_text_is_cleaned_without_a_panic(text in "\\PC*") {
        cleaned(&text);
    }

    #[test]
    fn any_mix_of_tags_and_fences_is_cleaned_without_a_panic(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<think>", "</think>", "<tool_call>", "</tool_call>", "<|tool_call|>", "<function=echo>", "</function>",
            "<invoke name=\"echo\">", "</invoke>", "<parameter=a>", "</parameter>", "[TOOL_CALL]", "[/TOOL_CALL]",
            "[tool: echo", "]", "{", "}", "\"name\": \"echo\"", "{\"a\": 1}", "`", "``", "```", "```json", "~~~", "\n",
            " ", "\u{e9}", "\u{1f980}", "<", ">", "/", "|", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
            "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "echo", "functions.", "function", ":0", "<|tool_call_begin|>",
            "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<\u{ff5c}tool\u{2581}call\u{2581}begin\u{ff5c}>",
            "<\u{ff5c}tool\u{2581}sep\u{ff5c}>", "<\u{ff5c}DSML\u{ff5c}invoke name=\"nope\">", "<|python_tag|>", "<|channel|>",
            "<|start|>assistant", "commentary", "analysis", " to=", "<|message|>", "<|end|>", "<|call|>", "<|tool_call>",
            "<tool_call|>", "call:", "<|\"|>", "<escape>", "<start_function_call>", "(", ")", "a=", "'", "\"", ",", ";",
            "{\"name\": \"echo\", \"arguments\": {}}", "{\"name\": \"nope\", \"arguments\": {}}", "tool_code", "<|channel>",
            "<|open|>call tool=\"echo\"<|sep|>", "<|open|>argument key=\"a\"<|sep|>", "<|close|>argument<|sep|>", "<|open|>",
        ]), 0..60),
        recovers: bool,
    ) {
        let text = parts.concat();
        let cleaned = clean(&text, Offered { recovers, has_tool: Some(&|name| name == "echo"), ..Offered::NONE });
        prop_assert!(cleaned.text.len() <= text.len());
        prop_assert!(cleaned.calls.iter().all(|call| recovers && call.name == "echo"));
    }

    #[test]
    fn prose_without_signs_stays_itself(text in "[a-z \u{e9}.,!]*") {
        prop_assert_eq!(cleaned(&text).text, text.trim());
    }
}

/// What is left of a text whose calls are not run, and the tool of the call that it ends with.
#[rstest]
#[case::at_the_end("Now.\n<tool_call>{\"name\": \"echo\"}</tool_call>", "Now.", Some("echo"))]
#[case::alone("[tool: echo {\"message\": \"hi\"}]", "", Some("echo"))]
#[case::two(
    "A <invoke name=\"echo\"></invoke> <invoke name=\"shell\"><parameter name=\"command\">ls</parameter></invoke>",
    "A",
    Some("shell")
)]
#[case::with_a_full_stop("It is <tool_call>{\"name\": \"echo\"}</tool_call>.", "It is .", Some("echo"))]
#[case::before_code(
    "<tool_call>{\"name\": \"echo\"}</tool_call>\n```\nhi\n```\n`hi`",
    "```\nhi\n```\n`hi`",
    Some("echo")
)]
#[case::of_another_tool("<tool_call>{\"name\": \"nope\"}</tool_call>", "", Some("nope"))]
#[case::after_words(
    "I say hi.\n\n{\"name\": \"echo\", \"arguments\": {\"message\": \"hi\"}}\n",
    "I say hi.",
    Some("echo")
)]
#[case::two_after_words(
    "I say hi.\n{\"name\": \"shell\", \"arguments\": {}}\n{\"name\": \"echo\", \"arguments\": {}}",
    "I say hi.",
    Some("shell")
)]
#[case::on_the_same_line(
    "It is {\"name\": \"echo\", \"arguments\": {}}",
    "It is {\"name\": \"echo\", \"arguments\": {}}",
    None
)]
#[case::before_words(
    "{\"name\": \"echo\", \"arguments\": {}}\nis a call.",
    "{\"name\": \"echo\", \"arguments\": {}}\nis a call.",
    None
)]
#[case::a_line_of_other_json(
    "{\"a\": 1}\n{\"name\": \"echo\", \"arguments\": {}}",
    "{\"a\": 1}\n{\"name\": \"echo\", \"arguments\": {}}",
    None
)]
#[case::token_behind_it("Now.\n<tool_call>{\"name\": \"echo\"}</tool_call><|im_end|>", "Now.", Some("echo"))]
#[case::made_up_result(
    "Now.\n<tool_call>{\"name\": \"echo\"}</tool_call>\n<tool_response>\nhi\n</tool_response>\nIt said hi.",
    "Now.",
    Some("echo")
)]
#[case::end_of_a_mark_that_was_not_opened(
    "Now.\n{\"name\": \"echo\", \"arguments\": {}}\n</tool_call>",
    "Now.",
    Some("echo")
)]
#[case::raw_line_break("Now.\n{\"name\": \"echo\", \"arguments\": {\"message\": \"a\nb\"}}", "Now.", Some("echo"))]
#[case::cut_off("{\"name\": \"echo\", \"arguments\": {\"message\": \"a", "", Some("echo"))]
#[case::quotes_of_python("{'name': 'echo', 'arguments': {}}", "", Some("echo"))]
#[case::malformed_and_explained(
    "{'name': 'echo', 'arguments': {}}\nis what it wrote.",
    "{'name': 'echo', 'arguments': {}}\nis what it wrote.",
    None
)]
#[case::malformed_before_code(
    "The log has:\n{'name': 'echo', 'arguments': {}}\nThat is Python, see `log.py`",
    "The log has:\n{'name': 'echo', 'arguments': {}}\nThat is Python, see `log.py`",
    None
)]
#[case::a_tag_with_a_placeholder(
    "Replace <tools>{list}</tools> by your tools.\nThen run it.",
    "Replace <tools>{list}</tools> by your tools.\nThen run it.",
    None
)]
#[case::a_tool_that_is_described(
    "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"echo\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}\n</tools>",
    "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"echo\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}\n</tools>",
    None
)]
#[case::a_list_of_calls(
    "calls = [\n{\"name\": \"echo\", \"arguments\": {}}\n]",
    "calls = [\n{\"name\": \"echo\", \"arguments\": {}}\n]",
    None
)]
#[case::a_fence_behind_words(
    "Example: ```json\n{\"name\": \"echo\", \"arguments\": {}}\n```",
    "Example: ```json\n{\"name\": \"echo\", \"arguments\": {}}\n```",
    None
)]
#[case::fence_of_tildes_in_a_quotation(
    "> ~~~\n> <tool_call>{\"name\": \"echo\"}</tool_call>\n> ~~~",
    "> ~~~\n> <tool_call>{\"name\": \"echo\"}</tool_call>\n> ~~~",
    None
)]
#[case::header_in_a_sentence(
    "It opens so:\nto=functions.echo is the header.",
    "It opens so:\nto=functions.echo is the header.",
    None
)]
#[case::harmony_after_words("Now.\nassistant to=functions.echo commentary json\n{}", "Now.", Some("echo"))]
#[case::value_that_is_not_closed(
    "<function=echo>\n<parameter=message>\na\n<parameter=to>\nb\n</parameter>\n</function>",
    "",
    None
)]
#[case::fence_in_a_list(
    "1. Hermes:\n\n    ```xml\n    <tool_call>{\"name\": \"echo\"}</tool_call>\n    ```",
    "1. Hermes:\n\n    ```xml\n    <tool_call>{\"name\": \"echo\"}</tool_call>\n    ```",
    None
)]
#[case::fence_in_a_quotation(
    "> ```\n> <tool_call>{\"name\": \"echo\"}</tool_call>\n> ```",
    "> ```\n> <tool_call>{\"name\": \"echo\"}</tool_call>\n> ```",
    None
)]
#[case::command("Now.\n<tool_call>echo \"hi\"</tool_call>", "Now.", Some("echo"))]
#[case::command_of_no_tool("<tool_call>ls -la</tool_call>", "", None)]
#[case::command_on_its_line("<tool_call>\necho \"hi\"\n</tool_call>", "", Some("echo"))]
#[case::command_after_a_blank("<tool_call> echo hi </tool_call>", "", Some("echo"))]
#[case::malformed_and_not_closed("Now.\n<tool_call>\n{\"name\": \"echo\", \"arguments\": {a: 1}}", "Now.", None)]
#[case::tag_before_a_sentence("<invoke> and\n<tool_call> are tags.", "<invoke> and\n are tags.", None)]
#[case::command_in_marks("[TOOL_CALL]echo hi[/TOOL_CALL]", "", Some("echo"))]
#[case::command_not_closed("Now.\n<tool_call>\necho hi\n", "Now.", Some("echo"))]
#[case::command_explained(
    "Write <tool_call>echo hi</tool_call> for that.",
    "Write <tool_call>echo hi</tool_call> for that.",
    None
)]
#[case::marks_in_a_sentence(
    "They stand between [TOOL_CALL] and [END].",
    "They stand between [TOOL_CALL] and [END].",
    None
)]
#[case::python("```tool_code\necho(message=\"hi\")\n```", "", Some("echo"))]
#[case::explained(
    "Hermes writes <tool_call>{\"name\": \"echo\"}</tool_call> there.",
    "Hermes writes <tool_call>{\"name\": \"echo\"}</tool_call> there.",
    None
)]
#[case::explained_twice(
    "<function=echo>{}</function> is Llama's, <tool_call>echo</tool_call> is GLM's.",
    "<function=echo>{}</function> is Llama's, <tool_call>echo</tool_call> is GLM's.",
    None
)]
#[case::malformed("A <tool_call>{\"name\": b}</tool_call> B", "A <tool_call>{\"name\": b}</tool_call> B", None)]
#[case::tags("<invoke name=\"echo\"> opens a call.", "<invoke name=\"echo\"> opens a call.", None)]
#[case::bracket("[tool: echo {\"a\": 1}] is one.", "[tool: echo {\"a\": 1}] is one.", None)]
#[case::inline(
    "Models write `<tool_call>{\"name\": \"echo\"}</tool_call>`",
    "Models write `<tool_call>{\"name\": \"echo\"}</tool_call>`",
    None
)]
#[case::fenced_json(
    "```json\n{\"name\": \"echo\", \"arguments\": {}}\n```",
    "```json\n{\"name\": \"echo\", \"arguments\": {}}\n```",
    None
)]
fn calls_that_are_not_run_are_text_unless_it_ends_with_them(
    #[case] given: &str,
    #[case] text: &str,
    #[case] last: Option<&str>,
) {
    let quoting = Offered { is_quoted: &|_| true, ..offered(true) };
    for given_tools in [offered(false), quoting] {
        let cleaned = clean(given, given_tools);
        assert_eq!(cleaned.calls, []);
        let tool = cleaned.last_unread.and_then(|call| call.tool);
        // Where calls are run, those of other tools and malformed ones are left out.
        if !given_tools.recovers || !(given.contains("b}") || given.contains("opens")) {
            assert_eq!((cleaned.text.as_str(), tool.as_deref()), (text, last));
        }
    }
}

#[rstest]
#[case::result("<tool_call>{\"name\": \"echo\", \"arguments\": {}}</tool_call>\n<tool_response>hi</tool_response>")]
#[case::turn("{\"name\": \"echo\", \"arguments\": {}}\n<|im_start|>user")]
#[case::malformed("<tool_call>{\"name\": b}</tool_call>\n<|observation|>hi")]
fn a_text_without_tools_goes_on_behind_a_call(#[case] call: &str) {
    let text = format!("It ran:\n{call}\nThen it went on.");
    assert_eq!(clean(&text, Offered::NONE).text, text);
    let kept = cleaned(&text).text;
    assert!(!kept.contains("went on"), "{kept}");
}

/// Marks do not belong to the text of a call that names its tool by itself.
#[rstest]
#[case::json(
    "A <tool_call> {\"name\": \"echo\", \"arguments\": {}} </tool_call>",
    " {\"name\": \"echo\", \"arguments\": {}}"
)]
#[case::fenced("```json\n{\"name\": \"echo\", \"arguments\": {}}\n```", "{\"name\": \"echo\", \"arguments\": {}}")]
#[case::before_a_token("{\"name\": \"echo\", \"arguments\": {}}<|im_end|>", "{\"name\": \"echo\", \"arguments\": {}}")]
#[case::before_a_result(
    "{\"name\": \"echo\", \"arguments\": {}}\n<tool_response>hi</tool_response>",
    "{\"name\": \"echo\", \"arguments\": {}}"
)]
#[case::before_a_brace(
    "```json\n{\"name\": \"echo\", \"arguments\": {}}}\n```",
    "{\"name\": \"echo\", \"arguments\": {}}"
)]
#[case::python("[echo(a=1)]</s>", "[echo(a=1)]")]
#[case::tag("A <function=echo>{}</function>", "<function=echo>{}")]
#[case::name("A <tool_call>echo</tool_call>", "<tool_call>echo</tool_call>")]
#[case::harmony(
    "<|channel|>commentary to=functions.echo json<|message|>{}<|call|>",
    "<|channel|>commentary to=functions.echo json<|message|>{}"
)]
fn the_text_of_a_call_is_looked_for(#[case] given: &str, #[case] looked_for: &str) {
    for is_read in [false, true] {
        let is_quoted = |text: &str| is_read && text == looked_for;
        let cleaned = clean(given, Offered { is_quoted: &is_quoted, ..offered(true) });
        assert_eq!(cleaned.calls.is_empty(), is_read, "{given}");
    }
}

/// Half a megabyte made to be slow. In linear time it takes a fraction of a second, in quadratic time minutes; the
/// limit is far from both, so that a busy machine does not matter.
#[rstest]
#[case("<think>")]
#[case("<tool_call>")]
#[case("<tool_call> <invoke name=\"echo\">")]
#[case("<tool_call>ls ")]
#[case("\n{\"a\": 1}")]
#[case("\n[")]
#[case("\n[1,")]
#[case("\n[[],[1],")]
#[case("\n{\"name\": \"echo\", \"arguments\": {}}")]
#[case("<")]
#[case("`")]
#[case("` ``")]
#[case("[tool: echo {\"a\": [")]
#[case("<tool_call>[\"</tool_call>")]
#[case("```\n")]
#[case("[TOOL_CALL][")]
#[case("<think><|/think|>")]
#[case("</think>")]
#[case("\n<think>a</think>")]
#[case("a <think>")]
#[case("[TOOL_CALLS]")]
#[case("[TOOL_CALLS][\"")]
#[case("[TOOL_CALLS]echo[ARGS]{\"a\":\"[/TOOL_CALL]")]
#[case("[TOOL_CALLS][echo(a='[/TOOL_CALL]")]
#[case("<|tool_call_begin|>echo:0<|tool_call_argument_begin|>")]
#[case("<|tool_call_begin|>function<|tool_sep|>")]
#[case("function<|tool_sep|>")]
#[case("<invoke name=\"echo\"><parameter=a></invoke>")]
#[case("<invoke name=\"echo\">a ")]
#[case("<function=f><parameter=a>")]
#[case("[tool_call]x <parameter=a>")]
#[case("<tool_call>echo<arg_key>a</tool_call>")]
#[case("<|tool_call>call:echo{a:'<tool_call|><|tool_call>call:echo{a:\"<tool_call|>")]
#[case("<|tool_call>call:echo{a:b<tool_call|>")]
#[case("<|tool_call>call:echo{a:[")]
#[case("<|channel|>")]
#[case("a <|channel>")]
#[case("a <|channel|>analysis<|message|>")]
#[case("<|start|>assistant to=functions.echo<|message|>")]
#[case("to=functions.echo json ")]
#[case("{\"name\":\"echo\"}")]
#[case("<|python_tag|>{};")]
#[case("\n{\"name\": \"echo\", \"arguments\": [")]
#[case("\n{'name': 'echo', 'arguments': [} ")]
#[case("<tools>{\"name\": \"echo\"} <|im_end|>")]
#[case("{\"name\": \"echo\", \"arguments\": {}}} <|im_end|> </function>\n")]
#[case("{\"name\": \"echo\", \"arguments\": {}}</ \n")]
#[case("<|open|>call tool=\"echo\"<|sep|><|open|>argument key=\"a\"<|sep|>")]
fn cleaning_is_linear(#[case] unit: &str) {
    let text = unit.repeat(524_288 / unit.len());
    let begun = std::time::Instant::now();
    for recovers in [false, true] {
        clean(&text, offered(recovers));
    }
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "took {:?}", begun.elapsed());
}
