//! With scripts in this process and paused time: waits, failover, breaker, the line of calls, prices.

use rstest::rstest;

use super::*;
use crate::llm::{Price, PriceOverride};

const DEAD: &str = "rules: [{error: {status: 503, message: nobody here}}]";
const WELL: &str = "rules: [{reply: {text: 'well', usage: {input_tokens: 1000, output_tokens: 100}}}]";

fn gateway(providers: Vec<ProviderSettings>) -> Gateway {
    Gateway::new(GatewaySettings::new(providers)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn it_waits_between_tries_and_gives_up_after_three() {
    let gateway = gateway(vec![scripted("one", DEAD)]);
    let error = failed(&gateway, "hello").await;
    assert_eq!(error.failure.kind(), ErrorKind::Server);
    assert!(error.spent.duration >= Duration::from_millis(1_500), "{:?}", error.spent.duration);
    assert!(error.spent.duration <= Duration::from_secs(4), "{:?}", error.spent.duration);
}

#[rstest]
#[case(3, 3, "well")]
#[case(9, 0, "the next")]
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_told_is_kept_if_it_is_short(#[case] told: u64, #[case] waited: u64, #[case] text: &str) {
    let flaky = format!(
        "rules: [{{times: 1, error: {{status: 503, retry_after_seconds: {told}}}}}, {{reply: {{text: well}}}}]"
    );
    let next = scripted("two", "rules: [{reply: {text: the next}}]");
    let gateway = gateway(vec![scripted("one", &flaky), next]);
    let answer = ask(&gateway, "hello").await.unwrap();
    assert_eq!(answer.completion.content, text);
    assert_eq!(answer.spent.duration.as_secs(), waited);
}

#[tokio::test(start_paused = true)]
async fn failover_in_order_with_each_its_own_model() {
    let limited = scripted("limited", "rules: [{rate_limit: {retry_after_seconds: 60}}]");
    let gateway = gateway(vec![limited, scripted("dead", DEAD), scripted("well", WELL)]);
    let context = CallContext { model: Some("wanted"), ..CallContext::default() };
    let answer = gateway.ask(&said("hello"), &context, std::future::pending()).await.unwrap();
    assert_eq!((answer.spent.provider.as_str(), answer.spent.model.as_str()), ("well", "model-of-well"));
}

#[tokio::test(start_paused = true)]
async fn the_model_of_the_job_is_the_one_asked() {
    let gateway = gateway(vec![scripted("one", WELL)]);
    let context = CallContext { model: Some("wanted"), ..CallContext::default() };
    assert_eq!(gateway.ask(&said("hello"), &context, std::future::pending()).await.unwrap().spent.model, "wanted");
    assert_eq!(gateway.default_model(), "model-of-one");
}

#[tokio::test(start_paused = true)]
async fn when_all_fail_a_wait_that_helps_is_what_the_caller_hears() {
    let limited = scripted("limited", "rules: [{rate_limit: {retry_after_seconds: 60}}]");
    let gateway = gateway(vec![scripted("dead", DEAD), limited]);
    let error = failed(&gateway, "hello").await;
    assert!(
        matches!(error.failure, Failure::RateLimited { retry_after: Some(wait), .. } if wait.as_secs() == 60),
        "{error}"
    );
    assert_eq!(error.spent.provider, "limited");
}

#[rstest]
#[case(400, ErrorKind::BadRequest)]
#[case(401, ErrorKind::Auth)]
#[case(403, ErrorKind::Auth)]
#[case(404, ErrorKind::NotFound)]
#[tokio::test(start_paused = true)]
async fn what_somebody_must_mend_fails_at_once(#[case] status: u16, #[case] kind: ErrorKind) {
    let refusing = scripted("one", &format!("rules: [{{error: {{status: {status}, message: no}}}}]"));
    let gateway = gateway(vec![refusing, scripted("well", WELL)]);
    let error = failed(&gateway, "hello").await;
    assert_eq!((error.failure.kind(), error.spent.duration), (kind, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn the_breaker_opens_refuses_at_once_and_closes_again() {
    let gateway = gateway(vec![scripted(
        "one",
        "rules: [{times: 5, error: {status: 500, message: oh no}}, {reply: {text: well}}]",
    )]);
    assert_eq!(failed(&gateway, "hello").await.failure.kind(), ErrorKind::Server);
    assert_eq!(gateway.health()[0].breaker, BreakerState::Closed);
    // The fifth failure in a row opens it, in the middle of this call's tries.
    assert_eq!(failed(&gateway, "hello").await.failure.kind(), ErrorKind::CircuitOpen);
    assert_eq!(gateway.health()[0].breaker, BreakerState::Open);

    let refused = failed(&gateway, "hello").await;
    assert_eq!((refused.failure.kind(), refused.spent.duration), (ErrorKind::CircuitOpen, Duration::ZERO));

    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(gateway.health()[0].breaker, BreakerState::HalfOpen);
    for _ in 0..2 {
        assert_eq!(ask(&gateway, "hello").await.unwrap().completion.content, "well");
    }
    assert_eq!(gateway.health()[0].breaker, BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn with_its_breaker_open_the_first_is_passed_over() {
    let gateway = gateway(vec![scripted("dead", DEAD), scripted("well", WELL)]);
    for _ in 0..2 {
        ask(&gateway, "hello").await.unwrap();
    }
    let answer = ask(&gateway, "hello").await.unwrap();
    assert_eq!((answer.spent.provider.as_str(), answer.spent.duration), ("well", Duration::ZERO));
    let states: Vec<_> = gateway.health().into_iter().map(|health| (health.name, health.breaker)).collect();
    assert_eq!(states, [("dead".to_owned(), BreakerState::Open), ("well".to_owned(), BreakerState::Closed)]);
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_is_given_up_is_not_lost() {
    let gateway = gateway(vec![scripted(
        "one",
        "rules: [{times: 5, error: {status: 500}}, {when: {last_message: never}, hang: true}, {reply: {text: well}}]",
    )]);
    failed(&gateway, "hello").await;
    failed(&gateway, "hello").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    for _ in 0..3 {
        let given_up = tokio::time::timeout(Duration::from_secs(1), ask(&gateway, "never")).await;
        assert!(given_up.is_err(), "it hangs");
    }
    assert_eq!(ask(&gateway, "hello").await.unwrap().completion.content, "well");
}

#[tokio::test(start_paused = true)]
async fn silence_and_length_have_an_end() {
    let yaml = "rules: [{when: {last_message: never}, hang: true}, {when: {last_message: late}, reply: {text: a, \
                delay_ms: 121000}}, {reply: {text: 'one two three four', chunk_chars: 1, chunk_ms: 100000}}]";
    let provider = || scripted("one", yaml);
    for content in ["never", "late", "endless"] {
        let error = failed(&gateway(vec![provider()]), content).await;
        assert_eq!(error.failure.kind(), ErrorKind::Timeout, "{content}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_wait_in_line_for_a_slot() {
    let slow = ProviderSettings {
        max_concurrent_calls: 1,
        timeout: Duration::from_secs(5),
        ..scripted("one", "rules: [{reply: {text: well, delay_ms: 4000}}]")
    };
    let gateway = gateway(vec![slow]);
    let (first, second, third) = tokio::join!(ask(&gateway, "1"), ask(&gateway, "2"), ask(&gateway, "3"));
    assert_eq!(first.unwrap().spent.duration.as_secs(), 4);
    assert_eq!(second.unwrap().spent.duration.as_secs(), 8);
    assert_eq!(third.expect_err("the line was too long").failure.kind(), ErrorKind::Busy);
}

#[tokio::test(start_paused = true)]
async fn what_is_used_has_its_price() {
    let price = Price { input: 1_000_000, output: 2_000_000, cache_read: 0, cache_write: 0 };
    let mut settings = GatewaySettings::new(vec![scripted("one", WELL)]);
    settings.prices.push(PriceOverride { model_prefix: "model-of-o".to_owned(), price });
    let priced = Gateway::new(settings).unwrap();
    assert_eq!(ask(&priced, "hello").await.unwrap().spent.cost_micro_usd, Some(1_200));

    let free = gateway(vec![scripted("one", WELL)]);
    assert_eq!(ask(&free, "hello").await.unwrap().spent.cost_micro_usd, Some(0));
}

#[tokio::test(start_paused = true)]
async fn a_cut_answer_is_paid_for_in_process_too() {
    let cut = "rules: [{times: 1, reply: {text: abcdefghijkl, cut_after_chars: 8, usage: {input_tokens: 50, \
               output_tokens: 90}}}, {reply: {text: whole, usage: {input_tokens: 50, output_tokens: 1}}}]";
    let answer = ask(&gateway(vec![scripted("one", cut)]), "hello").await.unwrap();
    assert_eq!((answer.spent.usage.input_tokens, answer.spent.usage.output_tokens), (100, 3));
}

#[tokio::test(start_paused = true)]
async fn the_title_of_the_job_reaches_the_script() {
    let gateway = gateway(vec![scripted("one", "rules: [{when: {job_title: nightly}, reply: {text: 'good night'}}]")]);
    let context = CallContext { job_title: Some("nightly report"), ..CallContext::default() };
    assert_eq!(
        gateway.ask(&said("hello"), &context, std::future::pending()).await.unwrap().completion.content,
        "good night"
    );
}

#[test]
fn what_cannot_be_is_refused_when_it_is_built() {
    let openai = || ProviderSettings::new("p", ProviderKind::OpenAi, "m");
    let error = |providers| Gateway::new(GatewaySettings::new(providers)).err().map(|error| error.to_string());
    assert_eq!(error(vec![]).as_deref(), Some("no model provider is configured: set one"));
    let nameless = ProviderSettings { model: String::new(), ..openai() };
    assert_eq!(error(vec![nameless]).as_deref(), Some("model provider p: model: name the model to ask"));
    let nowhere = ProviderSettings { base_url: Some("nowhere".to_owned()), ..openai() };
    assert!(error(vec![openai(), nowhere]).is_some_and(|error| error.contains("base_url")));
    let nobody = ProviderSettings { max_concurrent_calls: 0, ..openai() };
    assert!(error(vec![nobody]).is_some_and(|error| error.contains("max_concurrent_calls")));
}
