//! `cron.set_enabled`, `set_heartbeats` and `wake`.

use dispatch::RoutineCaller;
use domain::routine::definition::MAX_LINE_BYTES;
use protocol::{WakeMode, WakeRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{problem::ApiError, public::PublicApi};

/// The parameter of both switches.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Switch {
    enabled: bool,
}

pub(super) async fn cron(api: &PublicApi, caller: &RoutineCaller, switch: Switch) -> Result<Value, ApiError> {
    let by_environment = api.routines.cron_enabled;
    api.store.set_cron_enabled(switch.enabled, by_environment, &caller.entry).await?;
    api.routines.waker.wake_scheduler();
    tracing::info!(enabled = switch.enabled, user = caller.user, "an admin has switched schedules and triggers");
    Ok(json!({"ok": true, "enabled": switch.enabled && by_environment}))
}

pub(super) async fn heartbeats(api: &PublicApi, caller: &RoutineCaller, switch: Switch) -> Result<Value, ApiError> {
    api.store.set_heartbeats_enabled(switch.enabled, &caller.entry).await?;
    tracing::info!(enabled = switch.enabled, user = caller.user, "an admin has switched heartbeats");
    Ok(json!({"ok": true, "enabled": switch.enabled}))
}

pub(super) async fn wake(api: &PublicApi, caller: &RoutineCaller, request: WakeRequest) -> Result<Value, ApiError> {
    if request.text.trim().is_empty() {
        return Err(ApiError::field("text", "must not be empty"));
    }
    if request.text.len() > MAX_LINE_BYTES {
        return Err(ApiError::field("text", format!("must be at most {MAX_LINE_BYTES} bytes")));
    }
    let mode = WakeMode::from(request.mode);
    api.store.wake(&caller.user, &request.text, mode, &caller.entry).await?;
    Ok(json!({"ok": true}))
}
