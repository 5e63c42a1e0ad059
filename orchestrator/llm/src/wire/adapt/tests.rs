//! Conversations as each dialect has them.

use config::OutputLimit;
use proptest::prelude::*;
use protocol::{CallId, ToolCall, ToolDomain};
use serde_json::json;

use super::*;

fn call(id: &str, name: &str) -> ToolCall {
    ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: json!({}) }
}

fn user(content: &str) -> Message {
    Message::User { content: content.to_owned() }
}

fn reply(content: &str, tool_calls: Vec<ToolCall>) -> Message {
    Message::Assistant { content: content.to_owned(), tool_calls, native: None }
}

fn result(id: &str, content: &str) -> Message {
    Message::Tool { tool_call_id: id.to_owned(), name: "shell".to_owned(), content: content.to_owned() }
}

fn request(messages: Vec<Message>) -> CompletionRequest {
    CompletionRequest {
        call_id: CallId::generate(),
        messages,
        tools: vec![ToolDefinition::new("shell", "a tool", json!({"anyOf": []}), ToolDomain::Container)],
        tool_choice: ToolChoice::Auto,
        max_tokens: None,
        temperature: Some(0.3),
    }
}

fn adapted(messages: Vec<Message>, dialect: &Dialect) -> Vec<Message> {
    adapt(&request(messages), &options(dialect)).messages.into_iter().map(Cow::into_owned).collect()
}

fn options(dialect: &Dialect) -> RequestOptions<'_> {
    RequestOptions { maker: "me", ..RequestOptions::new("m", 100, 1_000, dialect) }
}

#[test]
fn a_valid_conversation_is_not_copied() {
    let messages =
        vec![user("hi"), reply("", vec![call("functions.x:0", "shell")]), result("functions.x:0", "ok"), user("?")];
    let request = request(messages);
    let adapted =
        adapt(&request, &options(&Dialect { output_limit: Some(OutputLimit::MaxTokens), ..Dialect::default() }));
    assert!(adapted.messages.iter().all(|message| matches!(message, Cow::Borrowed(_))));
    assert!(adapted.tools.iter().all(|tool| matches!(tool, Cow::Borrowed(_))));
    assert_eq!(adapted.temperature, Some(0.3));
}

#[test]
fn names_that_a_model_made_up_are_valid_when_they_are_sent_back() {
    for (name, expected) in [
        ("multi_tool_use.parallel", "multi_tool_use_parallel"),
        ("functions.shell<|channel|>", "functions_shell__channel__"),
        ("größe", "gr__e"),
        ("", "unnamed"),
    ] {
        let messages = adapted(vec![user("hi"), reply("", vec![call("a", name)])], &Dialect::default());
        let Message::Assistant { tool_calls, .. } = &messages[1] else { panic!("{messages:?}") };
        assert_eq!(tool_calls[0].name, expected);
    }
    let long = adapted(vec![reply("", vec![call("a", &"x".repeat(200))])], &Dialect::default());
    assert_eq!(long, [reply("", vec![call("a", &"x".repeat(64))])]);
}

#[test]
fn texts_after_results_are_joined_where_they_may_not_follow() {
    let messages = || {
        vec![
            user("one"),
            user("two"),
            reply("", vec![call("a", "shell")]),
            result("a", "ok"),
            user("three"),
            user("four"),
        ]
    };
    let joined = adapted(messages(), &Dialect { order: Some(MessageOrder::TextInResults), ..Dialect::default() });
    let expected = [user("one\n\ntwo"), reply("", vec![call("a", "shell")]), result("a", "ok\n\nthree\n\nfour")];
    assert_eq!(joined, expected);
    assert_eq!(adapted(messages(), &Dialect::default()), messages());
}

#[test]
fn instructions_stand_where_they_are_taken() {
    let system = |content: &str| Message::System { content: content.to_owned() };
    let messages = || vec![system("be brief"), user("hi"), reply("yes", vec![]), system("be kind"), user("go on")];
    let first = Dialect { system: Some(SystemMessages::OneFirst), ..Dialect::default() };
    let expected = [system("be brief\n\nbe kind"), user("hi"), reply("yes", vec![]), user("go on")];
    assert_eq!(adapted(messages(), &first), expected);
    let in_user = Dialect { system: Some(SystemMessages::InUserMessage), ..Dialect::default() };
    let expected = [user("be brief\n\nbe kind\n\nhi"), reply("yes", vec![]), user("go on")];
    assert_eq!(adapted(messages(), &in_user), expected);
}

#[test]
fn calls_of_one_reply_are_sent_one_by_one() {
    let messages =
        vec![reply("two", vec![call("a", "shell"), call("b", "shell")]), result("a", "1"), result("b", "2"), user("?")];
    let one = Dialect { one_call_per_message: Some(true), ..Dialect::default() };
    let expected = [
        reply("two", vec![call("a", "shell")]),
        result("a", "1"),
        reply("", vec![call("b", "shell")]),
        result("b", "2"),
        user("?"),
    ];
    assert_eq!(adapted(messages, &one), expected);
}

#[test]
fn where_calls_cannot_be_forbidden_nothing_is_offered() {
    let request = CompletionRequest { tool_choice: ToolChoice::None, ..request(vec![user("hi")]) };
    let omitted = Dialect { tool_choice: Some(Field::Omit), ..Dialect::default() };
    assert!(adapt(&request, &options(&omitted)).tools.is_empty());
    assert_eq!(adapt(&request, &options(&Dialect::default())).tools.len(), 1);
}

/// Replies, each with its results and what is said after them.
fn conversations() -> impl Strategy<Value = Vec<Message>> {
    let id = "[a-zA-Z0-9_.:é-]{0,70}";
    let turn = (prop::collection::vec(id, 0..4), prop::collection::vec("[a-z]{1,5}", 0..3));
    prop::collection::vec(turn, 0..6).prop_map(|turns| {
        let mut messages = vec![Message::System { content: "be brief".to_owned() }];
        for (at, (ids, texts)) in turns.into_iter().enumerate() {
            let ids: Vec<String> = ids.iter().enumerate().map(|(n, id)| format!("{id}.{at}.{n}")).collect();
            messages.push(reply("", ids.iter().map(|id| call(id, "shell.x")).collect()));
            messages.extend(ids.iter().map(|id| result(id, "ok")));
            messages.extend(texts.iter().map(|text| user(text)));
        }
        messages
    })
}

fn ids(messages: &[Message]) -> (Vec<&str>, Vec<&str>) {
    let (mut calls, mut results) = (vec![], vec![]);
    for message in messages {
        match message {
            Message::Assistant { tool_calls, .. } => calls.extend(tool_calls.iter().map(|call| call.id.as_str())),
            Message::Tool { tool_call_id, .. } => results.push(tool_call_id.as_str()),
            Message::System { .. } | Message::User { .. } => {}
        }
    }
    (calls, results)
}

proptest! {
    #[test]
    fn ids_are_valid_and_those_of_calls_and_results_stay_the_same(
        messages in conversations(),
        (kind, max) in prop::sample::select(vec![(CallIds::Max64, 64), (CallIds::Max40, 40), (CallIds::Nine, 9)]),
    ) {
        let sent = adapted(messages.clone(), &Dialect { call_ids: Some(kind), ..Dialect::default() });
        let (calls, results) = ids(&sent);
        prop_assert_eq!(&calls, &results);
        for id in &calls {
            prop_assert!(!id.is_empty() && id.len() <= max && id.bytes().all(is_word), "{}", id);
            prop_assert!(kind != CallIds::Nine || id.len() == 9);
        }
        let different: std::collections::HashSet<_> = calls.iter().collect();
        prop_assert_eq!(different.len(), ids(&messages).0.len());
    }

    #[test]
    fn no_text_follows_what_it_may_not_and_none_is_lost(messages in conversations()) {
        for order in [MessageOrder::TextInResults, MessageOrder::Alternating] {
            let sent = adapted(messages.clone(), &Dialect { order: Some(order), ..Dialect::default() });
            for pair in sent.windows(2) {
                let is_user = matches!(pair[1], Message::User { .. });
                let may_precede = !matches!(pair[0], Message::User { .. } | Message::Tool { .. });
                prop_assert!(!is_user || may_precede);
            }
            let texts = |messages: &[Message]| -> usize {
                messages.iter().map(|message| match message {
                    Message::User { content } | Message::Tool { content, .. } => content.replace(GAP, "").len(),
                    _ => 0,
                }).sum()
            };
            prop_assert_eq!(texts(&sent), texts(&messages));
        }
    }
}
