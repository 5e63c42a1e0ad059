//! The hosts that a job asks for, held to what the operator allows.
//!
//! Never decides about a connection: the egress policy does, when it is made.

use domain::request::{Accepted, Rejected};
use egress::{EgressPolicy, HostPattern};
use protocol::{Egress, FieldError};

/// Maximum number of entries: each is compared for every connection.
const MAX_ENTRIES: usize = 64;
/// Maximum length of an entry: a name has at most 253 characters.
const MAX_ENTRY_BYTES: usize = 300;

/// Checks the list of a request.
pub(super) fn check(egress: Option<&Egress>, policy: &EgressPolicy) -> Result<(), Rejected> {
    let allow = egress.map(|egress| egress.allow.as_slice()).unwrap_or_default();
    let error = |field: String, message: &str| FieldError { field, message: message.to_owned() };
    if !allow.is_empty() && policy.is_empty() {
        let message = "is not available: the operator allows no host (GANTRY_EGRESS_CEILING)";
        return Err(Rejected::NotAvailable(vec![error("egress.allow".to_owned(), message)]));
    }
    if allow.len() > MAX_ENTRIES {
        let message = format!("must have at most {MAX_ENTRIES} hosts");
        return Err(Rejected::Invalid(vec![error("egress.allow".to_owned(), &message)]));
    }
    let check = |(index, entry): (usize, &String)| {
        let message = entry_error(entry, policy)?;
        Some(error(format!("egress.allow[{index}]"), &message))
    };
    let errors: Vec<_> = allow.iter().enumerate().filter_map(check).collect();
    if errors.is_empty() { Ok(()) } else { Err(Rejected::Invalid(errors)) }
}

fn entry_error(entry: &str, policy: &EgressPolicy) -> Option<String> {
    if entry.len() > MAX_ENTRY_BYTES {
        return Some(format!("must be at most {MAX_ENTRY_BYTES} bytes"));
    }
    match HostPattern::of_job(entry) {
        Ok(pattern) if policy.contains(&pattern) => None,
        Ok(pattern) => Some(format!("{pattern} is not allowed by the operator (GANTRY_EGRESS_CEILING)")),
        Err(error) => Some(error.to_string()),
    }
}

/// The request's errors of both kinds of checks, all at once.
pub(super) fn merge(accepted: Result<Accepted, Rejected>, egress: Result<(), Rejected>) -> Result<Accepted, Rejected> {
    match (accepted, egress) {
        (Err(Rejected::Invalid(mut errors)), Err(Rejected::Invalid(others))) => {
            errors.extend(others);
            Err(Rejected::Invalid(errors))
        }
        (Err(Rejected::NotAvailable(mut errors)), Err(Rejected::NotAvailable(others))) => {
            errors.extend(others);
            Err(Rejected::NotAvailable(errors))
        }
        (Err(rejected @ Rejected::NotAvailable(_)), _) | (_, Err(rejected)) | (Err(rejected), Ok(())) => Err(rejected),
        (Ok(accepted), Ok(())) => Ok(accepted),
    }
}

/// The list of an earlier job without what the operator no longer allows, and those entries.
pub(super) fn restrict(earlier: Option<&Egress>, policy: &EgressPolicy) -> (Option<Egress>, Vec<String>) {
    let Some(egress) = earlier else { return (None, Vec::new()) };
    let (allow, removed) = egress.allow.iter().cloned().partition(|entry| entry_error(entry, policy).is_none());
    (Some(Egress { allow, ..egress.clone() }), removed)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn policy(ceiling: &[&str]) -> EgressPolicy {
        let ceiling: Vec<String> = ceiling.iter().map(|entry| (*entry).to_owned()).collect();
        EgressPolicy::new(&ceiling, vec![]).unwrap()
    }

    fn egress(allow: &[&str]) -> Egress {
        Egress { allow: allow.iter().map(|entry| (*entry).to_owned()).collect(), inject: vec![] }
    }

    #[rstest]
    #[case(&[], None)]
    #[case(&["a.example", "b.c.example:443"], None)]
    #[case(&["*.c.example"], None)]
    #[case(&["a.example:80"], Some("a.example:80 is not allowed"))]
    #[case(&["*.example"], Some("is not allowed"))]
    #[case(&["*"], Some("name the hosts"))]
    #[case(&["https://a.example"], Some("port must be"))]
    #[case(&["127.0.0.1:443"], Some("is not allowed"))]
    fn entries_are_held_to_the_ceiling(#[case] allow: &[&str], #[case] expected: Option<&str>) {
        let checked = check(Some(&egress(allow)), &policy(&["a.example", "*.c.example"]));
        match (checked, expected) {
            (Ok(()), None) => {}
            (Err(Rejected::Invalid(errors)), Some(expected)) => {
                assert_eq!(errors[0].field, "egress.allow[0]");
                assert!(errors[0].message.contains(expected), "{errors:?}");
            }
            (checked, _) => panic!("{checked:?}"),
        }
    }

    #[test]
    fn lists_are_bounded_and_need_a_ceiling() {
        let many = egress(&["a.example"; MAX_ENTRIES + 1]);
        assert!(matches!(check(Some(&many), &policy(&["*"])), Err(Rejected::Invalid(_))));
        let long = egress(&["a".repeat(MAX_ENTRY_BYTES + 1).as_str()]);
        assert!(matches!(check(Some(&long), &policy(&["*"])), Err(Rejected::Invalid(_))));
        assert!(matches!(check(Some(&egress(&["a.example"])), &policy(&[])), Err(Rejected::NotAvailable(_))));
        assert_eq!(check(Some(&egress(&[])), &policy(&[])), Ok(()));
        assert_eq!(check(None, &policy(&[])), Ok(()));
    }

    #[test]
    fn a_restart_keeps_what_is_still_allowed() {
        let (kept, removed) = restrict(Some(&egress(&["a.example", "b.example"])), &policy(&["b.example"]));
        assert_eq!((kept, removed), (Some(egress(&["b.example"])), vec!["a.example".to_owned()]));
        assert_eq!(restrict(None, &policy(&[])), (None, vec![]));
    }
}
