//! The zone of a schedule that names none: the one of the schedule that it replaces, else the user's.
//!
//! Owns this choice, and the warning where it falls to UTC. Never changes a schedule that is stored.

use chrono::{DateTime, Utc};
use protocol::{RoutineTrigger, RoutineWarning};

use super::{RoutineEditor, RoutineError, warnings::warning};
use base::Zone;
use schedule::needs_zone;

/// The zone of a schedule that names none.
#[derive(Clone, Copy)]
pub(super) enum ScheduleZone {
    /// The one of the stored schedule, or of the user's settings.
    Known(Zone),
    /// The user's settings have no zone: UTC applies.
    Unset,
}

impl ScheduleZone {
    /// The zone of a stored trigger that has one.
    pub(super) fn of(trigger: &RoutineTrigger) -> Option<Self> {
        let RoutineTrigger::Cron { timezone, .. } = trigger else { return None };
        Some(Self::Known(timezone.as_deref().unwrap_or("UTC").parse().unwrap_or(Zone::UTC)))
    }

    pub(super) const fn zone(self) -> Zone {
        match self {
            Self::Known(zone) => zone,
            Self::Unset => Zone::UTC,
        }
    }

    /// Tells that the local times of a trigger are in UTC because no zone is set.
    pub(super) fn warning(self, trigger: &RoutineTrigger, now: DateTime<Utc>) -> Option<RoutineWarning> {
        let is_unset = matches!(self, Self::Unset) && needs_zone(trigger, now);
        is_unset.then(|| {
            let detail = "no time zone is set in the settings, so UTC is used; set yours with `gantry settings set --timezone \
                          ZONE`, or give the schedule one";
            warning("timezone_not_set", "trigger.timezone", detail.to_owned())
        })
    }
}

impl RoutineEditor {
    /// The zone of a user's settings.
    pub(super) async fn users_zone(&self, user: &str) -> Result<ScheduleZone, RoutineError> {
        let settings = self.store().settings(user).await?;
        let named = settings.timezone.as_deref();
        Ok(named.map_or(ScheduleZone::Unset, |name| ScheduleZone::Known(name.parse().unwrap_or(Zone::UTC))))
    }
}
