//! The cookie of a browser's session, and whether a request that carries it comes from this server's own pages. Pure.
//!
//! A browser sends the cookie with requests of any page, and to every port of the host. So it counts only for this
//! server's own pages, and changes must name the session's key, which only those can read.

use axum::http::{HeaderMap, Method, header};
use protocol::InstanceId;

/// The header with the session's key, which requests that may change something must have.
pub(in crate::public) const KEY_HEADER: &str = "x-gantry-key";
/// Sent by browsers, except to other hosts than localhost over plain HTTP.
const FETCH_SITE: &str = "sec-fetch-site";
/// Browsers take a cookie with this prefix over HTTPS only, for this host and all of its paths only.
const HOST_PREFIX: &str = "__Host-";

/// How a cookie was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::public) enum CookieKind {
    /// Over HTTPS: browsers send it over HTTPS only, and to this host only.
    Secure,
    /// Over plain HTTP.
    Plain,
}

impl CookieKind {
    /// For the page that sent these headers with a change. A proxy may have ended TLS, so the page's address decides.
    pub(in crate::public) fn of_page(headers: &HeaderMap) -> Self {
        let origin = text(headers, header::ORIGIN.as_str());
        if origin.is_some_and(|origin| origin.starts_with("https://")) { Self::Secure } else { Self::Plain }
    }
}

/// Names of the cookie. Those of two installations on one host differ.
#[derive(Debug, Clone)]
pub(in crate::public) struct SessionCookie {
    name: String,
}

impl SessionCookie {
    pub(in crate::public) fn new(instance: InstanceId) -> Self {
        let instance = instance.to_string();
        let digits: String = instance.chars().filter(char::is_ascii_hexdigit).collect();
        // The end is random, the beginning a time.
        Self { name: format!("gantry_{}", &digits[digits.len() - 8..]) }
    }

    /// The values in a request's cookies. A page of another port can set some too, so there may be several.
    pub(in crate::public) fn values<'h>(&self, headers: &'h HeaderMap) -> impl Iterator<Item = (CookieKind, &'h str)> {
        let lists = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let cookies = lists.flat_map(|list| list.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
        cookies.filter_map(|(name, value)| match name.strip_prefix(HOST_PREFIX) {
            Some(name) => (name == self.name).then_some((CookieKind::Secure, value)),
            None => (name == self.name).then_some((CookieKind::Plain, value)),
        })
    }

    /// `Set-Cookie` with a value for so many seconds; 0 removes it.
    pub(in crate::public) fn set(&self, value: &str, seconds: i64, kind: CookieKind) -> String {
        let (prefix, secure) = match kind {
            CookieKind::Secure => (HOST_PREFIX, "; Secure"),
            CookieKind::Plain => ("", ""),
        };
        format!("{prefix}{}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}", self.name)
    }
}

/// Whether a method changes nothing.
pub(in crate::public) fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Whether the cookie of a request counts. `Host` was compared with the allowed ones before.
pub(in crate::public) fn is_same_origin(method: &Method, headers: &HeaderMap) -> bool {
    match text(headers, FETCH_SITE) {
        Some("same-origin") => true,
        // A person typed the address.
        Some("none") => is_safe(method),
        Some(_) => false,
        None => is_safe(method) || names_host(headers),
    }
}

fn names_host(headers: &HeaderMap) -> bool {
    let origin = text(headers, header::ORIGIN.as_str());
    let host = origin.and_then(|origin| origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")));
    host.is_some() && host == text(headers, header::HOST.as_str())
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use rstest::rstest;

    use super::*;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let field = |(name, value): &(&str, &str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        };
        fields.iter().map(field).collect()
    }

    #[rstest]
    #[case::own_page(Method::POST, &[("sec-fetch-site", "same-origin")], true)]
    #[case::own_page_reads(Method::GET, &[("sec-fetch-site", "same-origin")], true)]
    #[case::address_bar(Method::GET, &[("sec-fetch-site", "none")], true)]
    #[case::typed_change(Method::POST, &[("sec-fetch-site", "none")], false)]
    #[case::other_port(Method::GET, &[("sec-fetch-site", "same-site")], false)]
    #[case::other_site(Method::GET, &[("sec-fetch-site", "cross-site")], false)]
    #[case::old_browser_reads(Method::GET, &[], true)]
    #[case::old_browser_changes(Method::POST, &[], false)]
    #[case::lan(Method::POST, &[("origin", "http://box:8080"), ("host", "box:8080")], true)]
    #[case::lan_other_port(Method::POST, &[("origin", "http://box:3000"), ("host", "box:8080")], false)]
    #[case::sandboxed_frame(Method::POST, &[("origin", "null"), ("host", "box:8080")], false)]
    #[case::other_site_with_own_origin(
        Method::POST, &[("sec-fetch-site", "cross-site"), ("origin", "http://box"), ("host", "box")], false)]
    fn a_cookie_counts_on_own_pages(#[case] method: Method, #[case] fields: &[(&str, &str)], #[case] counts: bool) {
        assert_eq!(is_same_origin(&method, &headers(fields)), counts);
    }

    fn cookie() -> SessionCookie {
        SessionCookie { name: "gantry_0123abcd".to_owned() }
    }

    #[rstest]
    #[case::alone("gantry_0123abcd=a", &[(CookieKind::Plain, "a")])]
    #[case::among_others("x=1; gantry_0123abcd=a.b=; y=2", &[(CookieKind::Plain, "a.b=")])]
    #[case::two(
        "gantry_0123abcd=planted; __Host-gantry_0123abcd=a",
        &[(CookieKind::Plain, "planted"), (CookieKind::Secure, "a")])]
    #[case::of_another_installation("gantry_99999999=a", &[])]
    #[case::nothing("", &[])]
    fn reads_its_cookies(#[case] cookies: &str, #[case] values: &[(CookieKind, &str)]) {
        let headers = headers(&[("cookie", cookies)]);
        assert_eq!(cookie().values(&headers).collect::<Vec<_>>(), values);
    }

    #[rstest]
    #[case("http://127.0.0.1:8080", "gantry_0123abcd=a; Path=/; Max-Age=9; HttpOnly; SameSite=Strict")]
    #[case("https://gantry.example", "__Host-gantry_0123abcd=a; Path=/; Max-Age=9; HttpOnly; SameSite=Strict; Secure")]
    fn sets_its_cookie(#[case] origin: &str, #[case] expected: &str) {
        let kind = CookieKind::of_page(&headers(&[("origin", origin)]));
        assert_eq!(cookie().set("a", 9, kind), expected);
    }
}
