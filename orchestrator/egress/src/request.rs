//! A request before it is sent: its method, URL and headers checked, and what becomes of it on a redirect. Pure.

use reqwest::{
    Method, StatusCode, Url,
    header::{
        ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
        RANGE, USER_AGENT,
    },
};

use super::{
    encoding::ACCEPTED,
    host::{Destination, Host},
};

/// Maximum length of a URL. Most servers refuse longer ones.
const MAX_URL_BYTES: usize = 8 * 1024;
/// Maximum number of headers, which is what most servers accept.
const MAX_HEADERS: usize = 64;
/// Maximum size of all headers, which is what most servers accept.
const MAX_HEADER_BYTES: usize = 16 * 1024;

const METHODS: [Method; 7] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS];

/// Headers that describe the connection, name the host (RFC 9110, 7.6.1 and 7.2) or say what can be decoded: they belong
/// to the client.
const REFUSED_HEADERS: [&str; 13] = [
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-gantry-session",
    "via",
];
/// As those: they speak to a proxy.
const REFUSED_PREFIX: &str = "proxy-";

/// The headers that another host may see after a redirect. Any other may be a credential for the first host.
const HEADERS_FOR_OTHER_HOSTS: [HeaderName; 5] = [ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONTENT_TYPE, USER_AGENT];

/// A request that a client may send if its destination is allowed.
#[derive(Debug, Clone)]
pub struct OutboundRequest {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<Vec<u8>>,
}

/// A request that is never sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRequest(pub(super) String);

fn invalid(message: impl Into<String>) -> InvalidRequest {
    InvalidRequest(message.into())
}

impl OutboundRequest {
    /// Checks the method and URL.
    pub fn new(method: &str, url: &str) -> Result<Self, InvalidRequest> {
        let method = METHODS.iter().find(|known| known.as_str() == method).cloned();
        let method = method.ok_or_else(|| invalid("method must be GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS"))?;
        Ok(Self { method, url: parse_url(url)?, headers: HeaderMap::new(), body: None })
    }

    /// Adds a header. A name may occur once.
    pub fn header(&mut self, name: &str, value: &str) -> Result<(), InvalidRequest> {
        let lower = name.to_ascii_lowercase();
        if REFUSED_HEADERS.contains(&lower.as_str()) || lower.starts_with(REFUSED_PREFIX) {
            return Err(invalid(format!("the header {lower} is set by the client; leave it out")));
        }
        let bytes: usize = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        if self.headers.len() == MAX_HEADERS || bytes + name.len() + value.len() > MAX_HEADER_BYTES {
            return Err(invalid(format!("headers must be at most {MAX_HEADERS} with {MAX_HEADER_BYTES} bytes")));
        }
        let name: HeaderName =
            lower.parse().map_err(|_| invalid("a header name must be letters, digits and hyphens"))?;
        let mut value: HeaderValue =
            value.parse().map_err(|_| invalid(format!("the value of the header {name} must be one line of ASCII")))?;
        value.set_sensitive(true);
        match self.headers.insert(name, value) {
            None => Ok(()),
            Some(_) => Err(invalid(format!("the header {lower} must occur once"))),
        }
    }

    /// Sets the body, with this type unless a header names one.
    pub fn set_body(&mut self, body: Vec<u8>, content_type: &'static str) {
        self.headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static(content_type));
        self.body = Some(body);
    }

    /// Accepts a compressed body. Not of a range: a part of a compressed body cannot be decoded.
    pub(super) fn accept_compressed(&mut self) {
        let accepted = if self.headers.contains_key(RANGE) { "identity" } else { ACCEPTED };
        self.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accepted));
    }

    /// The host and port of the URL.
    pub fn destination(&self) -> Result<Destination, InvalidRequest> {
        let host = Host::parse(self.url.host_str().unwrap_or_default());
        let host = host.map_err(|error| invalid(format!("the host of the URL {error}")))?;
        let port = self.url.port_or_known_default().filter(|port| *port > 0);
        Ok(Destination { host, port: port.ok_or_else(|| invalid("the port of the URL must be from 1 to 65535"))? })
    }

    /// The request that follows a redirect to this location.
    pub(super) fn redirected(&self, status: StatusCode, location: &str) -> Result<Self, InvalidRequest> {
        let joined = self.url.join(location).map_err(|_| invalid("the response redirects to an invalid URL"))?;
        let mut next = Self { url: parse_url(joined.as_str())?, ..self.clone() };
        // RFC 9110, 15.4: what browsers do.
        let becomes_get = match status {
            StatusCode::SEE_OTHER => next.method != Method::HEAD,
            StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => next.method == Method::POST,
            _ => false,
        };
        if becomes_get {
            next.method = Method::GET;
            next.body = None;
            next.headers.remove(CONTENT_TYPE);
        }
        if !next.has_origin_of(self) {
            let kept =
                HEADERS_FOR_OTHER_HOSTS.iter().filter_map(|name| Some((name.clone(), next.headers.get(name)?.clone())));
            next.headers = kept.collect();
        }
        next.headers.remove(CONTENT_LENGTH);
        Ok(next)
    }

    /// Whether both URLs have the same scheme, host and port.
    pub(super) fn has_origin_of(&self, other: &Self) -> bool {
        self.url.origin() == other.url.origin()
    }
}

/// Parses a URL that every parser reads in the same way.
fn parse_url(text: &str) -> Result<Url, InvalidRequest> {
    if text.len() > MAX_URL_BYTES {
        return Err(invalid(format!("url must be at most {MAX_URL_BYTES} bytes")));
    }
    // Parsers remove or convert these.
    if text.contains(|c: char| c.is_control() || c.is_whitespace() || c == '\\') {
        return Err(invalid("url must not contain spaces, control characters or backslashes; percent-encode them"));
    }
    let authority = text.split_once("://").map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or_default());
    let Some(authority) = authority else {
        return Err(invalid("url must be absolute, such as https://api.example.org/v1"));
    };
    if authority.contains('@') {
        return Err(invalid("url must not contain a user or password; use a header"));
    }
    let mut url = Url::parse(text).map_err(|error| invalid(format!("url is invalid: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(invalid("url must begin with https:// or http://"));
    }
    // The parser reads other spellings of an address as that address. Only its canonical form is accepted.
    let written = if authority.ends_with(']') {
        authority
    } else {
        authority.rsplit_once(':').map_or(authority, |(host, _)| host)
    };
    let written = Host::parse(written).map_err(|error| invalid(format!("the host of the URL {error}")))?;
    if Some(written.to_string().as_str()) != url.host_str() {
        return Err(invalid("the host of the URL must be written in its usual form"));
    }
    url.set_fragment(None);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("https://a.example", "a.example:443")]
    #[case("HTTPS://A.Example:8443/x?y#z", "a.example:8443")]
    #[case("http://192.0.2.1/", "192.0.2.1:80")]
    #[case("http://[2001:DB8::1]:81", "[2001:db8::1]:81")]
    #[case("https://a.example/@user", "a.example:443")]
    #[case("https://a.example?q=@user:x", "a.example:443")]
    fn urls_name_a_destination(#[case] url: &str, #[case] destination: &str) {
        assert_eq!(OutboundRequest::new("GET", url).unwrap().destination().unwrap().to_string(), destination);
    }

    #[rstest]
    #[case("a.example/x", "absolute")]
    #[case("ftp://a.example", "begin with")]
    #[case("file:///etc/passwd", "begin with")]
    #[case("gopher://a.example", "begin with")]
    #[case("unix:///var/run/docker.sock", "begin with")]
    #[case("data:text/plain,x", "absolute")]
    #[case("https:///x", "the host")]
    #[case("https://bob@a.example", "user or password")]
    #[case("https://bob:pw@a.example", "user or password")]
    #[case("https://@a.example", "user or password")]
    #[case("https://a.example\\@b.example", "backslashes")]
    #[case("https://a.example/\r\nX: y", "control characters")]
    #[case("https://a.ex\tample", "control characters")]
    #[case(" https://a.example", "spaces")]
    #[case("https://a.example\0", "control characters")]
    #[case("http://2130706433/", "IPv4 address")]
    #[case("http://0x7f000001/", "IPv4 address")]
    #[case("http://0177.0.0.1/", "IPv4 address")]
    #[case("http://127.1/", "IPv4 address")]
    #[case("http://127.0.0.1./", "host")]
    #[case("http://localhost./", "host")]
    #[case("http://%31%32%37.0.0.1/", "host")]
    #[case("http://①②⑦.0.0.1/", "ASCII")]
    #[case("http://ⓔxample.org/", "ASCII")]
    #[case("http://[::1%25lo]/", "IPv6")]
    #[case("http://a.example:99999/", "invalid")]
    #[case("http://a.example:0/", "port")]
    fn other_urls_are_refused(#[case] url: &str, #[case] expected: &str) {
        let error = OutboundRequest::new("GET", url).and_then(|request| request.destination()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[rstest]
    #[case("get")]
    #[case("CONNECT")]
    #[case("TRACE")]
    #[case("GET /x HTTP/1.1\r\nHost: b")]
    fn other_methods_are_refused(#[case] method: &str) {
        assert!(OutboundRequest::new(method, "https://a.example").is_err());
    }

    fn request() -> OutboundRequest {
        OutboundRequest::new("POST", "https://a.example/start?x=1").unwrap()
    }

    #[rstest]
    #[case("Host", "b.example")]
    #[case("hOsT", "b.example")]
    #[case("Connection", "close")]
    #[case("Transfer-Encoding", "chunked")]
    #[case("Content-Length", "5")]
    #[case("Proxy-Authorization", "x")]
    #[case("Proxy-Anything", "x")]
    #[case("TE", "trailers")]
    #[case("Accept-Encoding", "gzip")]
    #[case("Upgrade", "websocket")]
    #[case("X-Gantry-Session", "x")]
    #[case("a b", "x")]
    #[case("", "x")]
    #[case("x:y", "x")]
    #[case("x", "a\r\nHost: b")]
    #[case("x", "a\0")]
    fn headers_of_the_connection_are_refused(#[case] name: &str, #[case] value: &str) {
        assert!(request().header(name, value).is_err());
    }

    #[test]
    fn headers_are_bounded_and_occur_once() {
        let mut request = request();
        request.header("X-A", "1").unwrap();
        assert!(request.header("x-a", "2").is_err());
        assert!(request.header("x-b", &"v".repeat(MAX_HEADER_BYTES)).is_err());
        for n in request.headers.len()..MAX_HEADERS {
            request.header(&format!("x-{n}"), "v").unwrap();
        }
        assert!(request.header("x-more", "v").is_err());
    }

    #[rstest]
    #[case(301, "GET", false)]
    #[case(302, "GET", false)]
    #[case(303, "GET", false)]
    #[case(307, "POST", true)]
    #[case(308, "POST", true)]
    fn a_redirect_keeps_the_method_as_browsers_do(#[case] status: u16, #[case] method: &str, #[case] keeps_body: bool) {
        let mut request = request();
        request.set_body(b"x".to_vec(), "text/plain");
        let next = request.redirected(StatusCode::from_u16(status).unwrap(), "/next").unwrap();
        assert_eq!(
            (next.method.as_str(), next.body.is_some(), next.url.as_str()),
            (method, keeps_body, "https://a.example/next")
        );
        assert_eq!(next.headers.contains_key(CONTENT_TYPE), keeps_body);
    }

    #[rstest]
    #[case("/next", true)]
    #[case("https://a.example/next", true)]
    #[case("https://a.example:444/next", false)]
    #[case("http://a.example/next", false)]
    #[case("//b.example/next", false)]
    fn a_redirect_to_another_origin_drops_credentials(#[case] location: &str, #[case] keeps: bool) {
        let mut request = request();
        for (name, value) in [("Authorization", "x"), ("X-Api-Key", "x"), ("Cookie", "x"), ("Accept", "text/html")] {
            request.header(name, value).unwrap();
        }
        let next = request.redirected(StatusCode::FOUND, location).unwrap();
        assert_eq!(next.headers.len(), if keeps { 4 } else { 1 });
        assert!(next.headers.contains_key(ACCEPT));
    }

    #[rstest]
    #[case("file:///etc/passwd")]
    #[case("https://bob:pw@b.example/")]
    #[case("http://0x7f.1/")]
    #[case("https://")]
    fn a_redirect_to_an_invalid_url_is_refused(#[case] location: &str) {
        let next = request().redirected(StatusCode::FOUND, location);
        // The parser writes addresses in their canonical form when it joins URLs; the address is checked when it is
        // dialled.
        assert!(next.is_err() || next.unwrap().destination().unwrap().to_string() == "127.0.0.1:80");
    }

    proptest! {
        #[test]
        fn the_destination_is_what_the_client_dials(url in "(https?://)?[a-z0-9@:.%\\[\\]/?#\\\\ -]{0,30}") {
            if let Ok(request) = OutboundRequest::new("GET", &url) {
                let destination = request.destination();
                let dialled = (request.url.host_str().map(str::to_owned), request.url.port_or_known_default());
                if let Ok(to) = destination {
                    prop_assert_eq!(dialled, (Some(to.host.to_string()), Some(to.port)));
                }
            }
        }
    }
}
