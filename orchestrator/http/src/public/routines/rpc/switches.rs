//! `cron.set_enabled`, `set_heartbeats` and `wake`.

use dispatch::RoutineCaller;
use domain::routine::definition::MAX_LINE_BYTES;
use protocol::{RpcError, WakeMode, WakeRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::{invalid_params, of_store};
use crate::public::PublicApi;

/// The parameter of both switches.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Switch {
    enabled: bool,
}

pub(super) async fn cron(api: &PublicApi, caller: &RoutineCaller, switch: Switch) -> Result<Value, RpcError> {
    let by_environment = api.routines.cron_enabled;
    api.store.set_cron_enabled(switch.enabled, by_environment, &caller.entry).await.map_err(of_store)?;
    api.routines.waker.wake_scheduler();
    tracing::info!(enabled = switch.enabled, user = caller.user, "an admin has switched schedules and triggers");
    Ok(json!({"ok": true, "enabled": switch.enabled && by_environment}))
}

pub(super) async fn heartbeats(api: &PublicApi, caller: &RoutineCaller, switch: Switch) -> Result<Value, RpcError> {
    api.store.set_heartbeats_enabled(switch.enabled, &caller.entry).await.map_err(of_store)?;
    tracing::info!(enabled = switch.enabled, user = caller.user, "an admin has switched heartbeats");
    Ok(json!({"ok": true, "enabled": switch.enabled}))
}

pub(super) async fn wake(api: &PublicApi, caller: &RoutineCaller, request: WakeRequest) -> Result<Value, RpcError> {
    if request.text.trim().is_empty() {
        return Err(invalid_params("text", "must not be empty"));
    }
    if request.text.len() > MAX_LINE_BYTES {
        return Err(invalid_params("text", &format!("must be at most {MAX_LINE_BYTES} bytes")));
    }
    let mode = WakeMode::from(request.mode);
    api.store.wake(&caller.user, &request.text, mode, &caller.entry).await.map_err(of_store)?;
    Ok(json!({"ok": true}))
}
