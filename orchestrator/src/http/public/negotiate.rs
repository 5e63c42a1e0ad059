//! What a client would rather have of the two forms a list of events comes in (RFC 9110, 12.5.1). Never refuses: who takes
//! neither gets the page.

use axum::http::{HeaderMap, header};

const STREAM: Form = Form { exact: "text/event-stream", family: "text/*" };
const PAGE: Form = Form { exact: "application/json", family: "application/*" };

struct Form {
    exact: &'static str,
    family: &'static str,
}

/// How much a client wants a form: not at all is 0.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct Wish {
    quality: f32,
    /// Named, not only covered by a star.
    named: bool,
}

/// Whether a stream is wanted; at equal weight it must have been named.
pub(super) fn wants_stream(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges: Vec<(String, f32)> = lists.flat_map(|list| list.split(',')).filter_map(range).collect();
    let (stream, page) = (wish(&ranges, &STREAM), wish(&ranges, &PAGE));
    stream.quality > page.quality || (stream.named && stream.quality > 0.0 && stream.quality >= page.quality)
}

/// The most precise range decides.
fn wish(ranges: &[(String, f32)], form: &Form) -> Wish {
    let best = |name: &str| {
        let of_name = ranges.iter().filter(|(range, _)| range == name).map(|(_, quality)| *quality);
        of_name.reduce(f32::max)
    };
    let named = best(form.exact);
    let quality = named.or_else(|| best(form.family)).or_else(|| best("*/*")).unwrap_or(0.0);
    Wish { quality, named: named.is_some() }
}

/// One range and its weight; none when the weight makes no sense.
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

    #[test]
    fn several_headers_are_one_list_and_none_is_a_page() {
        let mut headers = HeaderMap::new();
        assert!(!wants_stream(&headers));
        headers.append(header::ACCEPT, HeaderValue::from_static("application/json;q=0.1"));
        headers.append(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        assert!(wants_stream(&headers));
    }
}
