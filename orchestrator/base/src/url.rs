//! Masks secrets in URLs for display.
//!
//! Never parses strictly: an invalid URL may contain a secret too.

/// Replaces masked parts.
const MASK: &str = "********";

/// Masks the user information, query values and fragment of every URL in `text`.
///
/// The text may contain several URLs, separated by commas or spaces.
pub fn mask_urls(text: &str) -> String {
    let mut masked = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + "://".len());
        masked.push_str(before);
        let end = after.find([',', ' ', '\t', '\n', '\r', '"', '\'', '<', '>', ')', ']']).unwrap_or(after.len());
        // Brackets belong to an IPv6 address.
        let end = if after.starts_with('[') || after[..end].contains("@[") { end_of_bracketed(after) } else { end };
        masked.push_str(&mask_after_scheme(&after[..end]));
        rest = &after[end..];
    }
    // `sqlite:file?option` has no slashes.
    match rest.split_once('?') {
        Some((start, query)) if rest.starts_with("sqlite:") => {
            masked.push_str(start);
            masked.push('?');
            masked.push_str(&mask_query(query));
        }
        _ => masked.push_str(rest),
    }
    masked
}

fn end_of_bracketed(text: &str) -> usize {
    let close = text.find(']').map_or(text.len(), |at| at + 1);
    text[close..].find([',', ' ', '\t', '\n', '\r', '"', '\'', '<', '>', ')']).map_or(text.len(), |at| close + at)
}

/// Masks the part after `scheme://`.
fn mask_after_scheme(text: &str) -> String {
    let (before_query, query) = match text.split_once(['?', '#']) {
        Some((before, query)) => (before, Some((&text[before.len()..=before.len()], query))),
        None => (text, None),
    };
    let authority = before_query.split('/').next().unwrap_or_default();
    let host = match authority.rsplit_once('@') {
        Some((_, host)) => format!("{MASK}@{host}{}", &before_query[authority.len()..]),
        // An unencoded slash in a password ends the authority too early, which leaves a port that is not a number.
        None if has_odd_port(authority) => match before_query.rsplit_once('@') {
            Some((_, host)) => format!("{MASK}@{host}"),
            None => before_query.to_owned(),
        },
        None => before_query.to_owned(),
    };
    match query {
        // `?` and `#` may also occur in a password that was not percent-encoded.
        Some((_, query)) if query.contains('@') && !authority.contains('@') && has_odd_port(authority) => {
            let host = query.rsplit_once('@').map_or("", |(_, host)| host);
            format!("{MASK}@{}", mask_after_scheme(host))
        }
        Some(("#", _)) => format!("{host}#{MASK}"),
        Some((_, query)) => format!("{host}?{}", mask_query(query)),
        None => host,
    }
}

fn has_odd_port(authority: &str) -> bool {
    !authority.ends_with(']')
        && authority.rsplit_once(':').is_some_and(|(_, port)| port.is_empty() || port.parse::<u16>().is_err())
}

/// Masks query values. Names are kept; a value without a name is masked because it may be the secret itself.
fn mask_query(query: &str) -> String {
    let query = query.split('#').next().unwrap_or_default();
    let mask = |pair: &str| match pair.split_once('=') {
        Some((name, _)) => format!("{name}={MASK}"),
        None if pair.is_empty() => String::new(),
        None => MASK.to_owned(),
    };
    query.split('&').map(mask).collect::<Vec<_>>().join("&")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1")]
    #[case("http://bob:hunter2@127.0.0.1:9/v1?key=abc", "http://********@127.0.0.1:9/v1?key=********")]
    #[case("https://token@host", "https://********@host")]
    #[case("https://host/v1?api-key=a&b=c#d", "https://host/v1?api-key=********&b=********")]
    #[case("https://host?secret", "https://host?********")]
    #[case("https://host/#secret", "https://host/#********")]
    #[case("https://host/@scope/x", "https://host/@scope/x")]
    #[case("https://u:p@ss@host/x", "https://********@host/x")]
    #[case("https://u:p/ss@host/x", "https://********@host/x")]
    #[case("https://u:p?ss@host/x?k=v", "https://********@host/x?k=********")]
    #[case("http://[::1]:80/x?k=v", "http://[::1]:80/x?k=********")]
    #[case("http://u:p@[::1]:80/x?k=v", "http://********@[::1]:80/x?k=********")]
    #[case("postgres://u:p@h/db?sslmode=require", "postgres://********@h/db?sslmode=********")]
    #[case("sqlite:///var/lib/gantry/gantry.db", "sqlite:///var/lib/gantry/gantry.db")]
    #[case("sqlite:gantry.db?mode=rwc", "sqlite:gantry.db?mode=********")]
    #[case("unix:///var/run/docker.sock", "unix:///var/run/docker.sock")]
    #[case("a,https://u:p@h:1/x,b", "a,https://********@h:1/x,b")]
    #[case("no route to (http://h/x?key=k): refused", "no route to (http://h/x?key=********): refused")]
    #[case("what? no URL @ all", "what? no URL @ all")]
    #[case("", "")]
    fn possible_secrets_are_masked(#[case] text: &str, #[case] masked: &str) {
        assert_eq!(mask_urls(text), masked);
        assert_eq!(mask_urls(masked), masked, "once is enough");
    }
}
