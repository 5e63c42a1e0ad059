//! Entity tags: what a client has already.

use axum::http::{HeaderMap, HeaderValue, header};

/// Whether `If-None-Match` names a tag, compared weakly: the client has the content.
pub(in crate::public) fn is_known(headers: &HeaderMap, etag: &HeaderValue) -> bool {
    let strong = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let wanted = strong(etag.to_str().unwrap_or_default());
    let lists = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|tag| tag.trim() == "*" || strong(tag) == wanted)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("W/\"a\"", true)]
    #[case("\"a\"", true)]
    #[case("\"b\", W/\"a\"", true)]
    #[case("*", true)]
    #[case("\"b\"", false)]
    fn a_tag_is_compared_weakly(#[case] given: &str, #[case] same: bool) {
        let etag = HeaderValue::from_static("W/\"a\"");
        let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_str(given).unwrap())]);
        assert_eq!(is_known(&headers, &etag), same);
        assert!(!is_known(&HeaderMap::new(), &etag));
    }
}
