//! Prices: the estimate of a call, what it costs, and what happens without a price.

use rstest::rstest;

use super::{
    decisions::{DEAD, WELL, gateway},
    *,
};

/// The estimated prompt tokens of a request.
fn estimated_tokens(gateway: &Gateway, request: &CompletionRequest) -> u64 {
    gateway.estimate(request, &CallContext { model: Some("model"), ..CallContext::default() }).prompt_tokens
}

#[tokio::test]
async fn the_whole_request_is_estimated() {
    let gateway = gateway(vec![scripted("one", WELL)]);
    let text = || "word ".repeat(8_000);
    let call =
        |call: protocol::ToolCall| Message::Assistant { content: String::new(), tool_calls: vec![call], native: None };
    let plain = || protocol::ToolCall { id: "i".to_owned(), name: "n".to_owned(), arguments: json!({}) };
    let messages = [
        user(&text()),
        Message::System { content: text() },
        Message::Assistant { content: text(), tool_calls: vec![], native: None },
        Message::Assistant {
            content: String::new(),
            tool_calls: vec![],
            native: Some(protocol::NativeReply { maker: String::new(), value: json!([text()]), prefix: None }),
        },
        call(protocol::ToolCall { id: text(), ..plain() }),
        call(protocol::ToolCall { name: text(), ..plain() }),
        call(protocol::ToolCall { arguments: json!({"a": text()}), ..plain() }),
        Message::Tool { tool_call_id: text(), name: String::new(), content: String::new() },
        Message::Tool { tool_call_id: String::new(), name: text(), content: String::new() },
        Message::Tool { tool_call_id: String::new(), name: String::new(), content: text() },
    ];
    for message in messages {
        let request = conversation(vec![message.clone()]);
        assert!((10_000..10_100).contains(&estimated_tokens(&gateway, &request)), "{message:?}");
    }
    let mut request = request_of("short");
    request.tools[0].description = text();
    assert!(estimated_tokens(&gateway, &request) >= 10_000);
    (request.tools[0].description, request.tools[0].parameters) = (String::new(), json!([text()]));
    assert!(estimated_tokens(&gateway, &request) >= 10_000);
    let many = conversation((0..1_000).map(|_| user("")).collect());
    assert!(estimated_tokens(&gateway, &many) >= 4_000, "a message without text is something, too");
}

#[rstest]
#[case::marked_for_the_cache(ProviderKind::Anthropic, 375)]
#[case::not_marked(ProviderKind::OpenAi, 300)]
fn input_is_estimated_at_its_highest_price(#[case] kind: ProviderKind, #[case] input: u64) {
    let provider = ProviderSettings::new("one", kind, "claude-sonnet-4-6");
    let estimate = gateway(vec![provider]).estimate(&request_of("hello"), &CallContext::default());
    assert_eq!(estimate.prices, Some((input * 10_000, 15_000_000)));
}

#[test]
fn a_call_is_estimated_at_the_highest_price_of_its_providers() {
    let price = |input| ModelPrice {
        input_usd_per_million_tokens: input,
        output_usd_per_million_tokens: 2.0 * input,
        cache_read_usd_per_million_tokens: None,
        cache_write_usd_per_million_tokens: None,
    };
    let providers = ["cheap", "dear", "unknown"].map(|model| ProviderSettings::new(model, ProviderKind::OpenAi, model));
    let [primary, failover @ ..] = providers;
    let settings = LlmSettings {
        failover: failover.into(),
        prices: [("cheap".to_owned(), price(1.0)), ("dear".to_owned(), price(5.0))].into(),
        ..LlmSettings::of_provider(primary)
    };
    let gateway = Gateway::new(&settings).unwrap();
    for has_cost_limit in [false, true] {
        let estimate =
            gateway.estimate(&request_of("hello"), &CallContext { has_cost_limit, ..CallContext::default() });
        assert_eq!((estimate.prices, estimate.prompt_price), (Some((5_000_000, 10_000_000)), Some(1_000_000)));
    }
}

#[tokio::test(start_paused = true)]
async fn usage_is_charged_by_price() {
    let _time = VirtualTime::start();
    let price = ModelPrice {
        input_usd_per_million_tokens: 1.0,
        output_usd_per_million_tokens: 2.0,
        cache_read_usd_per_million_tokens: None,
        cache_write_usd_per_million_tokens: None,
    };
    let providers = vec![scripted("one", WELL)];
    let priced = build(providers, &[("model-of-o", price)], RetrySettings::default()).unwrap();
    assert_eq!(ask(&priced, "hello").await.unwrap().cost.cost_micro_usd, Some(1_200));

    let free = gateway(vec![scripted("one", WELL)]);
    assert_eq!(ask(&free, "hello").await.unwrap().cost.cost_micro_usd, Some(0));
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_answer_of_a_script_is_charged() {
    let _time = VirtualTime::start();
    let cut = "rules: [{times: 1, reply: {text: abcdefghijkl, cut_after_chars: 8, usage: {input_tokens: 50, \
               output_tokens: 90}}}, {reply: {text: whole, usage: {input_tokens: 50, output_tokens: 1}}}]";
    let answer = ask(&gateway(vec![scripted("one", cut)]), "hello").await.unwrap();
    assert_eq!(answer.cost.usage.output_tokens, 3, "eight characters that were interrupted, and one token");
    assert!(answer.cost.usage.input_tokens > 50, "{:?}", answer.cost.usage);
}

/// The operator's price list names one of the two models.
#[tokio::test(start_paused = true)]
async fn under_a_cost_limit_providers_without_a_price_are_skipped() {
    let _time = VirtualTime::start();
    let served = Served::start(WELL).await;
    let unpriced = ProviderSettings { name: "unpriced".to_owned(), ..served.provider(Wire::OpenAi) };
    let gateway = gateway(vec![scripted("dead", DEAD), unpriced, scripted("well", WELL)]);
    let ask = async |has_cost_limit| {
        let context = CallContext { has_cost_limit, ..CallContext::default() };
        gateway.ask(&request_of("hello"), &context, std::future::pending()).await.unwrap().cost.provider
    };
    assert_eq!((ask(true).await, ask(false).await), ("well".to_owned(), "unpriced".to_owned()));
    assert_eq!(gateway.check_price("model-of-dead"), Ok(()), "a script is free");
    served.stop().await;
}

/// The second answer would be whole, but only the first attempt is reserved.
#[tokio::test(start_paused = true)]
async fn under_a_budget_no_attempt_follows_one_that_was_charged() {
    let _time = VirtualTime::start();
    let cut = "rules: [{times: 1, reply: {text: abcdefghijkl, cut_after_chars: 8}}, {reply: {text: whole}}]";
    let gateway = gateway(vec![scripted("one", cut), scripted("two", WELL)]);
    let context = CallContext { has_budget: true, ..CallContext::default() };
    let ask = async || gateway.ask(&request_of("hello"), &context, std::future::pending()).await;
    let error = ask().await.expect_err("a further attempt is not reserved");
    let waits = matches!(
        error.failure,
        Failure::RateLimited {
            kind: ErrorKind::StreamInterrupted,
            origin: RateLimitOrigin::Provider,
            retry_after: None,
            ..
        }
    );
    assert!(waits, "{error:?}");
    assert_eq!((error.cost.provider.as_str(), error.cost.usage.output_tokens), ("one", 2), "{:?}", error.cost);
    assert_eq!(ask().await.unwrap().completion.content, "whole", "the repetition is a separate call");
}

/// Attempts that cost nothing are repeated, and the next provider is asked.
#[tokio::test(start_paused = true)]
async fn under_a_budget_attempts_follow_those_that_were_not_charged() {
    let _time = VirtualTime::start();
    let flaky = "rules: [{times: 2, error: {status: 503}}, {reply: {text: third}}]";
    let context = CallContext { has_budget: true, ..CallContext::default() };
    for (first, expected) in [(flaky, "third"), (DEAD, "well")] {
        let gateway = gateway(vec![scripted("one", first), scripted("two", WELL)]);
        let answer = gateway.ask(&request_of("hello"), &context, std::future::pending()).await.unwrap();
        assert_eq!(answer.completion.content, expected);
    }
}
