//! In virtual time: waits, failover, circuit breaker, turns at the slots.

use rstest::rstest;

use super::*;

pub(super) const DEAD: &str = "rules: [{error: {status: 503, message: unavailable}}]";
pub(super) const WELL: &str = "rules: [{reply: {text: 'well', usage: {input_tokens: 1000, output_tokens: 100}}}]";

pub(super) fn gateway(providers: Vec<ProviderSettings>) -> Gateway {
    build(providers, &[], RetrySettings::default()).unwrap()
}

fn job_of(user: &str) -> CallOwner<'_> {
    CallOwner { work: protocol::JobId::generate().into(), user }
}

async fn ask_as(gateway: &Gateway, caller: CallOwner<'_>, text: &str) -> Result<Answer, AskError> {
    let context = CallContext { caller, ..CallContext::default() };
    gateway.ask(&request_of(text), &context, std::future::pending()).await
}

/// What an answer says of it is only what differs from the first provider.
#[rstest]
#[case::both_off(false, false, None)]
#[case::only_the_failover(false, true, Some(true))]
#[case::only_the_first(true, false, Some(false))]
#[tokio::test(start_paused = true)]
async fn an_answer_of_a_failover_has_its_setting_for_calls_as_text(
    #[case] first: bool,
    #[case] failover: bool,
    #[case] said: Option<bool>,
) {
    let _time = VirtualTime::start();
    let provider = |name, yaml, text_tool_calls| ProviderSettings { text_tool_calls, ..scripted(name, yaml) };
    let gateway = gateway(vec![provider("one", DEAD, first), provider("two", WELL, failover)]);
    assert_eq!(ask(&gateway, "hello").await.unwrap().completion.text_tool_calls, said);
}

/// Who refused and how long to wait.
fn wait_of(error: &AskError) -> (RateLimitOrigin, Option<u64>) {
    match &error.failure {
        Failure::RateLimited { origin, retry_after, .. } => (*origin, retry_after.map(|wait| wait.as_secs())),
        failed @ Failure::Failed { .. } => panic!("it does not say to wait: {failed}"),
    }
}

#[tokio::test(start_paused = true)]
async fn it_waits_between_tries_and_gives_up_after_three() {
    let _time = VirtualTime::start();
    let gateway = gateway(vec![scripted("one", DEAD)]);
    let error = failed(&gateway, "hello").await;
    assert_eq!(error.failure.kind(), ErrorKind::Server);
    assert_eq!(wait_of(&error), (RateLimitOrigin::Provider, None), "the caller asks again later");
    assert!(error.cost.duration >= Duration::from_millis(1_500), "{:?}", error.cost.duration);
    assert!(error.cost.duration <= Duration::from_secs(6), "{:?}", error.cost.duration);
}

#[rstest]
#[case(3, 3, "well")]
#[case(9, 0, "the next")]
#[tokio::test(start_paused = true)]
async fn a_short_retry_after_is_honoured(#[case] retry_after: u64, #[case] waited: u64, #[case] text: &str) {
    let _time = VirtualTime::start();
    let flaky = format!(
        "rules: [{{times: 1, error: {{status: 503, retry_after_seconds: {retry_after}}}}}, {{reply: {{text: well}}}}]"
    );
    let next = scripted("two", "rules: [{reply: {text: the next}}]");
    let gateway = gateway(vec![scripted("one", &flaky), next]);
    let answer = ask(&gateway, "hello").await.unwrap();
    assert_eq!(answer.completion.content, text);
    assert_eq!(answer.cost.duration.as_secs(), waited);
}

#[tokio::test(start_paused = true)]
async fn a_long_retry_after_of_an_outage_is_returned_to_the_caller() {
    let _time = VirtualTime::start();
    for (status, retry_after) in [(503, 30), (529, 600)] {
        let polite = format!("rules: [{{error: {{status: {status}, retry_after_seconds: {retry_after}}}}}]");
        let error = failed(&gateway(vec![scripted("one", &polite)]), "hello").await;
        assert_eq!(wait_of(&error), (RateLimitOrigin::Provider, Some(retry_after)));
        assert!(error.reached_provider);
    }
}

#[tokio::test(start_paused = true)]
async fn failover_is_in_order_each_with_its_own_model() {
    let _time = VirtualTime::start();
    let limited = scripted("limited", "rules: [{rate_limit: {retry_after_seconds: 60}}]");
    let gateway = gateway(vec![limited, scripted("dead", DEAD), scripted("well", WELL)]);
    let context = CallContext { model: Some("wanted"), ..CallContext::default() };
    let answer = gateway.ask(&request_of("hello"), &context, std::future::pending()).await.unwrap();
    assert_eq!((answer.cost.provider.as_str(), answer.cost.model.as_str()), ("well", "model-of-well"));
}

/// A provider that accepts a request and stays silent.
async fn silent() -> (ProviderSettings, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut open = Vec::new();
        while let Ok((connection, _)) = listener.accept().await {
            open.push(connection);
        }
    });
    (
        ProviderSettings {
            base_url,
            timeout_seconds: 300,
            ..ProviderSettings::new("silent", ProviderKind::OpenAi, "m")
        },
        tasks,
    )
}

#[tokio::test(start_paused = true)]
async fn a_silent_provider_is_waited_for_once_if_there_is_another() {
    let _time = VirtualTime::start();
    let (provider, _tasks) = silent().await;
    let answer = ask(&gateway(vec![provider.clone(), scripted("well", WELL)]), "hello").await.unwrap();
    assert_eq!((answer.cost.provider.as_str(), answer.cost.duration.as_secs()), ("well", 300));
    let alone = failed(&gateway(vec![provider.clone()]), "hello").await;
    assert!(alone.cost.duration.as_secs() >= 900, "{:?}", alone.cost.duration);
    // The next one is left alone, as the first request showed.
    let refusing = scripted("refusing", "rules: [{rate_limit: {retry_after_seconds: 3600}}]");
    let gateway = gateway(vec![provider, refusing]);
    assert_eq!(failed(&gateway, "hello").await.cost.duration.as_secs(), 300);
    let second = failed(&gateway, "hello").await;
    assert!(second.cost.duration.as_secs() >= 900, "{:?}", second.cost.duration);
}

/// The first answers its first request with an error, and any later one well.
#[rstest]
#[case("error: {status: 429, retry_after_seconds: 120}", 120)]
#[case("error: {status: 429, retry_after_seconds: 7200}", 600)]
#[case("error: {status: 401, message: 'invalid key'}", 60)]
#[case("error: {status: 429}", 0)]
#[case("error: {status: 400, message: 'no'}", 0)]
#[tokio::test(start_paused = true)]
async fn a_provider_that_would_refuse_again_is_left_alone_while_another_answers(
    #[case] refusal: &str,
    #[case] seconds: u64,
) {
    let _time = VirtualTime::start();
    let first = scripted("first", &format!("rules: [{{times: 1, {refusal}}}, {{reply: {{text: back}}}}]"));
    let gateway = gateway(vec![first, scripted("well", WELL)]);
    assert_eq!(ask(&gateway, "hello").await.unwrap().cost.provider, "well");
    if seconds > 0 {
        tokio::time::sleep(Duration::from_secs(seconds - 2)).await;
        assert_eq!(ask(&gateway, "hello").await.unwrap().cost.provider, "well");
        let context = CallContext { model: Some("another"), ..CallContext::default() };
        let answer = gateway.ask(&request_of("hello"), &context, std::future::pending()).await.unwrap();
        assert_eq!(answer.cost.provider, "first", "it may take another model");
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
    assert_eq!(ask(&gateway, "hello").await.unwrap().cost.provider, "first");
}

#[tokio::test(start_paused = true)]
async fn providers_that_all_refuse_are_all_asked() {
    let _time = VirtualTime::start();
    let refused = |name| scripted(name, "rules: [{times: 1, error: {status: 401}}, {reply: {text: back}}]");
    let gateway = gateway(vec![refused("one"), refused("two")]);
    assert_eq!(failed(&gateway, "hello").await.failure.kind(), ErrorKind::Auth);
    assert_eq!(ask(&gateway, "hello").await.unwrap().cost.provider, "one");
}

#[tokio::test(start_paused = true)]
async fn the_model_of_the_job_is_the_one_asked() {
    let _time = VirtualTime::start();
    let gateway = gateway(vec![scripted("one", WELL)]);
    let context = CallContext { model: Some("wanted"), ..CallContext::default() };
    assert_eq!(gateway.ask(&request_of("hello"), &context, std::future::pending()).await.unwrap().cost.model, "wanted");
    assert_eq!(gateway.primary.model, "model-of-one");
}

#[tokio::test(start_paused = true)]
async fn when_all_fail_the_shortest_useful_wait_is_returned() {
    let _time = VirtualTime::start();
    let limited = scripted("limited", "rules: [{rate_limit: {retry_after_seconds: 60}}]");
    let gateway = gateway(vec![scripted("dead", DEAD), limited]);
    let error = failed(&gateway, "hello").await;
    assert!(
        matches!(error.failure, Failure::RateLimited { retry_after: Some(wait), .. } if wait.as_secs() == 60),
        "{error}"
    );
    assert_eq!(error.cost.provider, "limited");
}

fn refusing(name: &str, status: u16, message: &str) -> ProviderSettings {
    scripted(name, &format!("rules: [{{error: {{status: {status}, message: '{message}'}}}}]"))
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_is_too_long_for_the_first_provider_fails_at_once() {
    let _time = VirtualTime::start();
    let gateway = gateway(vec![refusing("one", 413, "no"), scripted("well", WELL)]);
    let error = failed(&gateway, "hello").await;
    assert!(matches!(error.failure, Failure::Failed { kind: ErrorKind::ContextLength, .. }), "{error}");
    assert_eq!(error.cost.duration.as_secs(), 0);
}

/// Some servers report no error: the answer ends at its limit before its first word.
#[rstest]
#[case(120_000, true)]
#[case(1_000, false)]
#[tokio::test(start_paused = true)]
async fn an_answer_for_which_there_is_no_room_means_a_conversation_that_is_too_long(
    #[case] prompt_tokens: u64,
    #[case] is_too_long: bool,
) {
    let _time = VirtualTime::start();
    let usage = format!("usage: {{input_tokens: {prompt_tokens}, output_tokens: 0}}");
    let cut = format!("rules: [{{reply: {{text: '', finish_reason: length, {usage}}}}}]");
    let answer = ask(&gateway(vec![scripted("one", &cut)]), "hello").await;
    let failure = answer.err().map(|error| error.failure);
    let found = matches!(failure, Some(Failure::Failed { kind: ErrorKind::ContextLength, .. }));
    assert_eq!(found, is_too_long, "{failure:?}");
}

#[rstest]
#[case(400)]
#[case(422)]
#[tokio::test(start_paused = true)]
async fn a_request_that_one_provider_refuses_is_put_to_the_next(#[case] status: u16) {
    let _time = VirtualTime::start();
    let gateway = gateway(vec![refusing("one", status, "no"), scripted("well", WELL)]);
    assert_eq!(ask(&gateway, "hello").await.unwrap().cost.provider, "well");
}

/// Without the second provider the caller would wait.
#[rstest]
#[case(400, "Tool call id was call_abc")]
#[case(413, "too long for this one")]
#[tokio::test(start_paused = true)]
async fn a_failover_that_refuses_does_not_hide_that_the_first_provider_may_answer_later(
    #[case] status: u16,
    #[case] message: &str,
) {
    let _time = VirtualTime::start();
    let limited = scripted("limited", "rules: [{rate_limit: {retry_after_seconds: 60}}]");
    let gateway = gateway(vec![limited, refusing("two", status, message)]);
    let error = failed(&gateway, "hello").await;
    let Failure::RateLimited { retry_after: Some(wait), message, .. } = &error.failure else { panic!("{error}") };
    assert_eq!(wait.as_secs(), 60);
    assert!(message.contains("limited: ") && message.contains("two: "), "{message}");
}

/// Asking it once more would be paid for and refused.
#[tokio::test(start_paused = true)]
async fn a_refusal_to_answer_stays_one_while_the_failover_is_down() {
    let _time = VirtualTime::start();
    let refusing = refusing("one", 400, "This request violates our usage policies");
    let gateway = gateway(vec![refusing, scripted("two", DEAD)]);
    for is_down in [false, false, true] {
        let error = failed(&gateway, "hello").await;
        assert!(matches!(error.failure, Failure::Failed { kind: ErrorKind::Refused, .. }), "{error}");
        assert!(error.to_string().contains("one: the provider refused to answer: "), "{error}");
        assert_eq!(error.to_string().contains("is not asked for a while"), is_down, "{error}");
    }
}

#[rstest]
#[case(401)]
#[case(402)]
#[case(403)]
#[case(404)]
#[tokio::test(start_paused = true)]
async fn a_refusal_by_one_provider_only_is_answered_by_the_next(#[case] status: u16) {
    let _time = VirtualTime::start();
    let gateway = gateway(vec![refusing("one", status, "no"), scripted("well", WELL)]);
    let answer = ask(&gateway, "hello").await.unwrap();
    assert_eq!((answer.cost.provider.as_str(), answer.cost.duration.as_secs()), ("well", 0));
}

#[tokio::test(start_paused = true)]
async fn only_when_all_refuse_it_fails_with_each_ones_cause() {
    let _time = VirtualTime::start();
    let none = gateway(vec![refusing("one", 401, "bad key"), refusing("two", 402, "no money")]);
    let error = failed(&none, "hello").await;
    assert!(matches!(error.failure, Failure::Failed { kind: ErrorKind::Auth, .. }), "{error}");
    assert_eq!(error.to_string(), "auth: one: status 401: bad key; two: status 402: no money");

    // One that may come back is worth a wait.
    let some = gateway(vec![refusing("one", 401, "bad key"), scripted("two", DEAD)]);
    let error = failed(&some, "hello").await;
    assert_eq!(wait_of(&error), (RateLimitOrigin::Provider, None));
    assert!(error.to_string().contains("bad key"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_breaker_opens_refuses_and_closes_again() {
    let _time = VirtualTime::start();
    let gateway = gateway(vec![scripted(
        "one",
        "rules: [{times: 5, error: {status: 500, message: oh no}}, {reply: {text: well}}]",
    )]);
    assert_eq!(failed(&gateway, "hello").await.failure.kind(), ErrorKind::Server);
    assert_eq!(gateway.health()[0].breaker, BreakerState::Closed);
    // The fifth failure in a row opens it, in the middle of this call's tries; what the provider said is the cause.
    let opening = failed(&gateway, "hello").await;
    assert_eq!((opening.failure.kind(), wait_of(&opening).0), (ErrorKind::Server, RateLimitOrigin::Provider));

    tokio::time::sleep(Duration::from_secs(9)).await;
    let refused = failed(&gateway, "hello").await;
    assert_eq!((refused.failure.kind(), refused.cost.duration), (ErrorKind::CircuitOpen, Duration::ZERO));
    assert!(!refused.reached_provider);
    let (origin, wait) = wait_of(&refused);
    assert!(origin == RateLimitOrigin::Circuit && wait.is_some_and(|wait| (18..=20).contains(&wait)), "{wait:?}");
    // It is this job's circuit: another one's calls go through.
    assert_eq!(gateway.health()[0].breaker, BreakerState::Closed);
    assert_eq!(ask_as(&gateway, job_of("bob"), "hello").await.unwrap().completion.content, "well");

    tokio::time::sleep(Duration::from_secs(21)).await;
    for _ in 0..2 {
        assert_eq!(ask(&gateway, "hello").await.unwrap().completion.content, "well");
    }
}

#[tokio::test(start_paused = true)]
async fn badly_written_calls_open_no_breaker() {
    let _time = VirtualTime::start();
    let yaml = "rules: [{when: {last_message: bad}, error: {status: 400, message: 'error parsing tool call'}}, {reply: {text: well}}]";
    let gateway = gateway(vec![scripted("one", yaml)]);
    for caller in [job_of("ada"), job_of("bob")] {
        for _ in 0..3 {
            let error = ask_as(&gateway, caller, "bad").await.expect_err("no try brings another call");
            assert_eq!(
                (error.failure.kind(), wait_of(&error).0),
                (ErrorKind::InvalidResponse, RateLimitOrigin::Provider)
            );
        }
        assert_eq!(ask_as(&gateway, caller, "good").await.unwrap().completion.content, "well");
    }
    assert_eq!(gateway.health()[0].breaker, BreakerState::Closed);
}

#[tokio::test(start_paused = true)]
async fn one_users_failing_calls_neither_fail_nor_delay_anothers() {
    let _time = VirtualTime::start();
    let yaml = "rules: [{when: {last_message: bad}, error: {status: 500, message: oh no}}, {reply: {text: well}}]";
    let gateway = gateway(vec![scripted("one", yaml)]);
    let (mine, theirs) = (job_of("ada"), job_of("bob"));
    for _ in 0..20 {
        for _ in 0..3 {
            ask_as(&gateway, mine, "bad").await.expect_err("it fails");
        }
        let answer = ask_as(&gateway, theirs, "good").await.expect("another user's call is answered");
        assert_eq!(answer.cost.duration.as_secs(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn it_opens_for_all_when_the_calls_of_two_users_fail() {
    let _time = VirtualTime::start();
    let gateway = gateway(vec![scripted("one", DEAD)]);
    let (ada, bob, cleo) = (job_of("ada"), job_of("bob"), job_of("cleo"));
    for caller in [ada, bob] {
        assert!(ask_as(&gateway, caller, "hello").await.expect_err("it is dead").reached_provider);
    }
    assert_eq!(gateway.health()[0].breaker, BreakerState::Open);
    let context = CallContext { caller: cleo, ..CallContext::default() };
    assert!(gateway.refusal(&context).is_some_and(|failure| failure.kind() == ErrorKind::CircuitOpen));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!((gateway.health()[0].breaker, gateway.refusal(&context)), (BreakerState::HalfOpen, None));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_while_others_try_waits_one_to_five_seconds() {
    let _time = VirtualTime::start();
    let yaml = "rules: [{times: 6, error: {status: 500}}, {hang: true}]";
    let gateway = gateway(vec![scripted("one", yaml)]);
    for user in ["ada", "bob"] {
        ask_as(&gateway, job_of(user), "hello").await.expect_err("it is dead");
    }
    tokio::time::sleep(Duration::from_secs(30)).await;
    let trials = (ask_as(&gateway, job_of("ada"), "hello"), ask_as(&gateway, job_of("bob"), "hello"));
    let trials = futures_util::future::join(trials.0, trials.1);
    tokio::pin!(trials);
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut trials).await.is_err());
    let waits: Vec<_> = (0..20).map(|_| gateway.refusal(&CallContext::default())).collect();
    let seconds = waits.iter().map(|refused| match refused {
        Some(Failure::RateLimited { retry_after: Some(wait), .. }) => wait.as_secs_f64(),
        other => panic!("{other:?}"),
    });
    let seconds: Vec<f64> = seconds.collect();
    assert!(seconds.iter().all(|wait| (1.0..=5.0).contains(wait)), "{seconds:?}");
    assert!(seconds.iter().any(|wait| (wait - seconds[0]).abs() > 0.01), "they do not come back together: {seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn a_provider_with_an_open_breaker_is_skipped() {
    let _time = VirtualTime::start();
    let gateway = gateway(vec![scripted("dead", DEAD), scripted("well", WELL)]);
    for user in ["ada", "bob"] {
        ask_as(&gateway, job_of(user), "hello").await.unwrap();
    }
    let answer = ask(&gateway, "hello").await.unwrap();
    assert_eq!((answer.cost.provider.as_str(), answer.cost.duration.as_secs()), ("well", 0));
    let states: Vec<_> = gateway.health().into_iter().map(|health| (health.name, health.breaker)).collect();
    assert_eq!(states, [("dead".to_owned(), BreakerState::Open), ("well".to_owned(), BreakerState::Closed)]);
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_is_given_up_is_not_lost() {
    let _time = VirtualTime::start();
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
    let _time = VirtualTime::start();
    let yaml = "rules: [{when: {last_message: never}, hang: true}, {when: {last_message: late}, reply: {text: a, \
                delay_ms: 5100}}, {reply: {text: 'one two three four', chunk_chars: 1, chunk_ms: 4000}}]";
    let provider = || ProviderSettings { timeout_seconds: 5, ..scripted("one", yaml) };
    for content in ["never", "late", "endless"] {
        let error = failed(&gateway(vec![provider()]), content).await;
        assert_eq!(error.failure.kind(), ErrorKind::Timeout, "{content}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_a_slot_and_a_full_queue_is_a_wait_of_the_callers() {
    let _time = VirtualTime::start();
    let slow = ProviderSettings {
        max_concurrent: 1,
        timeout_seconds: 5,
        ..scripted("one", "rules: [{reply: {text: well, delay_ms: 4000}}]")
    };
    let gateway = gateway(vec![slow]);
    let (first, second, third) = tokio::join!(ask(&gateway, "1"), ask(&gateway, "2"), ask(&gateway, "3"));
    assert_eq!(first.unwrap().cost.duration.as_secs(), 4);
    assert_eq!(second.unwrap().cost.duration.as_secs(), 8);
    let full = third.expect_err("the queue was too long");
    assert_eq!((full.failure.kind(), full.reached_provider), (ErrorKind::QueueTimeout, false));
    let (origin, wait) = wait_of(&full);
    assert!(origin == RateLimitOrigin::Local && wait.is_some_and(|wait| (1..=5).contains(&wait)), "{wait:?}");
}

#[tokio::test(start_paused = true)]
async fn one_users_slow_calls_delay_another_by_one_turn() {
    let _time = VirtualTime::start();
    let slow = ProviderSettings {
        max_concurrent: 2,
        timeout_seconds: 600,
        ..scripted("one", "rules: [{reply: {text: well, delay_ms: 4000}}]")
    };
    let gateway = gateway(vec![slow]);
    let many = futures_util::future::join_all((0..40).map(|_| ask_as(&gateway, job_of("ada"), "slow")));
    let (many, one) = tokio::join!(many, async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        ask_as(&gateway, job_of("bob"), "mine").await.unwrap().cost.duration
    });
    assert!(one <= Duration::from_secs(3 + 4 + 2), "waited for one turn, then answered: {one:?}");
    assert!(many.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn the_title_of_the_job_reaches_the_script() {
    let _time = VirtualTime::start();
    let gateway = gateway(vec![scripted("one", "rules: [{when: {job_title: nightly}, reply: {text: 'good night'}}]")]);
    let context = CallContext { job_title: Some("nightly report"), ..CallContext::default() };
    assert_eq!(
        gateway.ask(&request_of("hello"), &context, std::future::pending()).await.unwrap().completion.content,
        "good night"
    );
}

#[test]
fn invalid_settings_are_refused_at_construction() {
    let openai = || ProviderSettings::new("p", ProviderKind::OpenAi, "m");
    let error = |providers| build(providers, &[], RetrySettings::default()).err().map(|error| error.to_string());
    let nameless = ProviderSettings { model: String::new(), ..openai() };
    assert_eq!(error(vec![nameless]).as_deref(), Some("model provider p: model: must name the model to ask"));
    let nowhere = ProviderSettings { base_url: "nowhere".to_owned(), ..openai() };
    assert!(error(vec![openai(), nowhere]).is_some_and(|error| error.contains("base_url")));
    let without_slots = ProviderSettings { max_concurrent: 0, ..openai() };
    assert!(error(vec![without_slots]).is_some_and(|error| error.contains("max_concurrent")));
}
