//! Content negotiation (RFC 9110, 12.5.1): a page of events or a stream, HTML or JSON. A client that accepts neither gets the
//! endpoint's default.

use axum::http::{HeaderMap, header};

const STREAM: MediaType = MediaType { exact: "text/event-stream", family: "text/*" };
const PAGE: MediaType = MediaType { exact: "application/json", family: "application/*" };
const HTML: MediaType = MediaType { exact: "text/html", family: "text/*" };

struct MediaType {
    exact: &'static str,
    family: &'static str,
}

/// The weight of a media type; 0 is not acceptable.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct Preference {
    quality: f32,
    /// Named exactly, not only matched by a wildcard.
    named: bool,
}

/// Whether the client prefers a stream; at equal weight it must be named exactly.
pub(in crate::public) fn wants_stream(headers: &HeaderMap) -> bool {
    let (stream, page) = preferences(headers);
    stream.quality > page.quality || (stream.named && stream.quality > 0.0 && stream.quality >= page.quality)
}

/// Whether the client prefers a page where a stream is the default; at equal weight the page alone must be named exactly.
pub(in crate::public) fn wants_page(headers: &HeaderMap) -> bool {
    let (stream, page) = preferences(headers);
    page.quality > stream.quality
        || (page.named && !stream.named && page.quality > 0.0 && page.quality >= stream.quality)
}

/// Whether the client accepts HTML at least as much as JSON.
pub(in crate::public) fn wants_html(headers: &HeaderMap) -> bool {
    let ranges = ranges(headers);
    preference(&ranges, &HTML).quality >= preference(&ranges, &PAGE).quality
}

/// Whether the client names HTML and accepts it at least as much as JSON, as browsers do for pages. Others shall get an
/// error for a path that does not exist.
pub(in crate::public) fn names_html(headers: &HeaderMap) -> bool {
    let ranges = ranges(headers);
    let html = preference(&ranges, &HTML);
    html.named && html.quality > 0.0 && html.quality >= preference(&ranges, &PAGE).quality
}

/// The weights of a stream and of a page.
fn preferences(headers: &HeaderMap) -> (Preference, Preference) {
    let ranges = ranges(headers);
    (preference(&ranges, &STREAM), preference(&ranges, &PAGE))
}

/// The ranges that the client accepts, with their weights.
fn ranges(headers: &HeaderMap) -> Vec<(String, f32)> {
    let lists = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).filter_map(range).collect()
}

/// The most specific range applies.
fn preference(ranges: &[(String, f32)], media_type: &MediaType) -> Preference {
    let best = |name: &str| {
        let of_name = ranges.iter().filter(|(range, _)| range == name).map(|(_, quality)| *quality);
        of_name.reduce(f32::max)
    };
    let named = best(media_type.exact);
    let quality = named.or_else(|| best(media_type.family)).or_else(|| best("*/*")).unwrap_or(0.0);
    Preference { quality, named: named.is_some() }
}

/// A range and its weight; none when the weight is invalid.
fn range(text: &str) -> Option<(String, f32)> {
    let mut parts = text.split(';').map(str::trim);
    let name = parts.next()?.to_ascii_lowercase();
    let weight = parts.find_map(|parameter| {
        let (key, value) = parameter.split_once('=')?;
        key.trim().eq_ignore_ascii_case("q").then(|| value.trim())
    });
    let quality = match weight {
        Some(text) => text.parse().ok().filter(|quality| (0.0..=1.0).contains(quality))?,
        None => 1.0,
    };
    Some((name, quality))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("text/event-stream", true)]
    #[case("Text/Event-Stream ; charset=utf-8", true)]
    #[case("text/event-stream;q=0", false)]
    #[case("text/event-stream; Q=0.000, */*", false)]
    #[case("text/event-stream;q=0.1", true)]
    #[case("text/event-stream, application/json", true)]
    #[case("application/json, text/event-stream;q=0.9", false)]
    #[case("application/json;q=0.5, text/event-stream;q=0.9", true)]
    #[case("text/event-stream, */*", true)]
    #[case("text/event-stream;q=0.5, */*", false)]
    #[case("text/*", true)]
    #[case("text/event-stream;q=0, text/*", false)]
    #[case("*/*", false)]
    #[case("text/html", false)]
    #[case("text/event-stream;q=2", false)]
    #[case("text/event-stream;q=x", false)]
    #[case("", false)]
    fn the_weights_decide(#[case] accept: &'static str, #[case] stream: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        assert_eq!(wants_stream(&headers), stream);
    }

    #[rstest]
    #[case("application/json", true)]
    #[case("application/json, */*", true)]
    #[case("application/json, text/event-stream;q=0.5", true)]
    #[case("application/json;q=0.5, text/event-stream", false)]
    #[case("application/json, text/event-stream", false)]
    #[case("*/*", false)]
    #[case("text/html", false)]
    #[case("application/json;q=0", false)]
    #[case("", false)]
    fn a_page_must_be_asked_for_where_a_stream_is_the_default(#[case] accept: &'static str, #[case] page: bool) {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        assert_eq!(wants_page(&headers), page);
    }

    #[rstest]
    #[case("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true)]
    #[case("*/*", true)]
    #[case("application/json", false)]
    #[case("application/json, */*;q=0.5", false)]
    #[case("application/json, text/html;q=0.9", false)]
    fn html_must_be_accepted_as_much_as_json(#[case] accept: &'static str, #[case] html: bool) {
        let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
        assert_eq!(wants_html(&headers), html);
        assert!(wants_html(&HeaderMap::new()), "a client that names nothing");
        assert_eq!(names_html(&headers), html && accept.contains("text/html"));
        assert!(!names_html(&HeaderMap::new()), "a client that names nothing");
    }

    #[test]
    fn several_headers_are_one_list_and_none_is_a_page() {
        let mut headers = HeaderMap::new();
        assert!(!wants_stream(&headers));
        headers.append(header::ACCEPT, HeaderValue::from_static("application/json;q=0.1"));
        headers.append(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        assert!(wants_stream(&headers));
    }
}
