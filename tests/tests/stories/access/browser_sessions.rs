//! Sessions of browsers: how they begin and end, and what a request must have for its cookie to count.

use std::time::Duration;

use orchestrator::{
    auth::Role,
    clock::ManualClock,
    store::{sessions::MAX_SESSIONS_PER_USER, tokens},
};
use protocol::{ErrorCode, SessionCode, SessionSummary, WhoAmI};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tests::{Reply, User, World, within};

/// A browser that is logged in.
#[derive(Clone)]
struct Browser {
    server: User,
    cookie: String,
    key: String,
}

impl Browser {
    /// Opens a session with a code or a token.
    async fn open(server: &User, body: &Value) -> Result<Self, Reply> {
        let request = server.request(Method::POST, "/api/session").header("Sec-Fetch-Site", "same-origin");
        let reply = Reply::of(request.json(body)).await;
        if reply.status != 200 {
            return Err(reply);
        }
        let key = reply.body["key"].as_str().unwrap().to_owned();
        Ok(Self { server: server.clone(), cookie: cookie_of(&reply).unwrap(), key })
    }

    /// As the pages of the server make it.
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.bare(method, path).header("Sec-Fetch-Site", "same-origin");
        request.header("X-Gantry-Key", &self.key)
    }

    /// With the cookie only.
    fn bare(&self, method: Method, path: &str) -> RequestBuilder {
        self.server.request(method, path).header("Cookie", &self.cookie)
    }

    async fn get(&self, path: &str) -> Reply {
        Reply::of(self.request(Method::GET, path)).await
    }

    async fn post(&self, path: &str, body: &Value) -> Reply {
        Reply::of(self.request(Method::POST, path).json(body)).await
    }

    async fn delete(&self, path: &str) -> Reply {
        Reply::of(self.request(Method::DELETE, path)).await
    }
}

/// The name and value that a reply sets.
fn cookie_of(reply: &Reply) -> Option<String> {
    Some(reply.header("set-cookie")?.split(';').next()?.to_owned())
}

async fn link(user: &User) -> Value {
    let code: SessionCode = user.post("/api/session/codes", &json!({})).await.expect(201).json();
    json!({"code": code.code})
}

#[tokio::test]
async fn a_link_opens_one_session_of_its_user() {
    let world = World::new().await;
    let ada = world.user("ada");
    let code = link(&ada).await;
    let server = world.anonymous();
    let browser = Browser::open(&server, &code).await.ok().unwrap();
    let again = Browser::open(&server, &code).await.err().unwrap();
    let unknown = Browser::open(&server, &json!({"code": "AAAAAAAAAAAAAAAAAAAAAA"})).await.err().unwrap();
    assert_eq!(again.problem(ErrorCode::Unauthorized).body["detail"], unknown.body["detail"]);

    let who: WhoAmI = browser.get("/api/session").await.expect(200).json();
    assert_eq!((who.user.as_str(), who.role.as_str()), ("ada", "user"));
    assert_eq!(browser.get("/api/whoami").await.expect(200).body["session_id"], json!(who.session_id));
    let job = browser.post("/api/jobs", &json!({"prompt": "hi", "hold": true})).await.expect(201);
    assert_eq!(job.body["user_id"], "ada");

    // The cookie is no token, and a token is no cookie.
    let (name, value) = browser.cookie.split_once('=').unwrap();
    server.with_token(value).get("/api/session").await.problem(ErrorCode::Unauthorized);
    let token = world.fresh("ada", Role::User);
    let with_token = server.request(Method::GET, "/api/whoami").header("Cookie", format!("{name}={token}"));
    Reply::of(with_token).await.problem(ErrorCode::Unauthorized);
    ada.get("/api/session").await.problem(ErrorCode::Unauthorized);
    Reply::of(ada.request(Method::DELETE, "/api/session")).await.problem(ErrorCode::Unauthorized);
    // Of both, the token counts.
    let both = server.with_token(&world.fresh("bob", Role::User)).request(Method::GET, "/api/whoami");
    assert_eq!(Reply::of(both.header("Cookie", &browser.cookie)).await.expect(200).body["user"], "bob");

    let stream = browser.request(Method::GET, "/api/events").header("Accept", "text/event-stream");
    let mut stream = stream.send().await.unwrap();
    let ended = browser.delete("/api/session").await.expect(204);
    // An open stream ends with the next event.
    let second = ada.create(json!({"prompt": "hi", "hold": true})).await;
    within("the stream to end", async { while stream.chunk().await.unwrap().is_some() {} }).await;
    ada.cancel(second).await.expect(202);
    assert!(ended.header("set-cookie").unwrap().contains("Max-Age=0"));
    browser.get("/api/session").await.problem(ErrorCode::Unauthorized);
    // It has ended, whatever asks.
    browser.post("/api/jobs", &json!({"prompt": "hi"})).await.problem(ErrorCode::Unauthorized);
    browser.delete("/api/session").await.problem(ErrorCode::Unauthorized);
    let audit = world.someone("root", Role::Admin).get("/api/audit?user=ada").await.expect(200).body;
    let actions: Vec<&str> =
        audit["items"].as_array().unwrap().iter().map(|entry| entry["action"].as_str().unwrap()).collect();
    for action in ["session.code", "session.open", "session.end"] {
        assert!(actions.contains(&action), "{action} in {actions:?}");
    }
    ada.cancel(job.body["id"].as_str().unwrap().parse().unwrap()).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn requests_of_other_sites_change_and_read_nothing() {
    let world = World::new().await;
    let ada = world.user("ada");
    let browser = Browser::open(&world.anonymous(), &link(&ada).await).await.ok().unwrap();
    let host = ada.base().strip_prefix("http://").unwrap().to_owned();
    let own = format!("http://{host}");
    let body = json!({"prompt": "planted"});
    let key = ("X-Gantry-Key", browser.key.as_str());
    let refused: &[&[(&str, &str)]] = &[
        &[],
        &[("Sec-Fetch-Site", "cross-site"), key],
        &[("Sec-Fetch-Site", "same-site"), key],
        &[("Sec-Fetch-Site", "none"), key],
        &[("Origin", "null"), key],
        &[("Origin", "http://127.0.0.1:1"), key],
        &[("Origin", "https://elsewhere.example"), key],
        // Its own origin, without the key or with another one.
        &[("Sec-Fetch-Site", "same-origin")],
        &[("Origin", &own)],
        &[("Sec-Fetch-Site", "same-origin"), ("X-Gantry-Key", "AAAAAAAAAAAAAAAAAAAAAA")],
    ];
    for fields in refused {
        let request = browser.bare(Method::POST, "/api/jobs").json(&body);
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        Reply::of(request).await.problem(ErrorCode::CrossOrigin);
    }
    for site in ["cross-site", "same-site"] {
        let read = browser.bare(Method::GET, "/api/jobs").header("Sec-Fetch-Site", site);
        Reply::of(read).await.problem(ErrorCode::CrossOrigin);
        // Nor is a browser logged in as another user.
        let login = world.anonymous().request(Method::POST, "/api/session").header("Sec-Fetch-Site", site);
        Reply::of(login.json(&link(&ada).await)).await.problem(ErrorCode::CrossOrigin);
    }
    assert_eq!(ada.jobs().await, []);
    let lan = browser.bare(Method::POST, "/api/session/codes").header("Origin", &own).header(key.0, key.1);
    Reply::of(lan.json(&json!({}))).await.expect(201);
    world.finish().await;
}

#[tokio::test]
async fn a_session_ends_with_its_token_and_shows_where_it_is_used() {
    let world = World::new().await;
    let token = world.fresh("ada", Role::Viewer);
    let server = world.anonymous();
    let (viewer, pasted) = (server.with_token(&token), json!({"token": token}));
    let first = Browser::open(&server, &link(&viewer).await).await.ok().unwrap();
    let second = Browser::open(&server, &pasted).await.ok().unwrap();
    second.post("/api/jobs", &json!({"prompt": "hi"})).await.problem(ErrorCode::Forbidden);
    let sessions: Vec<SessionSummary> =
        serde_json::from_value(second.get("/api/sessions").await.body["items"].clone()).unwrap();
    let current: Vec<bool> = sessions.iter().map(|session| session.current).collect();
    assert_eq!(current.iter().filter(|current| **current).count(), 1, "{sessions:?}");
    assert!(sessions.iter().all(|session| session.address.as_deref() == Some("127.0.0.1")));

    // Another user's session is as one that does not exist.
    let other = sessions.iter().find(|session| !session.current).unwrap();
    let bob = Browser::open(&server, &link(&world.user("bob")).await).await.ok().unwrap();
    bob.delete(&format!("/api/sessions/{}", other.id)).await.problem(ErrorCode::NotFound);
    // A viewer changes nothing: it ends no session but the one that it uses.
    let of_other = format!("/api/sessions/{}", other.id);
    second.delete(&of_other).await.problem(ErrorCode::Forbidden);
    Reply::of(viewer.request(Method::DELETE, &of_other)).await.problem(ErrorCode::Forbidden);
    first.get("/api/session").await.expect(200);
    first.delete("/api/session").await.expect(204);
    first.get("/api/session").await.problem(ErrorCode::Unauthorized);
    let further = Browser::open(&server, &link(&viewer).await).await.ok().unwrap();
    let id = further.get("/api/session").await.body["session_id"].as_str().unwrap().to_owned();
    let by_id = world.user("ada").request(Method::DELETE, &format!("/api/sessions/{id}"));
    Reply::of(by_id).await.expect(204);
    further.get("/api/session").await.problem(ErrorCode::Unauthorized);

    let jti = world.key().verify(&token, world.clock().now()).unwrap().jti;
    let code = link(&viewer).await;
    // A link that a session has made comes from the same token.
    let made: SessionCode = second.post("/api/session/codes", &json!({})).await.expect(201).json();
    let third = Browser::open(&server, &json!({"code": made.code})).await.ok().unwrap();
    third.get("/api/session").await.expect(200);
    tokens::revoke(&world.store().await, &jti, world.clock().now()).await.unwrap();
    second.get("/api/session").await.problem(ErrorCode::Unauthorized);
    third.get("/api/session").await.problem(ErrorCode::Unauthorized);
    for opening in [code, pasted] {
        Browser::open(&server, &opening).await.err().unwrap().problem(ErrorCode::Unauthorized);
    }
    bob.get("/api/session").await.expect(200);
    world.finish().await;
}

#[tokio::test]
async fn codes_and_sessions_have_an_end() {
    let clock = ManualClock::at("2026-03-01T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&clock).build().await;
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    let day = chrono::Duration::days(30);
    let token = world.key().issue("ada", Role::User, world.clock().now(), day).unwrap().token;
    let server = world.anonymous();
    let ada = server.with_token(&token);
    let late = link(&ada).await;
    clock.advance(Duration::from_secs(601));
    Browser::open(&server, &late).await.err().unwrap().problem(ErrorCode::Unauthorized);

    // Used each seven hours it is renewed, for seven days.
    let mut browser = Browser::open(&server, &link(&ada).await).await.ok().unwrap();
    for _ in 0..23 {
        clock.advance(hours(7));
        let reply = browser.get("/api/session").await.expect(200);
        browser.cookie = cookie_of(&reply).unwrap();
    }
    clock.advance(hours(7));
    browser.get("/api/session").await.problem(ErrorCode::Unauthorized);

    let idle = Browser::open(&server, &link(&ada).await).await.ok().unwrap();
    clock.advance(hours(1));
    assert_eq!(cookie_of(&idle.get("/api/session").await.expect(200)), None, "it is fresh");
    clock.advance(hours(12));
    idle.get("/api/session").await.problem(ErrorCode::Unauthorized);
    world.finish().await;
}

/// Other servers on the host can set cookies of this name, and a browser can have one of HTTPS and one of plain HTTP.
#[tokio::test]
async fn the_key_says_which_of_several_cookies_counts() {
    let world = World::new().await;
    let server = world.anonymous();
    let ada = Browser::open(&server, &link(&world.user("ada")).await).await.ok().unwrap();
    let bob = Browser::open(&server, &link(&world.user("bob")).await).await.ok().unwrap();
    let (name, value) = bob.cookie.split_once('=').unwrap();
    for planted in
        [format!("{name}=junk"), format!("__Host-{name}=junk"), bob.cookie.clone(), format!("__Host-{name}={value}")]
    {
        let browser = Browser { cookie: format!("{planted}; {}", ada.cookie), ..ada.clone() };
        assert_eq!(browser.get("/api/whoami").await.expect(200).body["user"], "ada", "{planted}");
        browser.post("/api/session/codes", &json!({})).await.expect(201);
        // A file that is opened in a new tab is read without a key.
        let download = browser.bare(Method::GET, "/api/whoami").header("Sec-Fetch-Site", "same-origin");
        Reply::of(download).await.expect(200);
    }
    let without_its_own = Browser { key: ada.key.clone(), ..bob.clone() };
    without_its_own.get("/api/whoami").await.problem(ErrorCode::CrossOrigin);
    world.finish().await;
}

#[tokio::test]
async fn a_new_login_ends_the_session_before_and_the_links_that_it_made() {
    let world = World::new().await;
    let (ada, server) = (world.user("ada"), world.anonymous());
    let first = Browser::open(&server, &link(&ada).await).await.ok().unwrap();
    let made: SessionCode = first.post("/api/session/codes", &json!({})).await.expect(201).json();
    let login = async |of: RequestBuilder| {
        let opening = link(&ada).await;
        Reply::of(of.header("Sec-Fetch-Site", "same-origin").json(&opening)).await.expect(200);
    };
    // The cookie alone may be planted.
    login(first.bare(Method::POST, "/api/session")).await;
    first.get("/api/session").await.expect(200);
    login(first.bare(Method::POST, "/api/session").header("X-Gantry-Key", &first.key)).await;
    first.get("/api/session").await.problem(ErrorCode::Unauthorized);
    Browser::open(&server, &json!({"code": made.code})).await.err().unwrap().problem(ErrorCode::Unauthorized);
    world.finish().await;
}

/// Of a page that was loaded over HTTPS through a proxy. Browsers name it with changes only.
#[tokio::test]
async fn a_cookie_of_https_stays_one() {
    let clock = ManualClock::at("2026-03-01T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&clock).build().await;
    let server = world.anonymous();
    let token = world.key().issue("ada", Role::User, world.clock().now(), chrono::Duration::days(30)).unwrap().token;
    let login = server.request(Method::POST, "/api/session").header("Sec-Fetch-Site", "same-origin");
    let opened = Reply::of(login.header("Origin", "https://gantry.example").json(&json!({"token": token}))).await;
    let cookie = cookie_of(&opened.expect(200)).unwrap();
    assert!(cookie.starts_with("__Host-gantry_"), "{cookie}");
    clock.advance(Duration::from_hours(7));
    let read = server.request(Method::GET, "/api/session").header("Sec-Fetch-Site", "same-origin");
    let renewed = Reply::of(read.header("Cookie", &cookie)).await.expect(200);
    let renewed = renewed.header("set-cookie").unwrap();
    assert!(renewed.starts_with("__Host-gantry_") && renewed.ends_with("; Secure"), "{renewed}");
    world.finish().await;
}

#[tokio::test]
async fn failed_logins_are_limited_and_a_correct_one_passes() {
    let clock = ManualClock::at("2026-03-01T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&clock).build().await;
    let (server, ada) = (world.anonymous(), world.user("ada"));
    let wrong = json!({"code": "AAAAAAAAAAAAAAAAAAAAAA"});
    for _ in 0..100 {
        Browser::open(&server, &wrong).await.err().unwrap().problem(ErrorCode::Unauthorized);
    }
    let limited = Browser::open(&server, &wrong).await.err().unwrap().problem(ErrorCode::RateLimited);
    assert!(limited.header("retry-after").is_some());
    assert!(Browser::open(&server, &link(&ada).await).await.is_ok());
    world.finish().await;
}

#[tokio::test]
async fn a_further_session_ends_the_one_that_was_not_used_for_longest() {
    let clock = ManualClock::at("2026-03-01T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&clock).build().await;
    let (server, token) = (world.anonymous(), world.fresh("ada", Role::User));
    let mut browsers = vec![];
    for _ in 0..=MAX_SESSIONS_PER_USER {
        browsers.push(Browser::open(&server, &json!({"token": token})).await.ok().unwrap());
        clock.advance(Duration::from_secs(1));
    }
    browsers[0].get("/api/session").await.problem(ErrorCode::Unauthorized);
    let page = browsers[1].get("/api/sessions").await.expect(200).body;
    assert_eq!(page["items"].as_array().map(Vec::len), usize::try_from(MAX_SESSIONS_PER_USER).ok());
    world.finish().await;
}

#[tokio::test]
async fn without_the_dashboard_there_are_no_sessions() {
    let mut world = World::new().await;
    let browser = Browser::open(&world.anonymous(), &link(&world.user("ada")).await).await.ok().unwrap();
    world.restart_with(|config| config.dashboard = false).await;
    let ada = world.user("ada");
    let read = world.anonymous().request(Method::GET, "/api/whoami").header("Cookie", &browser.cookie);
    Reply::of(read).await.problem(ErrorCode::Unauthorized);
    ada.post("/api/session/codes", &json!({})).await.problem(ErrorCode::NotFound);
    ada.get("/api/whoami").await.expect(200);
    let page = ada.request(Method::GET, "/").header("Accept", "text/html");
    assert!(Reply::of(page).await.expect(200).body.as_str().unwrap().contains("gantry token create"));
    let unknown = ada.request(Method::GET, "/jobs").header("Accept", "text/html");
    Reply::of(unknown).await.problem(ErrorCode::NotFound);
    world.finish().await;
}
