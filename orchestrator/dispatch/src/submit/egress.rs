//! The hosts that a job asks for, held to what the operator allows.
//!
//! Never decides about a connection: the egress policy does, when it is made.

use domain::request::{Accepted, Rejected};
use egress::{EgressPolicy, HostPattern, Presets};
use protocol::{Egress, FieldError};

/// Maximum number of entries: each is compared for every connection.
const MAX_ENTRIES: usize = 64;
/// Maximum length of an entry: a name has at most 253 characters.
const MAX_ENTRY_BYTES: usize = 300;

/// Why an entry is not accepted.
enum EntryError {
    Invalid(String),
    PresetUnknown(String),
}

/// Checks the list of a request. Returns its hosts if it has presets.
pub(super) fn check(egress: Option<&Egress>, policy: &EgressPolicy) -> Result<Option<Vec<String>>, Rejected> {
    let allow = egress.map(|egress| egress.allow.as_slice()).unwrap_or_default();
    let error = |field: String, message: &str| FieldError { field, message: message.to_owned() };
    let of_list = |message: &str| vec![error("egress.allow".to_owned(), message)];
    if !allow.is_empty() && policy.is_empty() {
        let message = "is not available: the operator allows no host (GANTRY_EGRESS_CEILING)";
        return Err(Rejected::NotAvailable(of_list(message)));
    }
    if allow.len() > MAX_ENTRIES {
        return Err(Rejected::Invalid(of_list(&format!("must have at most {MAX_ENTRIES} hosts"))));
    }
    let (mut errors, mut unknown) = (Vec::new(), true);
    for (index, entry) in allow.iter().enumerate() {
        let Err(failed) = hosts_of(entry, policy) else { continue };
        unknown &= matches!(failed, EntryError::PresetUnknown(_));
        let (EntryError::Invalid(message) | EntryError::PresetUnknown(message)) = failed;
        errors.push(error(format!("egress.allow[{index}]"), &message));
    }
    if !errors.is_empty() {
        return Err(if unknown { Rejected::PresetUnknown(errors) } else { Rejected::Invalid(errors) });
    }
    let hosts = expanded(allow, policy);
    let count = hosts.as_ref().map_or(0, Vec::len);
    if count > MAX_ENTRIES {
        let message = format!("has {count} hosts with those of its presets; at most {MAX_ENTRIES} are possible");
        return Err(Rejected::Invalid(of_list(&message)));
    }
    Ok(hosts)
}

/// The entries that an entry stands for, if all of them are allowed.
fn hosts_of(entry: &str, policy: &EgressPolicy) -> Result<Vec<String>, EntryError> {
    if entry.len() > MAX_ENTRY_BYTES {
        return Err(EntryError::Invalid(format!("must be at most {MAX_ENTRY_BYTES} bytes")));
    }
    let hosts = policy.presets().expand(entry).map_err(|error| EntryError::PresetUnknown(error.to_string()))?;
    for host in &hosts {
        match HostPattern::of_job(host) {
            Ok(pattern) if policy.contains(&pattern) => {}
            Ok(pattern) => {
                let message = format!("{pattern} is not allowed by the operator (GANTRY_EGRESS_CEILING)");
                return Err(EntryError::Invalid(message));
            }
            Err(error) => return Err(EntryError::Invalid(error.to_string())),
        }
    }
    Ok(hosts)
}

/// A list with its presets expanded, each entry once; none without presets.
fn expanded(allow: &[String], policy: &EgressPolicy) -> Option<Vec<String>> {
    if !allow.iter().any(|entry| Presets::is_preset(entry)) {
        return None;
    }
    let mut hosts: Vec<String> = Vec::new();
    for host in allow.iter().filter_map(|entry| hosts_of(entry, policy).ok()).flatten() {
        if !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    Some(hosts)
}

/// The request's errors of both kinds of checks, all at once.
pub(super) fn merge<T>(
    accepted: Result<Accepted, Rejected>,
    egress: Result<T, Rejected>,
) -> Result<(Accepted, T), Rejected> {
    match (accepted, egress) {
        (Err(Rejected::Invalid(mut errors)), Err(Rejected::Invalid(others) | Rejected::PresetUnknown(others))) => {
            errors.extend(others);
            Err(Rejected::Invalid(errors))
        }
        (Err(Rejected::NotAvailable(mut errors)), Err(Rejected::NotAvailable(others))) => {
            errors.extend(others);
            Err(Rejected::NotAvailable(errors))
        }
        (Err(rejected @ Rejected::NotAvailable(_)), _) | (_, Err(rejected)) | (Err(rejected), Ok(_)) => Err(rejected),
        (Ok(accepted), Ok(value)) => Ok((accepted, value)),
    }
}

/// The list of an earlier job without what the operator no longer allows, and those entries. Its presets are expanded as
/// they are now.
pub(super) fn restrict(earlier: Option<&Egress>, policy: &EgressPolicy) -> (Option<Egress>, Vec<String>) {
    let Some(egress) = earlier else { return (None, Vec::new()) };
    let (allow, removed): (Vec<String>, _) =
        egress.allow.iter().cloned().partition(|entry| hosts_of(entry, policy).is_ok());
    let hosts = expanded(&allow, policy);
    (Some(Egress { allow, hosts, ..egress.clone() }), removed)
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
        Egress { allow: allow.iter().map(|entry| (*entry).to_owned()).collect(), ..Egress::default() }
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
            (Ok(hosts), None) => assert_eq!(hosts, None),
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
        assert_eq!(check(Some(&egress(&[])), &policy(&[])), Ok(None));
        assert_eq!(check(None, &policy(&[])), Ok(None));
    }

    #[test]
    fn presets_are_expanded_and_held_to_the_ceiling() {
        let list = egress(&["preset:maven", "a.example", "repo1.maven.org"]);
        let hosts = ["repo.maven.apache.org", "repo1.maven.org", "a.example"].map(str::to_owned);
        assert_eq!(check(Some(&list), &policy(&["*"])), Ok(Some(hosts.to_vec())));
        assert_eq!(restrict(Some(&list), &policy(&["*"])).0.unwrap().hosts, Some(hosts.to_vec()));
        let within = egress(&["preset:node", "nodejs.org"]);
        assert_eq!(check(Some(&within), &policy(&["*"])), Ok(Some(vec!["nodejs.org".to_owned()])));
        // The ceiling can name presets, too.
        assert!(check(Some(&egress(&["repo1.maven.org"])), &policy(&["preset:gradle"])).is_ok());
        let outside = check(Some(&list), &policy(&["repo1.maven.org", "a.example"]));
        assert!(
            matches!(outside, Err(Rejected::Invalid(errors)) if errors[0].message.starts_with("repo.maven.apache.org:443"))
        );
        let unknown = check(Some(&egress(&["preset:npm"])), &policy(&["*"]));
        assert!(matches!(unknown, Err(Rejected::PresetUnknown(errors)) if errors[0].field == "egress.allow[0]"));
        let both = check(Some(&egress(&["preset:npm", "*"])), &policy(&["*"]));
        assert!(matches!(both, Err(Rejected::Invalid(errors)) if errors.len() == 2));
    }

    #[test]
    fn a_restart_keeps_what_is_still_allowed() {
        let (kept, removed) = restrict(Some(&egress(&["a.example", "b.example"])), &policy(&["b.example"]));
        assert_eq!((kept, removed), (Some(egress(&["b.example"])), vec!["a.example".to_owned()]));
        assert_eq!(restrict(None, &policy(&[])), (None, vec![]));
    }
}
