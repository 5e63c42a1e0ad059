//! The condition of a change: the version that the caller has seen.

/// The value of an `If-Match` header (RFC 9110): the change is made only if the object has one of these versions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExpectedVersion {
    /// `*`: any version, but the object must exist.
    Any,
    OneOf(Vec<u64>),
}

impl ExpectedVersion {
    /// Parses `*`, or versions separated by commas, each as in `ETag` or without its quotes. A weak tag matches no
    /// version.
    pub fn parse(header: &str) -> Result<Self, &'static str> {
        if header.trim() == "*" {
            return Ok(Self::Any);
        }
        let mut versions = vec![];
        for tag in header.split(',').map(str::trim) {
            let (is_weak, tag) = tag.strip_prefix("W/").map_or((false, tag), |tag| (true, tag));
            let tag = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag);
            let version = tag.bytes().all(|byte| byte.is_ascii_digit()).then(|| tag.parse().ok()).flatten();
            let version = version.ok_or("must be the version from ETag, such as \"3\", or *")?;
            if !is_weak {
                versions.push(version);
            }
        }
        Ok(Self::OneOf(versions))
    }

    /// Whether an object with this current version, or a missing one, may be changed.
    pub fn allows(&self, current: Option<u64>) -> bool {
        match (self, current) {
            (_, None) => false,
            (Self::Any, Some(_)) => true,
            (Self::OneOf(versions), Some(current)) => versions.contains(&current),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("*", Some(1), true)]
    #[case("*", None, false)]
    #[case("\"3\"", Some(3), true)]
    #[case("\"3\"", Some(4), false)]
    #[case("\"3\"", None, false)]
    #[case("3", Some(3), true)]
    #[case("\"2\", \"3\"", Some(3), true)]
    #[case("W/\"3\"", Some(3), false)]
    fn only_an_expected_version_is_changed(#[case] header: &str, #[case] current: Option<u64>, #[case] allowed: bool) {
        assert_eq!(ExpectedVersion::parse(header).unwrap().allows(current), allowed);
    }

    #[rstest]
    #[case("")]
    #[case("\"\"")]
    #[case("\"abc\"")]
    #[case("+3")]
    #[case("3,")]
    #[case("\"99999999999999999999999\"")]
    fn another_header_is_malformed(#[case] header: &str) {
        assert!(ExpectedVersion::parse(header).is_err());
    }
}
