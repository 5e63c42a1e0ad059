//! Why a model call has no answer. Pure.

use strum::{Display, EnumString, IntoStaticStr, VariantArray};

/// Why an attempt brought no answer. The name is stored with the call and shown to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Display, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum ErrorKind {
    /// The provider sent nothing for too long, or the call took too long.
    Timeout,
    Connect,
    /// The provider failed (5xx).
    Server,
    /// The answer ended before it was complete.
    StreamInterrupted,
    /// The answer does not follow the provider's format.
    InvalidResponse,
    /// Too many requests.
    RateLimited,
    /// The provider's quota or credit is used up.
    Quota,
    /// The key is wrong or lacks a permission.
    Auth,
    /// The model or the address does not exist.
    NotFound,
    /// The provider refuses the request itself.
    BadRequest,
    /// The request exceeds the model's context window.
    ContextLength,
    /// The provider's safety system refuses the text of the request.
    Refused,
    /// The circuit breaker is open.
    CircuitOpen,
    /// The call waited too long for one of the provider's slots.
    QueueTimeout,
    /// The caller no longer wants the answer.
    Aborted,
}

impl ErrorKind {
    /// The name in records and metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// From the name in records.
    pub fn parse(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// The name within a sentence.
    pub fn as_phrase(self) -> &'static str {
        match self {
            Self::RateLimited => "rate limited",
            other => other.as_str(),
        }
    }

    /// Whether the provider refuses the key or the account, so that every other call would fail, too.
    pub(crate) const fn is_account_refused(self) -> bool {
        matches!(self, Self::Auth | Self::Quota)
    }

    /// Whether what was asked for is refused. Otherwise the provider did not answer, whatever it was asked.
    pub(crate) const fn is_request_refused(self) -> bool {
        matches!(self, Self::NotFound | Self::BadRequest | Self::ContextLength | Self::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_names_are_read_again() {
        for kind in ErrorKind::VARIANTS {
            assert_eq!(ErrorKind::parse(kind.as_str()), Some(*kind));
        }
        assert_eq!(ErrorKind::parse("rate limited"), None);
    }
}
