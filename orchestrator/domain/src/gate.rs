//! Gates: who may resolve one, and what a decision means. Pure.

use base::digest::sha256_hex;
use chrono::{DateTime, TimeDelta, Utc};
use protocol::{Gate, GateDecision, GateScope, GateState, ResolveGate};
use serde_json::Value;

/// How long a gate waits for an answer.
pub const LIFETIME: TimeDelta = TimeDelta::hours(24);
/// Maximum size of the reason for a decision, which becomes part of the model's context.
pub const MAX_REASON_BYTES: usize = 4 * 1024;

/// The user who resolves a gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateResolver {
    pub user: String,
    /// Whether the user sees the gates of all users.
    pub is_admin: bool,
}

/// Why a gate is not resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GateRefused {
    /// The gate is another user's.
    #[error("the gate belongs to another user")]
    NotOwner,
    /// The gate is another user's, which an admin can only deny.
    #[error("only the thread's owner can approve a call; an admin can deny it")]
    DenyOnly,
    /// The gate is resolved already.
    #[error("the gate is resolved already")]
    Resolved,
    #[error("the gate has expired")]
    Expired,
    /// The parameters are not those that the caller has decided about.
    #[error("the call has other parameters than those of the given digest; read the gate again")]
    DigestMismatch,
}

/// What a decision changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resolution {
    /// The gate's new state.
    pub state: GateState,
    /// For what the decision is to be remembered, if for anything.
    pub remember: Option<GateScope>,
}

/// Decides about an answer to a gate.
pub fn resolve(
    gate: &Gate,
    by: &GateResolver,
    request: &ResolveGate,
    now: DateTime<Utc>,
) -> Result<Resolution, GateRefused> {
    let is_owner = gate.user_id == by.user;
    if !is_owner && !by.is_admin {
        return Err(GateRefused::NotOwner);
    }
    if !is_owner && request.decision != GateDecision::Deny {
        return Err(GateRefused::DenyOnly);
    }
    match gate.state {
        GateState::Pending if now >= gate.expires_at => return Err(GateRefused::Expired),
        GateState::Pending => {}
        GateState::Expired => return Err(GateRefused::Expired),
        GateState::Approved | GateState::Denied => return Err(GateRefused::Resolved),
    }
    if request.parameters_digest.as_ref().is_some_and(|digest| *digest != gate.parameters_digest) {
        return Err(GateRefused::DigestMismatch);
    }
    let remember = || gate.can_be_remembered.then(|| request.scope.unwrap_or_default());
    Ok(match request.decision {
        GateDecision::Approve => Resolution { state: GateState::Approved, remember: None },
        GateDecision::Deny => Resolution { state: GateState::Denied, remember: None },
        GateDecision::Always => Resolution { state: GateState::Approved, remember: remember() },
    })
}

/// The digest of a call's arguments: SHA-256 of their JSON without spaces and with the keys of all objects sorted.
pub fn parameters_digest(arguments: &Value) -> String {
    let mut sorted = arguments.clone();
    sorted.sort_all_objects();
    sha256_hex(sorted.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use protocol::{GateId, GateKind, ThreadId};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn gate(state: GateState) -> Gate {
        Gate {
            id: GateId::nil(),
            kind: GateKind::Approval,
            state,
            thread_id: ThreadId::nil(),
            user_id: "ada".to_owned(),
            call_id: None,
            tool: "http".to_owned(),
            parameters: json!({}),
            parameters_digest: "d".to_owned(),
            reasoning: String::new(),
            can_be_remembered: true,
            created_at: DateTime::UNIX_EPOCH,
            expires_at: DateTime::UNIX_EPOCH + LIFETIME,
            resolved_at: None,
            resolved_by: None,
            decision: None,
            reason: None,
        }
    }

    fn request(decision: GateDecision) -> ResolveGate {
        ResolveGate { decision, reason: None, scope: None, parameters_digest: None }
    }

    fn by(user: &str, is_admin: bool) -> GateResolver {
        GateResolver { user: user.to_owned(), is_admin }
    }

    #[rstest]
    #[case::owner("ada", false, [Ok(GateState::Approved), Ok(GateState::Denied), Ok(GateState::Approved)])]
    #[case::owner_who_is_admin("ada", true, [Ok(GateState::Approved), Ok(GateState::Denied), Ok(GateState::Approved)])]
    #[case::admin("root", true, [Err(GateRefused::DenyOnly), Ok(GateState::Denied), Err(GateRefused::DenyOnly)])]
    #[case::other("bob", false, [Err(GateRefused::NotOwner), Err(GateRefused::NotOwner), Err(GateRefused::NotOwner)])]
    fn who_may_decide(
        #[case] user: &str,
        #[case] is_admin: bool,
        #[case] expected: [Result<GateState, GateRefused>; 3],
    ) {
        let decisions = [GateDecision::Approve, GateDecision::Deny, GateDecision::Always];
        let decided = decisions.map(|decision| {
            let pending = gate(GateState::Pending);
            resolve(&pending, &by(user, is_admin), &request(decision), DateTime::UNIX_EPOCH).map(|done| done.state)
        });
        assert_eq!(decided, expected);
    }

    #[rstest]
    #[case(GateState::Pending, 0, Ok(GateState::Approved))]
    #[case(GateState::Pending, 24 * 3_600 - 1, Ok(GateState::Approved))]
    #[case(GateState::Pending, 24 * 3_600, Err(GateRefused::Expired))]
    #[case(GateState::Expired, 0, Err(GateRefused::Expired))]
    #[case(GateState::Approved, 0, Err(GateRefused::Resolved))]
    #[case(GateState::Denied, 24 * 3_600, Err(GateRefused::Resolved))]
    fn a_gate_is_resolved_once_and_in_time(
        #[case] state: GateState,
        #[case] seconds: i64,
        #[case] expected: Result<GateState, GateRefused>,
    ) {
        let now = DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds);
        let decided = resolve(&gate(state), &by("ada", false), &request(GateDecision::Approve), now);
        assert_eq!(decided.map(|done| done.state), expected);
    }

    #[rstest]
    #[case(None, Ok(GateState::Approved))]
    #[case(Some("d"), Ok(GateState::Approved))]
    #[case(Some("e"), Err(GateRefused::DigestMismatch))]
    #[case(Some(""), Err(GateRefused::DigestMismatch))]
    fn a_digest_that_is_given_must_be_that_of_the_call(
        #[case] digest: Option<&str>,
        #[case] expected: Result<GateState, GateRefused>,
    ) {
        let given = ResolveGate { parameters_digest: digest.map(str::to_owned), ..request(GateDecision::Approve) };
        let decided = resolve(&gate(GateState::Pending), &by("ada", false), &given, DateTime::UNIX_EPOCH);
        assert_eq!(decided.map(|done| done.state), expected);
    }

    #[rstest]
    #[case(GateDecision::Always, None, true, Some(GateScope::Thread))]
    #[case(GateDecision::Always, Some(GateScope::User), true, Some(GateScope::User))]
    #[case(GateDecision::Always, Some(GateScope::User), false, None)]
    #[case(GateDecision::Approve, Some(GateScope::User), true, None)]
    #[case(GateDecision::Deny, None, true, None)]
    fn only_always_is_remembered_and_only_where_it_can_be(
        #[case] decision: GateDecision,
        #[case] scope: Option<GateScope>,
        #[case] can_be_remembered: bool,
        #[case] expected: Option<GateScope>,
    ) {
        let pending = Gate { can_be_remembered, ..gate(GateState::Pending) };
        let given = ResolveGate { scope, ..request(decision) };
        let decided = resolve(&pending, &by("ada", false), &given, DateTime::UNIX_EPOCH).unwrap();
        assert_eq!(decided.remember, expected);
    }

    #[test]
    fn a_digest_does_not_depend_on_the_order_of_keys() {
        let digest = |text: &str| parameters_digest(&serde_json::from_str(text).unwrap());
        assert_eq!(digest(r#"{"b": {"y": 1, "x": [1, 2]}, "a": "c"}"#), digest(r#"{"a":"c","b":{"x":[1,2],"y":1}}"#));
        assert_eq!(digest("{}"), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
        for other in [r#"{"a":"c","b":{"x":[2,1],"y":1}}"#, r#"{"a":"C","b":{"x":[1,2],"y":1}}"#, "null"] {
            assert_ne!(digest(other), digest(r#"{"a":"c","b":{"x":[1,2],"y":1}}"#));
        }
    }
}
