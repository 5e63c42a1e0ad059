//! The records of issued tokens, and of codes that open an admin's session.
//!
//! The only place where `gantry token` and `gantry dashboard` access the database.

use chrono::{DateTime, Utc};

use app::is_in_use;
use cli::CliError;
use config::Config;
use protocol::SessionCode;
use store::{
    AuditEntry, Store, StoreError,
    sessions::{self, SessionGrant},
    tokens::{self, Revoked, TokenRow},
};

async fn open(config: &Config) -> Result<Store, CliError> {
    if !config.data_dir.exists() {
        return Err(CliError::Failed(format!(
            "no server has used {}, so it has no tokens; to list the tokens of a server in the Compose stack, run: \
             docker/gantry token list",
            config.data_dir.display()
        )));
    }
    // A running server must not have its schema upgraded.
    let opened = if is_in_use(&config.data_dir) {
        Store::open_existing(&config.database_url).await
    } else {
        Store::open(&config.database_url).await
    };
    opened.map_err(|error| CliError::failed("cannot open the database", error))
}

/// Does something with the store, which is closed afterwards.
async fn with_store<T>(
    config: &Config,
    failure: &str,
    work: impl AsyncFnOnce(&Store) -> Result<T, StoreError>,
) -> Result<T, CliError> {
    let store = open(config).await?;
    let done = work(&store).await;
    store.close().await;
    done.map_err(|error| CliError::failed(failure, error))
}

pub(super) async fn insert(config: &Config, record: &TokenRow) -> Result<(), CliError> {
    with_store(config, "cannot record the token", async |store| tokens::insert(store, record).await).await
}

/// Records a code that opens a session.
pub(super) async fn create_code(
    config: &Config,
    code: String,
    grant: SessionGrant,
    now: DateTime<Utc>,
) -> Result<SessionCode, CliError> {
    let entry = AuditEntry::by_operator("session.code", now);
    let create = async |store: &Store| sessions::create_code(store, code, (grant, None), now, entry).await;
    with_store(config, "cannot record the code", create).await
}

/// All tokens, newest first.
pub(super) async fn list(config: &Config) -> Result<Vec<TokenRow>, CliError> {
    with_store(config, "cannot read the tokens", async |store| tokens::list(store).await).await
}

/// Revokes a token, including one that was issued elsewhere.
pub(super) async fn revoke(config: &Config, jti: &str, at: DateTime<Utc>) -> Result<Revoked, CliError> {
    with_store(config, "cannot revoke the token", async |store| tokens::revoke(store, jti, at).await).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Environment;
    use config::Sources;

    #[tokio::test]
    async fn beside_a_running_server_no_database_is_made_or_upgraded() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().display().to_string();
        let environment = Environment::from_pairs([("HOME", "/tmp"), ("GANTRY_DATA_DIR", data.as_str())]);
        let config = Config::load(&environment, Sources::default()).unwrap();
        let lock_file = directory.path().join("gantry.lock");
        let lock = std::fs::File::create(&lock_file).unwrap();
        lock.lock().unwrap();
        assert!(list(&config).await.is_err());
        assert!(!directory.path().join("gantry.db").exists());
        drop(lock);
        assert_eq!(list(&config).await.unwrap(), []);
    }
}
