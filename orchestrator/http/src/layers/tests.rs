//! Requests through the layers: errors, headers and limits.

use std::time::Duration;

use axum::{
    Json,
    body::Body,
    http::{HeaderName, StatusCode},
    routing::{get, post},
};
use protocol::{JobId, Problem};
use rstest::rstest;
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

use super::*;
use crate::extract::{ApiJson, ApiPath, ApiQuery, MAX_INLINE_BYTES, OptionalJson};

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    name: String,
    #[serde(default)]
    lines: Vec<Line>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<Size>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Size {
    Small,
    Large,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    count: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Filter {
    #[serde(default)]
    limit: Option<u32>,
}

fn router() -> Router {
    let routes = Router::new()
        .route("/orders", post(async |body: ApiJson<Order>| Json(body.value)))
        .route("/maybe", post(async |OptionalJson(order): OptionalJson<Order>| Json(order)))
        .route("/list", get(async |ApiQuery(filter): ApiQuery<Filter>| Json(filter)))
        .route("/jobs/{id}", get(async |ApiPath(id): ApiPath<JobId>| id.to_string()))
        .route("/panic", get(async || -> StatusCode { panic!("secret detail") }))
        .route("/broken", get(async || -> Result<(), ApiError> { Err(ApiError::internal("disk of /secret is full")) }))
        .route("/bare", get(async || StatusCode::BAD_GATEWAY))
        .route(
            "/busy",
            get(async || -> Result<(), ApiError> {
                Err(ApiError::new(ErrorCode::SandboxUnavailable, "no engine")
                    .with_reason("engine_unreachable")
                    .with_retry_after(Duration::from_millis(1500)))
            }),
        );
    let hosts = ["localhost", "127.0.0.1", "[::1]", "gantry.example:8443"].map(str::to_owned).to_vec();
    let layers =
        ServerLayers { allowed_hosts: Some(hosts), body_limit_bytes: 256, side: "public", metrics: Metrics::default() };
    layers.apply(routes)
}

async fn ask(request: Request) -> (StatusCode, HeaderMap, String) {
    let response = router().oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, 64 * 1024).await.unwrap();
    (parts.status, parts.headers, String::from_utf8(bytes.to_vec()).unwrap())
}

fn request(method: &str, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path).header("host", "localhost:8080")
}

fn post_json(path: &str, body: &str) -> Request {
    request("POST", path).header("content-type", "application/json").body(Body::from(body.to_owned())).unwrap()
}

fn problem(answer: &(StatusCode, HeaderMap, String)) -> Problem {
    assert_eq!(answer.1["content-type"], "application/problem+json", "{answer:?}");
    let problem: Problem = serde_json::from_str(&answer.2).unwrap();
    assert_eq!(problem.status, answer.0.as_u16());
    assert_eq!(problem.request_id, answer.1["x-request-id"].to_str().unwrap());
    assert_eq!(problem.kind, format!("urn:gantry:problem:{}", problem.code.as_str()));
    problem
}

#[rstest]
#[case::cut(r#"{"name": "#, ErrorCode::BadRequest, "")]
#[case::not_json("name=x", ErrorCode::BadRequest, "")]
#[case::empty("", ErrorCode::BadRequest, "")]
#[case::rest_behind(r#"{"name":"a"} x"#, ErrorCode::BadRequest, "")]
#[case::not_utf8("\"\\ud800\"", ErrorCode::BadRequest, "")]
#[case::missing("{}", ErrorCode::Invalid, "name")]
#[case::null(r#"{"name":null}"#, ErrorCode::Invalid, "name")]
#[case::unknown(r#"{"name":"a","nmae":1}"#, ErrorCode::Invalid, "nmae")]
#[case::twice(r#"{"name":"a","name":"b"}"#, ErrorCode::Invalid, "name")]
#[case::deep(r#"{"name":"a","lines":[{"count":1},{"count":"x"}]}"#, ErrorCode::Invalid, "lines[1].count")]
#[case::deep_unknown(r#"{"name":"a","lines":[{"count":1,"cuont":2}]}"#, ErrorCode::Invalid, "lines[0].cuont")]
#[case::deep_missing(r#"{"name":"a","lines":[{}]}"#, ErrorCode::Invalid, "lines[0].count")]
#[case::negative(r#"{"name":"a","lines":[{"count":-1}]}"#, ErrorCode::Invalid, "lines[0].count")]
#[case::array(r#"["a"]"#, ErrorCode::Invalid, "body")]
#[case::cut_array(r#"["a""#, ErrorCode::BadRequest, "")]
#[case::line_as_array(r#"{"name":"a","lines":[[1]]}"#, ErrorCode::Invalid, "lines[0]")]
#[case::number("1", ErrorCode::Invalid, "body")]
#[tokio::test]
async fn an_invalid_body_is_reported_by_field(#[case] body: &str, #[case] code: ErrorCode, #[case] field: &str) {
    let problem = problem(&ask(post_json("/orders", body)).await);
    assert_eq!(problem.code, code, "{problem:?}");
    assert_eq!(problem.errors.first().map_or("", |error| error.field.as_str()), field, "{problem:?}");
}

#[tokio::test]
async fn an_absent_body_is_the_default_where_it_may_be() {
    let none = request("POST", "/maybe").body(Body::empty()).unwrap();
    assert_eq!(ask(none).await.0, StatusCode::OK);
    assert_eq!(problem(&ask(post_json("/maybe", "{}")).await).code, ErrorCode::Invalid, "an object must be whole");
    let untyped = request("POST", "/maybe").body(Body::from("{}")).unwrap();
    assert_eq!(problem(&ask(untyped).await).code, ErrorCode::UnsupportedMediaType);
}

#[tokio::test]
async fn media_type_size_method_and_path_are_checked() {
    let text = request("POST", "/orders").header("content-type", "text/plain").body(Body::from("{}")).unwrap();
    assert_eq!(problem(&ask(text).await).code, ErrorCode::UnsupportedMediaType);
    let with_charset = request("POST", "/orders").header("content-type", "Application/JSON; charset=utf-8");
    assert_eq!(ask(with_charset.body(Body::from(r#"{"name":"a"}"#)).unwrap()).await.0, StatusCode::OK);

    let large = format!(r#"{{"name":"{}"}}"#, "x".repeat(300));
    assert_eq!(problem(&ask(post_json("/orders", &large)).await).code, ErrorCode::TooLarge);

    let wrong_method = ask(request("DELETE", "/orders").body(Body::empty()).unwrap()).await;
    assert_eq!(problem(&wrong_method).code, ErrorCode::MethodNotAllowed);
    assert_eq!(wrong_method.1["allow"], "POST");
    let nowhere = ask(request("GET", "/nowhere").body(Body::empty()).unwrap()).await;
    assert_eq!(problem(&nowhere).code, ErrorCode::NotFound);
    let bad_id = ask(request("GET", "/jobs/not-an-id").body(Body::empty()).unwrap()).await;
    assert_eq!(problem(&bad_id).code, ErrorCode::NotFound);
}

#[rstest]
#[case("/list?limit=x", "limit: must be an integer of at least 0")]
#[case("/list?limit=", "limit: must be an integer of at least 0")]
#[case("/list?limit=-1", "limit: must be an integer of at least 0")]
#[case("/list?limt=1", "limt: unknown parameter; the parameters are limit")]
#[case("/list?limit=1&limit=2", "limit: must be given only once")]
#[tokio::test]
async fn a_wrong_query_names_its_parameter(#[case] path: &str, #[case] detail: &str) {
    let problem = problem(&ask(request("GET", path).body(Body::empty()).unwrap()).await);
    assert_eq!((problem.code, problem.detail.as_str()), (ErrorCode::Invalid, detail), "{problem:?}");
    assert_eq!(problem.errors[0].field, detail.split_once(':').unwrap().0);
}

#[rstest]
#[case("{}", "name: is required")]
#[case(r#"{"name":null}"#, "name: must be a string")]
#[case(r#"{"name":7}"#, "name: must be a string")]
#[case(r#"{"name":"a","nmae":1}"#, "nmae: unknown field; the fields are name, lines, size")]
#[case(r#"{"name":"a","name":"b"}"#, "name: must be given only once")]
#[case(r#"{"name":"a","lines":{}}"#, "lines: must be an array")]
#[case(r#"{"name":"a","lines":[7]}"#, "lines[0]: must be an object")]
#[case(r#"{"name":"a","lines":[[1]]}"#, "lines[0]: must be an object")]
#[case(r#"{"name":"a","lines":[{}]}"#, "lines[0].count: is required")]
#[case(r#"{"name":"a","lines":[{"count":"x"}]}"#, "lines[0].count: must be an integer of at least 0")]
#[case(r#"{"name":"a","lines":[{"count":1.5}]}"#, "lines[0].count: must be an integer of at least 0")]
#[case(r#"{"name":"a","lines":[{"count":5000000000}]}"#, "lines[0].count: must be an integer of at most 4294967295")]
#[case(r#"{"name":"a","size":"huge"}"#, "size: must be one of small, large")]
#[case(r#"{"name":"a","size":7}"#, "size: must be a string")]
#[case(r#"{"name":"a","size":{}}"#, "size: must be a string")]
#[case("null", "body: must be an object")]
#[case("[]", "body: must be an object")]
#[case("7", "body: must be an object")]
#[tokio::test]
async fn a_wrong_value_is_described_without_types_of_the_program(#[case] body: &str, #[case] detail: &str) {
    let problem = problem(&ask(post_json("/orders", body)).await);
    assert_eq!((problem.code, problem.detail.as_str()), (ErrorCode::Invalid, detail));
    // A large body is read in another way, where the last of duplicate fields wins.
    if !detail.ends_with("only once") {
        let padded = format!("{body}{}", " ".repeat(MAX_INLINE_BYTES));
        let error = crate::extract::parse_json::<Order>(padded.as_bytes()).unwrap_err();
        assert_eq!(error.detail(), detail, "in a large body");
    }
}

#[rstest]
#[case("/panic")]
#[case("/broken")]
#[case("/bare")]
#[tokio::test]
async fn a_failure_never_shows_internals(#[case] path: &str) {
    let answer = ask(request("GET", path).body(Body::empty()).unwrap()).await;
    assert_eq!(problem(&answer).code, ErrorCode::Internal);
    assert!(!answer.2.contains("secret"), "{}", answer.2);
}

#[tokio::test]
async fn reason_and_retry_after_are_reported() {
    let answer = ask(request("GET", "/busy").body(Body::empty()).unwrap()).await;
    let problem = problem(&answer);
    assert_eq!(problem.reason.as_deref(), Some("engine_unreachable"));
    assert_eq!(answer.1["retry-after"], "2", "rounded up");
    assert_eq!(answer.1["x-content-type-options"], "nosniff");
    assert_eq!(answer.1["cache-control"], "no-store");
}

#[rstest]
#[case("abc-123", true)]
#[case("has space", false)]
#[case("", false)]
#[case(&"x".repeat(128), true)]
#[case(&"x".repeat(129), false)]
#[tokio::test]
async fn a_sane_request_id_is_echoed(#[case] id: &str, #[case] kept: bool) {
    let name = HeaderName::from_static("x-request-id");
    let answer = ask(request("GET", "/nowhere").header(name, id).body(Body::empty()).unwrap()).await;
    assert_eq!(answer.1["x-request-id"] == id, kept);
    assert!(!answer.1["x-request-id"].is_empty());
}

#[rstest]
#[case(&["localhost"], true)]
#[case(&["LOCALHOST:8080"], true)]
#[case(&["localhost.:8080"], true)]
#[case(&["localhost."], true)]
#[case(&["gantry.example.:8443"], true)]
#[case(&["localhost..:8080"], false)]
#[case(&["evil.example.:8080"], false)]
#[case(&["127.0.0.1:1"], true)]
#[case(&["[::1]:8080"], true)]
#[case(&["[::1]"], true)]
#[case(&["gantry.example:8443"], true)]
#[case(&["gantry.example"], false)]
#[case(&["gantry.example:80"], false)]
#[case(&["evil.example"], false)]
#[case(&["localhost.evil.example"], false)]
#[case(&["localhost@evil.example"], false)]
#[case(&["localhost:x"], false)]
#[case(&[""], false)]
#[case(&[], false)]
#[case(&["localhost", "evil.example"], false)]
#[tokio::test]
async fn a_foreign_host_is_refused(#[case] hosts: &[&str], #[case] allowed: bool) {
    let mut request = Request::builder().uri("/list");
    for host in hosts {
        request = request.header("host", *host);
    }
    let answer = ask(request.body(Body::empty()).unwrap()).await;
    if allowed {
        assert_eq!(answer.0, StatusCode::OK);
    } else {
        assert_eq!(problem(&answer).code, ErrorCode::MisdirectedRequest);
    }
}

#[tokio::test]
async fn a_busy_store_is_unavailable_with_a_retry_after() {
    let busy = ApiError::from(store::StoreError::busy());
    let response = busy.render("r1");
    assert_eq!(response.status().as_u16(), 503);
    assert_eq!(response.headers()[header::RETRY_AFTER], "2");
    let wrong = ApiError::from(store::StoreError::Inconsistent { table: "jobs", column: "state", id: "i".to_owned() });
    assert_eq!(wrong.render("r1").status().as_u16(), 500);
}

#[rstest::rstest]
#[case("/api/jobs/{id}/events", "/api/jobs/7/events", Some("job 7"))]
#[case("/api/routines/{id}", "/api/routines/daily", Some("routine daily"))]
#[case("/api/jobs/{id}/files/{*path}", "/api/jobs/7/files/a", None)]
#[case("/api/memory", "/api/memory", None)]
#[case("unmatched", "/x", None)]
fn a_missing_object_is_named_as_it_was_asked_for(
    #[case] route: &str,
    #[case] path: &str,
    #[case] object: Option<&str>,
) {
    assert_eq!(object_of(route, path).as_deref(), object);
}
