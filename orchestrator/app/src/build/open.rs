//! Opens what the daemon keeps on disk and reads the addresses that it protects.
//!
//! Starts nothing.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use protocol::InstanceId;

use super::super::{DatabaseError, ServeError, migrating::serve_during};
use super::limits::user_storage_limit;
use base::{clock::Clock, mask_urls};
use config::Config;
use dispatch::NotificationDestinations;
use egress::{EgressClient, EgressPolicy, InvalidPattern, LookUp, Presets, system_look_up};
use hooks::Hooks;
use http_api::server::Descriptors;
use mcp::ConfiguredServer;
use secrets::{KeySource, Secrets};
use store::{JobObserver, Store};
use telemetry::metrics::Metrics;
use workspace::{FreeSpace, ReadDiskSpace, Workspaces};

const MB: u64 = 1024 * 1024;
/// Space that the smallest migration needs.
const MIN_MIGRATION_BYTES: u64 = 64 * MB;

pub(super) async fn open_store(
    config: &Config,
    metrics: &Metrics,
    observer: JobObserver,
    clock: &Clock,
    descriptors: Descriptors,
) -> Result<(Store, InstanceId), ServeError> {
    let at_url = |source| DatabaseError { url: mask_urls(&config.database_url), source };
    let open = Store::open_observed(&config.database_url, user_storage_limit(config), metrics.clone(), observer);
    let store = match store::pending_migration(&config.database_url).await.map_err(at_url)? {
        None => open.await,
        Some(database_bytes) => {
            ensure_space(config, database_bytes)?;
            tracing::info!(database_mb = database_bytes / MB, "migrating the database of an earlier version");
            serve_during(config, clock, descriptors, open).await
        }
    };
    let store = store.map_err(at_url)?;
    let instance = match config.instance_id {
        Some(instance) => instance,
        None => store.instance_id().await.map_err(at_url)?,
    };
    // Nothing is in flight when a process starts.
    let aborted = store.close_abandoned_calls(clock.now()).await.map_err(at_url)?;
    let interrupted = store.close_interrupted_tool_calls().await.map_err(at_url)?;
    let turns = store.close_interrupted_chat_turns(clock.now()).await.map_err(at_url)?;
    if aborted > 0 || interrupted > 0 || turns > 0 {
        tracing::warn!(aborted, interrupted, turns, "closed calls and chat turns that the last process left open");
    }
    store.sync_cron_setting(config.routines.cron_enabled, clock.now()).await.map_err(at_url)?;
    Ok((store, instance))
}

/// Migrating moves rows within the database, whose pages are used again, but needs its log and what new indexes take.
fn ensure_space(config: &Config, database_bytes: u64) -> Result<(), ServeError> {
    let needed = database_bytes / 4 + MIN_MIGRATION_BYTES;
    let space = FreeSpace::new(config.data_dir.clone(), None).read();
    let free = space.map_err(|source| ServeError::Io { action: "cannot read the free space", source })?.free_bytes;
    if free >= needed {
        return Ok(());
    }
    Err(ServeError::MigrationSpace { needed_mb: needed / MB, free_mb: free / MB })
}

/// Users' secrets, with the key that opens them.
pub(super) async fn open_secrets(config: &Config, store: &Store) -> Result<Secrets, ServeError> {
    let source = KeySource::new(config.master_key.as_ref(), &config.data_dir);
    Ok(Secrets::open(store.control(), &source).await?)
}

/// The workspaces, without what requests of an earlier process left unfinished.
pub(super) async fn open_workspaces(config: &Config, store: &Store) -> Workspaces {
    let workspaces = Workspaces::new(config.workspace_dir.clone());
    workspaces.remove_staging_dirs();
    workspaces.remove_abandoned(store, Duration::ZERO).await;
    workspaces
}

/// Checks the addresses in the configuration, which only the parts that use them can parse. Opens nothing.
pub fn check(config: &Config) -> Result<(), ServeError> {
    egress_client(config, Vec::new(), None)?;
    notification_destinations(config, Vec::new())?;
    for server in &config.mcp {
        ConfiguredServer::new(server)?;
    }
    for hook in &config.hooks {
        Hooks::check(hook)?;
    }
    Ok(())
}

/// The free space of the workspaces' disk, as `read` reads it in place of the system.
pub(super) fn free_space(config: &Config, read: Option<ReadDiskSpace>) -> FreeSpace {
    let space = FreeSpace::new(config.workspace_dir.clone(), config.disk_floor_mb);
    match read {
        Some(read) => space.with_reader(read),
        None => space,
    }
}

/// The client for what jobs and users ask for, which resolves names by `look_up` in place of the system.
pub(super) fn egress_client(
    config: &Config,
    own: Vec<SocketAddr>,
    look_up: Option<LookUp>,
) -> Result<EgressClient, ServeError> {
    let presets = Presets::new(&config.egress_presets)?;
    let policy = EgressPolicy::with_presets(&config.egress_ceiling, own, presets)
        .map_err(invalid_entry("GANTRY_EGRESS_CEILING", &config.egress_ceiling))?;
    Ok(EgressClient::new(Arc::new(policy), look_up.unwrap_or_else(system_look_up)))
}

/// The destinations of notifications.
pub(super) fn notification_destinations(
    config: &Config,
    own: Vec<SocketAddr>,
) -> Result<NotificationDestinations, ServeError> {
    NotificationDestinations::new(&config.notify_allow, own, system_look_up())
        .map_err(invalid_entry("GANTRY_NOTIFY_ALLOW", &config.notify_allow))
}

fn invalid_entry(setting: &'static str, list: &[String]) -> impl FnOnce((usize, InvalidPattern)) -> ServeError {
    move |(index, source)| {
        let entry = list.get(index).map(|entry| mask_urls(entry)).unwrap_or_default();
        ServeError::HostPattern { setting, entry, source }
    }
}

/// What no job and no hook may reach over the network, whatever the operator allows: this daemon's listeners and the
/// engine.
pub(super) async fn own_addresses(config: &Config) -> Vec<SocketAddr> {
    let mut own = vec![config.bind];
    own.extend(config.metrics_bind);
    let engine = config.sandbox.docker_host.as_deref().and_then(|address| address.strip_prefix("tcp://"));
    let authority = engine.and_then(|address| address.split('/').next()?.rsplit('@').next());
    if let Some(authority) = authority {
        match tokio::net::lookup_host(authority).await {
            Ok(addresses) => own.extend(addresses),
            Err(error) => tracing::warn!(%error, "the engine's address cannot be resolved"),
        }
    }
    own
}
