//! Whether routines can start, and from where webhooks are accepted.

use cli::Check;
use config::Config;

pub(super) fn checks(config: &Config, is_switched_on: Option<bool>) -> [Check; 2] {
    [switch(config, is_switched_on), webhooks(config)]
}

/// The environment's switch, and the one that admins have.
fn switch(config: &Config, is_switched_on: Option<bool>) -> Check {
    if config.routines.cron_enabled && is_switched_on == Some(false) {
        let found = "switched off by an admin: no schedule, event or webhook starts a run";
        let advice = "an admin switches it on with the call cron.set_enabled {\"enabled\": true}; `gantry routine run` works either way";
        return Check::note("routines", found, advice);
    }
    if config.routines.cron_enabled {
        return Check::ok("routines", "switched on");
    }
    let found = "switched off by GANTRY_CRON_ENABLED=false: no schedule, event or webhook starts a run";
    Check::note(
        "routines",
        found,
        "set GANTRY_CRON_ENABLED=true and restart the server; `gantry routine run` works either way",
    )
}

fn webhooks(config: &Config) -> Check {
    let found = format!("accepted for the hosts {}", config.allowed_hosts.join(", "));
    let is_local = |host: &String| host == "localhost" || host.starts_with("127.") || host.contains("::1");
    if config.allowed_hosts.iter().all(is_local) {
        let advice = "only if webhooks come from outside: add the public host name to GANTRY_ALLOWED_HOSTS, else they are answered 421";
        return Check { advice: Some(advice.to_owned()), ..Check::ok("webhooks", found) };
    }
    Check::ok("webhooks", found)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use base::Environment;
    use config::Sources;

    use cli::Verdict;

    #[rstest]
    #[case("true", None, "", Verdict::Ok, true)]
    #[case("true", Some(true), "", Verdict::Ok, true)]
    #[case("true", Some(false), "", Verdict::Note, true)]
    #[case("false", Some(true), "gantry.example,localhost,127.0.0.1", Verdict::Note, false)]
    fn the_switches_and_the_public_host_are_reported(
        #[case] enabled: &str,
        #[case] is_switched_on: Option<bool>,
        #[case] hosts: &str,
        #[case] verdict: Verdict,
        #[case] advised: bool,
    ) {
        let set = Environment::from_pairs([
            ("HOME", "/home/ada"),
            ("GANTRY_CRON_ENABLED", enabled),
            ("GANTRY_ALLOWED_HOSTS", hosts),
        ]);
        let [switch, webhooks] = checks(&Config::load(&set, Sources::default()).unwrap(), is_switched_on);
        assert_eq!((switch.verdict, webhooks.advice.is_some()), (verdict, advised));
    }
}
