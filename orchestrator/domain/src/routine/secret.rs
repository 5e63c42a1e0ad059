//! The secrets of a routine, and the names under which they are stored with their owner's secrets.
//!
//! The names contain `/`, which users' names cannot, so that no request can name, read or replace them.

use protocol::RoutineId;

/// What every name begins with.
pub(crate) const PREFIX: &str = "routine/";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutineSecret {
    /// The key of the signatures of its webhook.
    Webhook,
    /// The key of the signatures of its notifications.
    Notify,
}

impl RoutineSecret {
    /// The name under which it is stored.
    pub fn name(self, routine: RoutineId) -> String {
        let part = match self {
            Self::Webhook => "webhook",
            Self::Notify => "notify",
        };
        format!("{PREFIX}{routine}/{part}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_can_name_one() {
        for secret in [RoutineSecret::Webhook, RoutineSecret::Notify] {
            assert!(!protocol::is_secret_name(&secret.name(RoutineId::generate())));
        }
    }
}
