//! The record of issued tokens, as the token commands need it.
//!
//! Owns nothing but the way to the store's rows: the one place where `gantry token` meets the database.

use chrono::{DateTime, Utc};

use super::exit::CliError;
use crate::{
    app::is_in_use,
    config::Config,
    store::{
        Store,
        tokens::{self, Revoked, TokenRow},
    },
};

async fn open(config: &Config) -> Result<Store, CliError> {
    if !config.data_dir.exists() {
        return Err(CliError::Failed(format!(
            "nothing has run on {}, so no tokens are there; those of a server with another data folder (in a container, say) are \
             known where it runs: docker/compose.sh exec -T gantry gantry token list",
            config.data_dir.display()
        )));
    }
    // A server at work would go on with a schema that is not its own.
    let opened = if is_in_use(&config.data_dir) {
        Store::open_existing(&config.database_url).await
    } else {
        Store::open(&config.database_url).await
    };
    opened.map_err(|error| CliError::failed("the store cannot be opened", error))
}

/// Keeps one.
pub(super) async fn insert(config: &Config, record: &TokenRow) -> Result<(), CliError> {
    let store = open(config).await?;
    let kept = tokens::insert(&store, record).await;
    store.close().await;
    kept.map_err(|error| CliError::failed("the token cannot be recorded", error))
}

/// All of them, newest first.
pub(super) async fn list(config: &Config) -> Result<Vec<TokenRow>, CliError> {
    let store = open(config).await?;
    let rows = tokens::list(&store).await;
    store.close().await;
    rows.map_err(|error| CliError::failed("the tokens cannot be read", error))
}

/// Voids one, also one that was issued elsewhere.
pub(super) async fn revoke(config: &Config, jti: &str, at: DateTime<Utc>) -> Result<Revoked, CliError> {
    let store = open(config).await?;
    let revoked = tokens::revoke(&store, jti, at).await;
    store.close().await;
    revoked.map_err(|error| CliError::failed("the token cannot be revoked", error))
}
