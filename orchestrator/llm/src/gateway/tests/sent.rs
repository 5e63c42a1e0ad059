//! What the gateway sends, and what it makes of servers that misbehave: against servers that keep what they were asked.

use axum::http::StatusCode;
use config::{Dialect, Field};
use protocol::{Effort, ToolCall};
use rstest::rstest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// A base URL's query stays at the end of the address, and its user part becomes the header that it stands for.
#[rstest]
#[tokio::test]
async fn the_user_and_query_of_a_base_url_are_used_and_never_shown(
    #[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire,
    #[values(None, Some("sk-test"))] key: Option<&str>,
) {
    use axum::http::{HeaderMap, Uri};
    let (keep, mut seen) = tokio::sync::mpsc::channel::<(Uri, HeaderMap)>(8);
    let handle = move |uri: Uri, headers: HeaderMap| async move {
        keep.send((uri.clone(), headers)).await.unwrap();
        // As a proxy does that quotes what it was asked.
        (StatusCode::BAD_REQUEST, format!("no {uri} for bob:hunter2 with Ym9iOmh1bnRlcjI="))
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, axum::Router::new().fallback(handle)).await });
    let (kind, path, call) = match wire {
        Wire::OpenAi => (ProviderKind::OpenAi, "/base/v1", "/base/v1/chat/completions"),
        Wire::Anthropic => (ProviderKind::Anthropic, "/base/v1", "/base/v1/messages"),
        Wire::Ollama => (ProviderKind::Ollama, "/base", "/base/api/chat"),
    };
    let provider = ProviderSettings {
        base_url: format!("http://bob:hunter2@{address}{path}?api-key=abcdef&v=1"),
        api_key: key.map(Into::into),
        ..ProviderSettings::new("served", kind, "m")
    };
    let error_text = format!("{:?}", failed(&impatient(vec![provider]), "hello").await);
    let (uri, headers) = seen.recv().await.unwrap();
    assert_eq!((uri.path(), uri.query()), (call, Some("api-key=abcdef&v=1")));
    let sent: Vec<_> = headers.get_all("authorization").iter().map(|value| value.to_str().unwrap()).collect();
    let basic = "Basic Ym9iOmh1bnRlcjI=";
    let expected = if key.is_some() && wire != Wire::Anthropic { "Bearer sk-test" } else { basic };
    assert_eq!(sent, [expected]);
    for secret in ["hunter2", "abcdef", "Ym9i"] {
        assert!(!error_text.contains(secret), "{error_text}");
    }
}

#[rstest]
#[case("house-high")]
#[case("house-none-low")]
#[case("a::b")]
#[tokio::test]
async fn a_model_is_asked_by_the_name_it_has(
    #[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire,
    #[case] model: &str,
) {
    let recorder = Recorder::start().await;
    let gateway = impatient(vec![recorder.provider(wire)]);
    let context = CallContext { model: Some(model), ..CallContext::default() };
    let request = CompletionRequest { max_tokens: Some(u64::MAX), temperature: Some(9.0), ..request_of("hello") };
    gateway.ask(&request, &context, std::future::pending()).await.expect_err("it answers nothing");

    let sent = recorder.stop().await;
    assert_eq!(sent["model"], model);
    for effort in ["reasoning_effort", "thinking", "think", "output_config"] {
        assert!(sent[effort].is_null(), "{effort} was asked for: {sent}");
    }
    let (limit, temperature) = match wire {
        Wire::OpenAi => (&sent["max_tokens"], 2.0),
        Wire::Anthropic => (&sent["max_tokens"], 1.0),
        Wire::Ollama => (&sent["options"]["num_predict"], 2.0),
    };
    // A quarter of its smaller context.
    let expected = if wire == Wire::Ollama { 8_192 } else { 16_384 };
    assert_eq!(limit, expected, "{sent}");
    let sent_temperature = if wire == Wire::Ollama { &sent["options"]["temperature"] } else { &sent["temperature"] };
    assert_eq!(sent_temperature, temperature);
}

#[rstest]
#[tokio::test]
async fn broken_arguments_go_back_as_an_object(#[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire) {
    let recorder = Recorder::start().await;
    let gateway = impatient(vec![recorder.provider(wire)]);
    let call = ToolCall { id: "call_a".to_owned(), name: "weather".to_owned(), arguments: json!("{\"city\": \"Os") };
    let assistant = Message::Assistant { content: "so".to_owned(), tool_calls: vec![call], native: None };
    let messages = vec![user("hello"), assistant, user("fix it")];
    gateway
        .ask(&conversation(messages), &CallContext::default(), std::future::pending())
        .await
        .expect_err("it answers nothing");

    let sent = recorder.stop().await;
    let arguments = match wire {
        Wire::OpenAi => {
            let text = sent["messages"][1]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
            serde_json::from_str(text).unwrap()
        }
        Wire::Anthropic => sent["messages"][1]["content"][1]["input"].clone(),
        Wire::Ollama => sent["messages"][1]["tool_calls"][0]["function"]["arguments"].clone(),
    };
    assert_eq!(arguments, json!({"invalid_arguments": "{\"city\": \"Os"}));
}

/// A proxy that loses its upstream ends the stream as if all were well.
#[rstest]
#[case(
    Wire::OpenAi,
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"half an ans\"}}]}\n\n",
    ErrorKind::StreamInterrupted,
    3
)]
#[case(
    Wire::Anthropic,
    "event: content_block_delta\ndata: {\"delta\":{\"type\":\"text_delta\",\"text\":\"half an ans\"}}\n\n",
    ErrorKind::StreamInterrupted,
    3
)]
#[case(Wire::Ollama, "{\"message\":{\"content\":\"half an ans\"},\"done\":false}\n", ErrorKind::StreamInterrupted, 3)]
#[case(Wire::OpenAi, "<html>welcome</html>", ErrorKind::InvalidResponse, 0)]
#[case(Wire::OpenAi, "data: [DONE]\n\n", ErrorKind::InvalidResponse, 0)]
#[case(
    Wire::OpenAi,
    "data: {\"error\":{\"message\":\"worn out\",\"type\":\"server_error\"}}\n\n",
    ErrorKind::Server,
    0
)]
#[case(
    Wire::OpenAi,
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"images\":[{\"type\":\"image_url\"}]}}]}\n\n",
    ErrorKind::InvalidResponse,
    0
)]
#[case(
    Wire::Anthropic,
    "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"later\"}}\n\n",
    ErrorKind::Server,
    0
)]
#[tokio::test]
async fn a_stream_that_ends_in_peace_without_an_answer(
    #[case] wire: Wire,
    #[case] body: &'static str,
    #[case] kind: ErrorKind,
    #[case] tokens: u64,
) {
    let recorder = Recorder::answering(StatusCode::OK, body).await;
    let retry = RetrySettings { tries: 1, ..RetrySettings::default() };
    let error = failed(&build(vec![recorder.provider(wire)], &[], retry).unwrap(), "hello").await;
    assert_eq!((error.failure.kind(), error.cost.usage.output_tokens), (kind, tokens), "{error}");
    recorder.stop().await;
}

const FINE: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"fine\"},\"finish_reason\":\"stop\"}]}\n\n";

/// As strict as four providers together, each of which refuses a request as a whole for one of its fields.
fn strict(body: &serde_json::Value) -> (StatusCode, &'static str) {
    let has_long_id = body["messages"].to_string().contains("call_abc");
    let refusal = match () {
        () if !body["max_tokens"].is_null() => {
            r#"{"error":{"message":"Unsupported parameter: use 'max_completion_tokens' instead of 'max_tokens'.","code":"unsupported_parameter"}}"#
        }
        () if !body["temperature"].is_null() => {
            r#"{"error":{"message":"`temperature` is deprecated for this model."}}"#
        }
        () if !body["stream_options"].is_null() => {
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"]}]}"#
        }
        () if has_long_id => {
            r#"{"message":"Tool call id was call_abc but must be a-z, A-Z, 0-9, with a length of 9.","code":"3280"}"#
        }
        () => return (StatusCode::OK, FINE),
    };
    (StatusCode::BAD_REQUEST, refusal)
}

fn with_a_call() -> CompletionRequest {
    let call = ToolCall { id: "call_abc".to_owned(), name: "weather".to_owned(), arguments: json!({}) };
    conversation(vec![
        user("hello"),
        Message::Assistant { content: String::new(), tool_calls: vec![call], native: None },
        Message::Tool { tool_call_id: "call_abc".to_owned(), name: "weather".to_owned(), content: "rain".to_owned() },
    ])
}

#[tokio::test]
async fn a_request_that_is_refused_for_what_it_has_is_sent_otherwise_and_that_is_remembered() {
    let mut recorder = Recorder::deciding(strict).await;
    let gateway = impatient(vec![recorder.provider(Wire::OpenAi)]);
    let mut asked = Vec::new();
    for _ in 0..2 {
        let answer = gateway.ask(&with_a_call(), &CallContext::default(), std::future::pending()).await.unwrap();
        assert_eq!(answer.completion.content, "fine");
        let mut requests = 0;
        while recorder.bodies.try_recv().is_ok() {
            requests += 1;
        }
        asked.push(requests);
    }
    assert_eq!(asked, [5, 1]);
    recorder.served.stop().await;
}

/// A server that does not close the connection after its answer, and one that closes it within the body.
#[rstest]
#[case::stays_open(true)]
#[case::breaks_off(false)]
#[tokio::test]
async fn an_answer_counts_when_its_end_has_come(#[case] stays_open: bool) {
    let body = format!("{FINE}data: [DONE]\n\n");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let (mut connection, _) = listener.accept().await?;
        let mut request = [0; 16 * 1024];
        let _ = connection.read(&mut request).await?;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000\r\n\r\n";
        connection.write_all(format!("{head}{body}").as_bytes()).await?;
        if stays_open {
            std::future::pending::<()>().await;
        }
        Ok::<_, std::io::Error>(())
    });
    let provider = ProviderSettings {
        base_url: format!("http://{address}/v1"),
        api_key: Some("sk-test".into()),
        timeout_seconds: 5,
        ..ProviderSettings::new("served", ProviderKind::OpenAi, "m")
    };
    let gateway = impatient(vec![provider]);
    let answer = gateway.ask(&request_of("hello"), &CallContext::default(), std::future::pending()).await.unwrap();
    assert_eq!(answer.completion.content, "fine");
}

/// A router that has begun its answer when the provider behind it refuses.
#[tokio::test]
async fn a_refusal_inside_an_answer_is_read_like_any_other() {
    let refusal = concat!(
        ": OPENROUTER PROCESSING\n\n",
        r#"data: {"error":{"code":400,"message":"Provider returned error","metadata":{"raw":"`temperature` is deprecated for this model."}},"choices":[{"delta":{},"finish_reason":"error"}]}"#,
        "\n\n"
    );
    let decide =
        move |body: &serde_json::Value| (StatusCode::OK, if body["temperature"].is_null() { FINE } else { refusal });
    let mut recorder = Recorder::deciding(decide).await;
    let gateway = impatient(vec![recorder.provider(Wire::OpenAi)]);
    let request = CompletionRequest { temperature: Some(0.3), ..request_of("hello") };
    let answer = gateway.ask(&request, &CallContext::default(), std::future::pending()).await.unwrap();
    assert_eq!(answer.completion.content, "fine");
    let mut temperatures = Vec::new();
    while let Ok(body) = recorder.bodies.try_recv() {
        temperatures.push(body["temperature"].as_f64());
    }
    assert_eq!(temperatures, [Some(0.3), None]);
    recorder.served.stop().await;
}

#[rstest]
#[case::not_asked(None, None, "gpt-oss-20b", None)]
#[case::of_the_call(None, Some(Effort::Low), "gpt-oss-20b", Some("low"))]
#[case::of_the_operator(Some(Effort::Medium), None, "gpt-oss-20b", Some("medium"))]
#[case::the_call_first(Some(Effort::Medium), Some(Effort::High), "gpt-oss-20b", Some("high"))]
#[case::fewer_words(None, Some(Effort::Medium), "glm-5.3", Some("high"))]
#[case::no_word(None, Some(Effort::High), "house", None)]
#[tokio::test]
async fn an_effort_is_sent_in_the_words_of_the_model(
    #[case] default: Option<Effort>,
    #[case] asked: Option<Effort>,
    #[case] model: &str,
    #[case] expected: Option<&str>,
) {
    let recorder = Recorder::answering(StatusCode::OK, FINE).await;
    let settings = LlmSettings { effort: default, ..LlmSettings::of_provider(recorder.provider(Wire::OpenAi)) };
    let gateway = Gateway::new(&settings).unwrap();
    let context = CallContext { model: Some(model), effort: asked, ..CallContext::default() };
    gateway.ask(&request_of("hello"), &context, std::future::pending()).await.unwrap();
    assert_eq!(recorder.stop().await["reasoning_effort"].as_str(), expected);
}

#[tokio::test]
async fn an_effort_that_is_refused_is_left_out_from_then_on() {
    let refusal =
        r#"{"error":{"message":"Unsupported parameter: 'reasoning_effort' is not supported with this model."}}"#;
    let decide = move |body: &serde_json::Value| {
        if body["reasoning_effort"].is_null() { (StatusCode::OK, FINE) } else { (StatusCode::BAD_REQUEST, refusal) }
    };
    let mut recorder = Recorder::deciding(decide).await;
    let gateway = impatient(vec![recorder.provider(Wire::OpenAi)]);
    let context = CallContext { model: Some("gpt-oss-20b"), effort: Some(Effort::Low), ..CallContext::default() };
    for requests in [2, 1] {
        gateway.ask(&request_of("hello"), &context, std::future::pending()).await.unwrap();
        let asked = std::iter::from_fn(|| recorder.bodies.try_recv().ok()).count();
        assert_eq!(asked, requests);
    }
    let learned = gateway.health()[0].learned["gpt-oss-20b"].clone();
    assert_eq!(learned, json!({"effort": "omit"}));
    recorder.served.stop().await;
}

#[tokio::test]
async fn a_refusal_that_goes_on_is_the_answer_and_nothing_is_remembered_of_it() {
    let refusal = r#"{"error":{"message":"`temperature` is deprecated for this model."}}"#;
    let mut recorder = Recorder::answering(StatusCode::BAD_REQUEST, refusal).await;
    let gateway = impatient(vec![recorder.provider(Wire::OpenAi)]);
    for _ in 0..2 {
        let error = failed(&gateway, "hello").await;
        assert!(error.to_string().contains("deprecated"), "{error}");
        let first = recorder.bodies.recv().await.unwrap();
        let second = recorder.bodies.recv().await.unwrap();
        assert_eq!((first["temperature"].is_null(), second["temperature"].is_null()), (false, true));
    }
    assert!(recorder.bodies.try_recv().is_err());
    recorder.served.stop().await;
}

#[tokio::test]
async fn a_property_that_the_operator_sets_is_not_corrected() {
    let mut recorder = Recorder::deciding(strict).await;
    let pinned = Dialect { temperature: Some(Field::Send), ..Dialect::default() };
    let gateway = impatient(vec![ProviderSettings { dialect: pinned, ..recorder.provider(Wire::OpenAi) }]);
    let error = failed(&gateway, "hello").await;
    assert!(error.to_string().contains("temperature"), "{error}");
    let requests = [recorder.bodies.recv().await.unwrap(), recorder.bodies.recv().await.unwrap()];
    assert!(requests.iter().all(|body| !body["temperature"].is_null()));
    recorder.served.stop().await;
}

/// Some servers ignore `stream` and answer with one document.
#[rstest]
#[case(Wire::OpenAi, include_str!("../../wire/fixtures/openai.json"))]
#[case(Wire::Anthropic, include_str!("../../wire/fixtures/anthropic.json"))]
#[case(Wire::Ollama, include_str!("../../wire/fixtures/ollama.json"))]
#[tokio::test]
async fn a_document_is_an_answer_to_a_streamed_request(#[case] wire: Wire, #[case] body: &'static str) {
    let recorder = Recorder::answering(StatusCode::OK, body).await;
    let answer = ask(&impatient(vec![recorder.provider(wire)]), "hello").await.unwrap().completion;
    assert_eq!((answer.content.as_str(), answer.usage.output_tokens), ("Two cities.", 30));
    assert_eq!(recorder.stop().await["stream"], true);
}

/// The key would travel with the redirect.
#[rstest]
#[tokio::test]
async fn a_redirect_is_not_followed(#[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (keep, mut asked) = tokio::sync::mpsc::channel::<String>(8);
    let handle = move |uri: axum::http::Uri| async move {
        keep.send(uri.path().to_owned()).await.unwrap();
        (StatusCode::TEMPORARY_REDIRECT, [("location", "/elsewhere")])
    };
    let shutdown = CancellationToken::new();
    let stopped = shutdown.clone().cancelled_owned();
    let mut tasks = JoinSet::new();
    let router = axum::Router::new().fallback(handle);
    tasks.spawn(async move { axum::serve(listener, router).with_graceful_shutdown(stopped).await });
    let served = Served { address, shutdown, tasks };
    let error = failed(&impatient(vec![served.provider(wire)]), "hello").await;
    assert_eq!(error.failure.kind(), ErrorKind::NotFound, "{error}");
    assert_ne!(asked.recv().await.as_deref(), Some("/elsewhere"));
    served.stop().await;
    assert_eq!(asked.recv().await, None, "it was asked once");
}

#[tokio::test]
async fn the_context_size_reaches_ollama() {
    let recorder = Recorder::start().await;
    let provider = ProviderSettings { context_tokens: 50_000, ..recorder.provider(Wire::Ollama) };
    failed(&impatient(vec![provider]), "hello").await;
    assert_eq!(recorder.stop().await["options"]["num_ctx"], 50_000);
}

/// Answers always the same, and keeps what it was asked.
struct Recorder {
    served: Served,
    bodies: tokio::sync::mpsc::Receiver<serde_json::Value>,
}

impl Recorder {
    async fn start() -> Self {
        Self::answering(StatusCode::BAD_REQUEST, "").await
    }

    async fn answering(status: StatusCode, answer: &'static str) -> Self {
        Self::deciding(move |_| (status, answer)).await
    }

    async fn deciding(
        decide: impl Fn(&serde_json::Value) -> (StatusCode, &'static str) + Clone + Send + Sync + 'static,
    ) -> Self {
        let (keep, bodies) = tokio::sync::mpsc::channel(8);
        let handle = move |axum::Json(body): axum::Json<serde_json::Value>| async move {
            let answer = decide(&body);
            keep.send(body).await.unwrap();
            answer
        };
        let router = axum::Router::new().fallback(handle);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let stopped = shutdown.clone().cancelled_owned();
        tasks.spawn(async move { axum::serve(listener, router).with_graceful_shutdown(stopped).await });
        Self { served: Served { address, shutdown, tasks }, bodies }
    }

    fn provider(&self, wire: Wire) -> ProviderSettings {
        self.served.provider(wire)
    }

    async fn stop(mut self) -> serde_json::Value {
        let body = self.bodies.recv().await.unwrap();
        self.served.stop().await;
        body
    }
}
