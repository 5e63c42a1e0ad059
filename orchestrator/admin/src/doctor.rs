//! `gantry doctor`: whether the server can be used from here and, where it is installed, what it needs; each with what
//! to do.
//!
//! Owns the list of checks and their texts. Leaves nothing behind and never sends a prompt to a model.

mod disk;
mod model;
mod routines;
mod sandbox;
mod time_zones;

use std::path::Path;

use chrono::{DateTime, Utc};
use clap::Args;
use secrecy::ExposeSecret;

use cli::{Check, CliError, Exit, Output, Paint, Verdict, one_line, server_checks};

use crate::config::ConfigSource;
use auth::SigningKey;
use base::{Environment, clock::Clock, zone::Database};
use config::Config;
use store::{Store, StoreError};

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Check the installation on this machine even if no server has run here
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    flags: ConfigSource,
}

pub(super) async fn run(args: DoctorArgs, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    let is_asked_for = args.install || args.flags.is_given();
    let config = args.flags.load(environment);
    let is_installed_here = is_asked_for || config.as_ref().is_ok_and(|config| config.data_dir.exists());
    let now = Clock::system().now();
    let mut checks = server_checks(environment, is_installed_here, (now, output.zone())).await;
    if is_installed_here {
        match config {
            Err(error) => checks.push(Check::failed("configuration", error.to_string(), "fix this value")),
            Ok(config) => checks.extend(installation(&config, now).await),
        }
    }
    let failed = checks.iter().filter(|check| check.verdict == Verdict::Failed).count();
    let value = serde_json::json!({"ok": failed == 0, "checks": checks});
    output.either(&value, |paint| {
        let lines = checks.iter().map(|check| line(paint, check));
        lines.chain([conclusion(failed, is_installed_here)]).collect::<Vec<_>>().join("\n")
    })?;
    Ok(if failed > 0 { Exit::Failed } else { Exit::Success })
}

/// The checks of the server's installation on this machine.
async fn installation(config: &Config, now: DateTime<Utc>) -> Vec<Check> {
    let mut checks = vec![install(config)];
    let warnings = config.warnings.join("; ");
    checks.push(if warnings.is_empty() {
        Check::ok("configuration", "valid")
    } else {
        Check::note("configuration", warnings, "correct these names or remove the variables")
    });
    checks.extend(hosts(config));
    checks.push(directory("data directory", &config.data_dir, "GANTRY_DATA_DIR"));
    checks.push(directory("run directory", &config.run_dir, "GANTRY_RUN_DIR"));
    checks.push(directory("workspaces", &config.workspace_dir, "GANTRY_WORKSPACE_DIR"));
    checks.extend(disk::checks(config).await);
    checks.push(signing_key(config));
    checks.push(store(config).await);
    checks.extend(sandbox::checks(config).await);
    checks.extend(model::checks(&config.llm).await);
    checks.extend(routines::checks(config, is_switched_on(config).await));
    checks.push(time_zones::check(Database::in_force(), now));
    checks
}

/// What to do next.
fn conclusion(failed: usize, is_installed_here: bool) -> String {
    match (failed, is_installed_here) {
        (0, true) => "\nNo problems found.".to_owned(),
        (0, false) => {
            "\nNo problems found. Try: gantry job run \"echo hello\"\nThe installation itself is checked where the server runs; to check \
             this machine for one, add --install."
                .to_owned()
        }
        (1, _) => "\n1 problem found: fix it as described after the arrow, then run `gantry doctor` again.".to_owned(),
        (count, _) => {
            format!("\n{count} problems found: fix them as described after the arrows, then run `gantry doctor` again.")
        }
    }
}

fn line(paint: Paint, check: &Check) -> String {
    let mark = match check.verdict {
        Verdict::Ok => paint.green("ok    "),
        Verdict::Note => paint.yellow("note  "),
        Verdict::Failed => paint.red("failed"),
        Verdict::NotChecked => paint.dim("-     "),
    };
    let advice = check.advice.as_ref().map(|text| format!("\n         → {}", one_line(text))).unwrap_or_default();
    format!("{mark} {:<13} {}{advice}", check.name, one_line(&check.found))
}

/// Names the installation that is checked: the user may mean another one, in a container or of another user.
fn install(config: &Config) -> Check {
    let data = config.data_dir.display();
    let found = format!("gantry {} with data in {data}", env!("CARGO_PKG_VERSION"));
    if config.data_dir.exists() {
        return Check::ok("install", found);
    }
    let advice = "no server has run here yet; for a server in the Compose stack run: docker/gantry doctor";
    Check::note("install", format!("{found}, which does not exist"), advice)
}

/// A custom list of hosts may lack the names that this machine and the container's health check use.
fn hosts(config: &Config) -> Option<Check> {
    let has_own = ["localhost", "127.0.0.1"].iter().all(|own| config.allowed_hosts.iter().any(|host| host == own));
    let found = format!("accepts only requests for {}", config.allowed_hosts.join(", "));
    let advice =
        "add localhost and 127.0.0.1 to GANTRY_ALLOWED_HOSTS: the health check and commands on this machine use them";
    (!has_own).then(|| Check::note("hosts", found, advice))
}

/// An existing directory must be writable; for a missing one, its closest existing ancestor must be.
fn directory(name: &'static str, path: &Path, variable: &str) -> Check {
    let existing = path.ancestors().find(|directory| directory.exists()).unwrap_or(Path::new("/"));
    match try_to_write(existing) {
        Ok(()) if existing == path => Check::ok(name, path.display().to_string()),
        Ok(()) => Check::ok(name, format!("{} (created at the first start)", path.display())),
        Err(error) => {
            let found = format!("{}: {error}", existing.display());
            Check::failed(name, found, format!("give this user write access, or set {variable} to another directory"))
        }
    }
}

/// Writes a file, because permissions alone are not enough: root passes them even on a read-only file system.
fn try_to_write(directory: &Path) -> std::io::Result<()> {
    let probe = directory.join(format!(".gantry-doctor-{:016x}", rand::random::<u64>()));
    std::fs::File::create_new(&probe)?;
    std::fs::remove_file(&probe)
}

fn signing_key(config: &Config) -> Check {
    let path = SigningKey::file(&config.data_dir);
    match &config.jwt_secret {
        Some(secret) => Check::ok("signing key", format!("configured, {} bytes", secret.expose_secret().len())),
        None if path.exists() => match std::fs::File::open(&path) {
            Ok(_) => Check::ok("signing key", path.display().to_string()),
            Err(error) => {
                Check::failed("signing key", format!("{}: {error}", path.display()), "run as the user that created it")
            }
        },
        None => Check::ok("signing key", "created at the first start"),
    }
}

/// Whether automation is on by the switch of admins; `None` if that cannot be read, which the check of the store reports.
async fn is_switched_on(config: &Config) -> Option<bool> {
    let store = Store::open_existing(&config.database_url).await.ok()?;
    let automation = store.automation().await;
    store.close().await;
    Some(automation.ok()?.cron_enabled)
}

/// Opens the database if it exists; never creates one.
async fn store(config: &Config) -> Check {
    let path = config.database_url.split_once(':').map_or("", |(_, rest)| rest.trim_start_matches("//"));
    let path = Path::new(path.split('?').next().unwrap_or(path));
    match std::fs::metadata(path) {
        Ok(facts) if facts.is_file() => {
            let answer = match Store::open_existing(&config.database_url).await {
                Ok(store) => {
                    let excess = store.retention_excess().await;
                    store.close().await;
                    excess
                }
                Err(error) => Err(error),
            };
            match answer {
                Ok(None) => Check::ok("store", format!("{} ({} bytes)", path.display(), facts.len())),
                Ok(Some(excess)) => Check::failed(
                    "store",
                    format!(
                        "the records in {} exceed GANTRY_RECORD_RETENTION_MAX_MB by {excess} bytes, and nothing older than a day is left",
                        path.display()
                    ),
                    "raise GANTRY_RECORD_RETENTION_MAX_MB, or find out which user writes so much (gantry usage --by job)",
                ),
                Err(StoreError::Schema { is_newer: false }) => {
                    let found = format!("{} has an older version", path.display());
                    Check::note("store", found, "the next start of the server upgrades it")
                }
                Err(error) => Check::failed(
                    "store",
                    format!("{}: {error}", path.display()),
                    "check that the disk is not full and that the file is a Gantry database; otherwise restore a backup",
                ),
            }
        }
        Ok(_) => {
            Check::failed("store", format!("{} is not a file", path.display()), "set GANTRY_DATABASE_URL to a file")
        }
        Err(_) => Check::ok("store", format!("{} (created at the first start)", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::configuration;
    use base::error_chain;
    use config::Sources;

    #[rstest]
    #[case("gantry.example", false)]
    #[case("gantry.example,localhost", false)]
    #[case("gantry.example,localhost,127.0.0.1", true)]
    #[case("", true)]
    fn host_lists_without_this_machine_are_reported(#[case] hosts: &str, #[case] fine: bool) {
        let set = Environment::from_pairs([("HOME", "/home/ada"), ("GANTRY_ALLOWED_HOSTS", hosts)]);
        assert_eq!(super::hosts(&Config::load(&set, Sources::default()).unwrap()).is_none(), fine);
    }

    #[test]
    fn errors_include_their_causes() {
        let refused = std::io::Error::other(CliError::failed("no connection", "refused"));
        assert_eq!(error_chain(&refused), "no connection: refused");
        let config = Config::load(&Environment::from_pairs([]), Sources::default()).unwrap_err();
        let outer = std::io::Error::other(configuration(config));
        assert!(error_chain(&outer).contains("GANTRY_DATA_DIR"));
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_a_failure() {
        assert_eq!(
            directory("data directory", Path::new("/proc/nowhere/gantry"), "GANTRY_DATA_DIR").verdict,
            Verdict::Failed
        );
        let parent = tempfile::tempdir().unwrap();
        std::fs::write(parent.path().join("file"), "").unwrap();
        assert_eq!(
            directory("data directory", &parent.path().join("file/gantry"), "GANTRY_DATA_DIR").verdict,
            Verdict::Failed
        );
        assert_eq!(directory("data directory", &parent.path().join("new"), "GANTRY_DATA_DIR").verdict, Verdict::Ok);
    }
}
