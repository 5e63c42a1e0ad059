//! Calls in the dialects of model families: those of their chat templates, and of the parsers of vLLM and llama.cpp.

use rstest::rstest;
use serde_json::json;

use super::{Offered, clean, cleaned, offered};

/// Each is `echo` with the message `hi`.
#[rstest]
#[case::hermes(
    r#"<tool_call>
{"name": "echo", "arguments": {"message": "hi"}}
</tool_call>"#
)]
#[case::qwen_coder("<tool_call>\n<function=echo>\n<parameter=message>\nhi\n</parameter>\n</function>\n</tool_call>")]
#[case::qwen_coder_without_wrapper("<function=echo>\n<parameter=message>\nhi\n</parameter>\n</function>\n</tool_call>")]
#[case::llama(r#"{"name": "echo", "parameters": {"message": "hi"}}"#)]
#[case::llama_function(r#"{"type": "function", "function": "echo", "parameters": {"message": "hi"}}"#)]
#[case::llama_after_thinking(r#"<think>hm</think> {"name": "echo", "parameters": {"message": "hi"}}"#)]
#[case::llama_tag(r#"<|python_tag|>{"type": "function", "name": "echo", "parameters": {"message": "hi"}}<|eom_id|>"#)]
#[case::llama_tag_call(r#"<|python_tag|>echo(message="hi")<|eom_id|>"#)]
// The format that LM Studio asks of models that have none.
#[case::lm_studio(r#"[TOOL_REQUEST]{"name": "echo", "arguments": {"message": "hi"}}[END_TOOL_REQUEST]"#)]
#[case::openai(
    r#"{"tool_calls": [{"type": "function", "function": {"name": "echo", "arguments": "{\"message\": \"hi\"}"}}]}"#
)]
#[case::llama_list(r#"[echo(message="hi")]"#)]
#[case::llama_function_tag(r#"<function=echo>{"message": "hi"}</function>"#)]
#[case::mistral(r#"[TOOL_CALLS][{"name": "echo", "arguments": {"message": "hi"}}]"#)]
#[case::mistral_spaced(r#"[TOOL_CALLS] [{"name": "echo", "arguments": {"message": "hi"}, "id": "abcdef123"}]"#)]
#[case::mistral_args(r#"[TOOL_CALLS]echo[ARGS]{"message": "hi"}"#)]
#[case::mistral_id(r#"[TOOL_CALLS]echo[CALL_ID]abcDEF123[ARGS]{"message": "hi"}"#)]
#[case::mistral_bare(r#"[TOOL_CALLS]echo{"message": "hi"}"#)]
#[case::deepseek_v3(
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>echo\n```json\n{\"message\": \"hi\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
)]
#[case::deepseek_v31(
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>echo<｜tool▁sep｜>{\"message\": \"hi\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)]
// MoonshotAI/kimi-code#798
#[case::deepseek_ascii(
    "<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>echo\n```json\n{\"message\": \"hi\"}\n```<|tool▁call▁end|>"
)]
#[case::dsml(
    "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"echo\">\n<｜DSML｜parameter name=\"message\" string=\"true\">hi</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
)]
// xorbitsai/xagent#806
#[case::dsml_bars(
    "<｜｜DSML｜｜tool_calls> <｜｜DSML｜｜invoke name=\"echo\"><｜｜DSML｜｜parameter name=\"message\" string=\"true\">hi</｜｜DSML｜｜parameter></｜｜DSML｜｜invoke> </｜｜DSML｜｜tool_calls>"
)]
#[case::dsml_json(
    "<|DSML|invoke name=\"echo\">\n<|DSML|parameter name=\"message\" string=\"false\">\"hi\"</|DSML|parameter>\n</|DSML|invoke>"
)]
#[case::kimi(r#"<|tool_calls_section_begin|><|tool_call_begin|>functions.echo:0<|tool_call_argument_begin|>{"message": "hi"}<|tool_call_end|><|tool_calls_section_end|>"#)]
#[case::kimi_spaced(
    r#"<|tool_call_begin|> functions.echo:12 <|tool_call_argument_begin|> {"message": "hi"} <|tool_call_end|>"#
)]
#[case::kimi_k3(r#"<|open|>tools<|sep|><|open|>call tool="echo" index="1"<|sep|><|open|>argument key="message" type="string"<|sep|>hi<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"#)]
// can1357/oh-my-pi#8495
#[case::kimi_k3_lost_marks(r#"<|open|>toolscall tool="echo" index="1"<|sep|><|open|>argument key="message" type="string"<|sep|>hi<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"#)]
// lmstudio-ai/lmstudio-bug-tracker#2194
#[case::cohere(
    r#"<|START_ACTION|>[
    {"tool_call_id": "0", "tool_name": "echo", "parameters": {"message": "hi"}}
]<|END_ACTION|>"#
)]
#[case::nemotron(r#"<TOOLCALL>[{"name": "echo", "arguments": {"message": "hi"}}]</TOOLCALL>"#)]
#[case::harmony(r#"<|channel|>commentary to=functions.echo <|constrain|>json<|message|>{"message": "hi"}<|call|>"#)]
#[case::harmony_recipient_first(r#"<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.echo<|channel|>commentary json<|message|>{"message": "hi"}<|call|>"#)]
#[case::harmony_stopped(r#"<|channel|>commentary to=functions.echo <|constrain|>json<|message|>{"message": "hi"}"#)]
#[case::harmony_analysis(r#"<|channel|>analysis to=functions.echo code<|message|>{"message": "hi"}<|call|>"#)]
// raullenchai/Rapid-MLX#480
#[case::harmony_without_marks(r#"commentary to=functions.echo json{"message": "hi"}"#)]
#[case::harmony_begun(r#" to=functions.echo<|channel|>commentary <|constrain|>json<|message|>{"message": "hi"}"#)]
#[case::gemma_python("```tool_code\necho(message=\"hi\")\n```")]
#[case::gemma_print("```tool_code\nprint(default_api.echo(message='hi'))\n```")]
#[case::gemma_json("```tool_code\n{\"name\": \"echo\", \"parameters\": {\"message\": \"hi\"}}\n```")]
#[case::gemma_tool_call("```tool_call\n{\"name\": \"echo\", \"arguments\": {\"message\": \"hi\"}}\n```")]
#[case::gemma_4(r#"<|tool_call>call:echo{message:<|"|>hi<|"|>}<tool_call|>"#)]
#[case::gemma_4_after_thinking(
    r#"<|channel>thought
hm<|tool_call>call:echo{message:<|"|>hi<|"|>}<tool_call|>"#
)]
#[case::function_gemma("<start_function_call>call:echo{message:<escape>hi<escape>}<end_function_call>")]
#[case::minimax_m1("<tool_calls>\n{\"name\": \"echo\", \"arguments\": {\"message\": \"hi\"}}\n</tool_calls>")]
#[case::minimax_m2(
    "<minimax:tool_call>\n<invoke name=\"echo\">\n<parameter name=\"message\">hi</parameter>\n</invoke>\n</minimax:tool_call>"
)]
#[case::granite(r#"<|tool_call|>[{"name": "echo", "arguments": {"message": "hi"}}]"#)]
#[case::granite_tag(r#"<tool_call>[{"arguments": {"message": "hi"}, "name": "echo"}]"#)]
#[case::glm("<tool_call>echo\n<arg_key>message</arg_key>\n<arg_value>hi</arg_value>\n</tool_call>")]
#[case::glm_47("<tool_call>echo<arg_key>message</arg_key><arg_value>hi</arg_value></tool_call>")]
#[case::prefixed(r#"<tool_call>{"name": "functions.echo", "arguments": {"message": "hi"}}</tool_call>"#)]
fn reads_a_call(#[case] written: &str) {
    // Not all can be told from a text when they follow one.
    let needs_mark = ["{", "[echo", "commentary", " to=", "<think>"].iter().any(|start| written.starts_with(start));
    for before in if needs_mark { vec![""] } else { vec!["", "I call it.\n", "I call it: "] } {
        if written.starts_with("```") && before.ends_with(' ') {
            continue;
        }
        let text = format!("{before}{written}");
        let read = cleaned(&text);
        let calls: Vec<_> = read.calls.iter().map(|call| (call.name.as_str(), call.arguments.clone())).collect();
        assert_eq!(calls, [("echo", json!({"message": "hi"}))], "{text}");
        assert_eq!((read.text.as_str(), read.has_unread_calls), (before.trim(), false), "{text}");
        assert_eq!(read.last_unread, None, "{text}");

        let unread = clean(&text, offered(false));
        let tool = unread.last_unread.and_then(|call| call.tool);
        assert_eq!((unread.text.as_str(), tool.as_deref()), (before.trim(), Some("echo")), "{text}");

        let of_no_tool = clean(&text, Offered { recovers: true, ..Offered::NONE });
        assert_eq!(of_no_tool.calls, []);
        // A reply in JSON whose name is no tool is an answer.
        let is_answer = needs_mark && written.contains(['{', '[']) && !written.contains("to=");
        assert_eq!(of_no_tool.last_unread.is_some(), !is_answer, "{text}");
    }
}

#[rstest]
#[case::glm("<tool_call>echo</tool_call>")]
#[case::glm_lines("<tool_call>echo\n</tool_call>")]
#[case::kimi("<|tool_call_begin|>functions.echo:0<|tool_call_argument_begin|><|tool_call_end|>")]
#[case::gemma("<|tool_call>call:echo{}<tool_call|>")]
#[case::python("```tool_code\necho()\n```")]
#[case::invoke("<invoke name=\"echo\"></invoke>")]
#[case::qwen("<tool_call><function=echo></function></tool_call>")]
// vllm-project/vllm#44326
#[case::glm_spaced("<tool_call> echo </tool_call>")]
fn reads_a_call_without_arguments(#[case] written: &str) {
    let calls = cleaned(written).calls;
    assert_eq!(calls.len(), 1, "{written}");
    assert_eq!((calls[0].name.as_str(), &calls[0].arguments), ("echo", &json!({})));
}

#[rstest]
#[case::mistral(r#"[TOOL_CALLS]echo[ARGS]{"a": 1}[TOOL_CALLS]shell[ARGS]{"b": 2}"#)]
#[case::mistral_list(
    r#"[TOOL_CALLS][{"name": "echo", "arguments": {"a": 1}}, {"name": "shell", "arguments": {"b": 2}}]"#
)]
#[case::llama(r#"<|python_tag|>{"name": "echo", "parameters": {"a": 1}}; {"name": "shell", "parameters": {"b": 2}}"#)]
#[case::llama_bare(r#"{"name": "echo", "parameters": {"a": 1}}; {"name": "shell", "parameters": {"b": 2}}"#)]
#[case::llama_list("[echo(a=1), shell(b=2)]")]
#[case::kimi(r#"<|tool_calls_section_begin|><|tool_call_begin|>functions.echo:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.shell:1<|tool_call_argument_begin|>{"b": 2}<|tool_call_end|><|tool_calls_section_end|>"#)]
#[case::deepseek(
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>echo\n```json\n{\"a\": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>shell\n```json\n{\"b\": 2}\n```<｜tool▁call▁end｜>"
)]
#[case::gemma_4("<|tool_call>call:echo{a:1}<tool_call|><|tool_call>call:shell{b:2}<tool_call|>")]
#[case::minimax(
    "<tool_calls>\n{\"name\": \"echo\", \"arguments\": {\"a\": 1}}\n{\"name\": \"shell\", \"arguments\": {\"b\": 2}}\n</tool_calls>"
)]
#[case::harmony(r#"<|channel|>commentary to=functions.echo json<|message|>{"a": 1}<|call|><|start|>assistant<|channel|>commentary to=functions.shell json<|message|>{"b": 2}<|call|>"#)]
fn reads_several_calls(#[case] written: &str) {
    let read = cleaned(written);
    let calls: Vec<_> = read.calls.iter().map(|call| (call.name.as_str(), call.arguments.clone())).collect();
    assert_eq!(calls, [("echo", json!({"a": 1})), ("shell", json!({"b": 2}))]);
    assert_eq!((read.text.as_str(), read.has_unread_calls), ("", false));
}

/// Without its end a call is not run, and nothing of it is text.
#[rstest]
#[case::hermes(r#"<tool_call>{"name": "echo", "arguments": {"message": "h"#)]
#[case::function("<function=echo>\n<parameter=message>\nhi\n")]
#[case::between_parameters("<function=echo>\n<parameter=message>\nhi\n</parameter>\n")]
#[case::invoke("<invoke name=\"echo\"><parameter name=\"message\">hi</parameter><parameter name=\"more\">x")]
#[case::invoke_json("<invoke name=\"echo\">{\"message\": ")]
#[case::mistral(r#"[TOOL_CALLS][{"name": "echo", "arguments": {"message": "hi"}"#)]
#[case::mistral_args(r#"[TOOL_CALLS]echo[ARGS]{"message": "hi""#)]
#[case::mistral_name("[TOOL_CALLS]ech")]
#[case::deepseek("<｜tool▁call▁begin｜>function<｜tool▁sep｜>echo\n```json\n{\"mess")]
#[case::kimi(r#"<|tool_calls_section_begin|><|tool_call_begin|>functions.echo:0<|tool_call_argument_begin|>{"mess"#)]
#[case::kimi_name("<|tool_call_begin|>functions.ec")]
#[case::harmony(r#"<|channel|>commentary to=functions.echo <|constrain|>json<|message|>{"mess"#)]
#[case::gemma_4(r#"<|tool_call>call:echo{message:<|"|>h"#)]
#[case::glm("<tool_call>echo\n<arg_key>message</arg_key>\n<arg_value>h")]
#[case::kimi_k3_lost_marks(r#"<|open|>call tool="echo" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>xargument<|sep|><|open|>argument key="b" type="string"<|sep|>y<|close|>argument<|sep|><|close|>call<|sep|>"#)]
#[case::kimi_k3(r#"<|open|>call tool="echo" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>x"#)]
#[case::glm_key("<tool_call>echo\n<arg_key>mess")]
#[case::glm_value("<tool_call>echo\n<arg_key>message</arg_key>")]
#[case::glm_unclosed("<tool_call>echo\n<arg_key>message</arg_key>\n<arg_value>hi</arg_value>\n")]
fn a_call_that_is_cut_off_is_not_read(#[case] written: &str) {
    let read = cleaned(&format!("I call it.\n{written}"));
    assert_eq!((read.text.as_str(), read.calls, read.last_unread.is_some()), ("I call it.", vec![], true));
}

/// The rest of the text is not lost with a call that cannot be read.
#[rstest]
#[case(r#"<tool_call>{"name": "echo", "arguments": {}</tool_call> Then."#)]
#[case(r#"<|tool_call_begin|>functions.echo:0<|tool_call_argument_begin|>{"a": b}<|tool_call_end|> Then."#)]
#[case("<|channel|>commentary to=python code<|message|>print(1)<|call|> Then.")]
#[case("<invoke name=\"echo\">what</invoke> Then.")]
fn a_malformed_call_ends_where_it_says(#[case] written: &str) {
    let read = cleaned(written);
    assert_eq!((read.text.as_str(), read.calls, read.has_unread_calls), ("Then.", vec![], true));
}

#[test]
fn values_of_gemma_are_of_their_kinds() {
    let text = r#"<|tool_call>call:echo{a:<|"|>x, "y" {z}<|"|>,b:-1.5,c:true,d:null,e:[1,<|"|>two<|"|>,{f:3}],g:{h:<|"|><|"|>}}<tool_call|>"#;
    let expected = json!({
        "a": "x, \"y\" {z}", "b": -1.5, "c": true, "d": null, "e": [1, "two", {"f": 3}], "g": {"h": ""},
    });
    assert_eq!(cleaned(text).calls[0].arguments, expected);
    let text = "```tool_code\necho(a='it\\'s', b=True, c=None, d=[1, 2], e={'k': \"v\\n\"},)\n```";
    let expected = json!({"a": "it's", "b": true, "c": null, "d": [1, 2], "e": {"k": "v\n"}});
    assert_eq!(cleaned(text).calls[0].arguments, expected);
}

/// A file that a call writes may contain what ends a call in another notation.
#[rstest]
#[case(
    "<function=echo><parameter=message>a </function> </invoke> b</parameter></function>",
    "a </function> </invoke> b"
)]
#[case(r#"<tool_call>{"name": "echo", "arguments": {"message": "a </tool_call> b"}}</tool_call>"#, "a </tool_call> b")]
#[case(
    r#"<|tool_call_begin|>echo<|tool_call_argument_begin|>{"message": "<|tool_call_end|> ``` b"}<|tool_call_end|>"#,
    "<|tool_call_end|> ``` b"
)]
#[case(
    "<function=echo><parameter=message>\n<a>\n<parameter name=\"b\" value=\"3\"/>\n</a>\n</parameter></function>",
    "<a>\n<parameter name=\"b\" value=\"3\"/>\n</a>"
)]
fn ends_of_calls_within_values_are_values(#[case] written: &str, #[case] message: &str) {
    let read = cleaned(written);
    assert_eq!((read.text.as_str(), &read.calls[0].arguments), ("", &json!({"message": message})));
}

#[test]
fn calls_that_are_thought_about_are_not_pointed_out() {
    let read = cleaned("Perhaps <tool_call>{\"name\": \"nope\"}</tool_call>.\n</think>\nDone.");
    assert_eq!((read.text.as_str(), read.has_unread_calls, read.last_unread), ("Done.", false, None));
    let read = cleaned("Perhaps <tool_call>{\"name\": \"echo\", \"arguments\": {}}</tool_call>.\n</think>\nDone.");
    assert_eq!((read.text.as_str(), read.calls), ("Done.", vec![]));
    let read = cleaned(
        "<|channel|>analysis<|message|>[TOOL_CALLS]echo[ARGS]{}<|end|><|start|>assistant<|channel|>final<|message|>Done.",
    );
    assert_eq!((read.text.as_str(), read.calls, read.has_unread_calls), ("Done.", vec![], false));
}
