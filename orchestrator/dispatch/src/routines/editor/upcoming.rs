//! The firings to come of all routines of a user, and how many a new one will have.
//!
//! Owns how far ahead they are computed and for how long. Times are computed off the runtime's threads.

use std::{collections::HashMap, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{CreateRoutine, FiringHour, RoutineId, UpcomingFiring, UpcomingOfRoutines};

use super::{RoutineEditor, RoutineError, schedule_of};
use base::{Zone, clock::Clock};
use domain::routine::{
    firings::{Firings, FiringsByHour, by_hour, soonest},
    timing::{next_firing, stagger_offset},
};
use schedule::Schedule;
use store::{ScheduledRoutine, ScheduledRoutines};

/// How far ahead firings are computed.
const MAX_AHEAD: TimeDelta = TimeDelta::days(8);
/// Routines that are read, those that fire the soonest.
const MAX_ROUTINES: u32 = 2_000;
/// How long the times of calendars are counted.
const COUNTING_TIME: Duration = Duration::from_millis(100);

impl RoutineEditor {
    /// The soonest `limit` firings of the routines of a user, or of all, and their numbers by hour: before `until`, and at
    /// most eight days ahead.
    pub async fn upcoming_of_all(
        &self,
        user: Option<&str>,
        until: Option<DateTime<Utc>>,
        limit: usize,
    ) -> Result<UpcomingOfRoutines, RoutineError> {
        let now = self.now();
        let until = until.unwrap_or(now + MAX_AHEAD).min(now + MAX_AHEAD);
        let ScheduledRoutines { routines, further } =
            self.store().scheduled_routines(user, until, MAX_ROUTINES).await?;
        let (all, clock) = (routines.len(), self.submitter.clock.clone());
        let computed = tokio::task::spawn_blocking(move || Computed::of(routines, (now, until), limit, &clock));
        let Computed { items, hours, left_out } = computed.await.unwrap_or_else(|_| Computed::none_of(all));
        let mut zones = HashMap::new();
        let mut shown = Vec::with_capacity(items.len());
        for (utc, zone, mut firing) in items {
            let zone = if let Some(zone) = zone.or_else(|| zones.get(&firing.user_id).copied()) {
                zone
            } else {
                let zone = self.users_zone(&firing.user_id).await?.zone();
                zones.insert(firing.user_id.clone(), zone);
                zone
            };
            firing.local = utc.with_timezone(&zone).to_rfc3339();
            shown.push(firing);
        }
        Ok(UpcomingOfRoutines { items: shown, hours, until, left_out: left_out + further })
    }

    /// How often a new routine fires in the next eight days; `None` if that takes too long to count.
    pub(super) async fn firings_of_new(
        &self,
        id: RoutineId,
        request: &CreateRoutine,
        now: DateTime<Utc>,
    ) -> Result<Option<u64>, RoutineError> {
        let Some(schedule) = schedule_of(request, now)? else { return Ok(Some(0)) };
        let guardrails = &request.guardrails;
        let stagger = stagger_offset(id, guardrails.stagger_seconds);
        let Some(first) = next_firing(&schedule, stagger, guardrails.until, now).next else { return Ok(Some(0)) };
        let firings = Firings { schedule, stagger, first, until: guardrails.until, runs_left: guardrails.max_runs };
        let clock = self.submitter.clock.clone();
        let counted = tokio::task::spawn_blocking(move || {
            let FiringsByHour { hours, left_out } = by_hour(&[firings], now, now + MAX_AHEAD, is_over(&clock));
            (left_out == 0).then(|| hours.values().sum())
        });
        Ok(counted.await.unwrap_or_default())
    }
}

/// What is computed of routines. The local times of firings are added later.
struct Computed {
    /// Each with the zone of the schedule, if it has one.
    items: Vec<(DateTime<Utc>, Option<Zone>, UpcomingFiring)>,
    hours: Vec<FiringHour>,
    left_out: u64,
}

impl Computed {
    fn of(
        routines: Vec<ScheduledRoutine>,
        (now, until): (DateTime<Utc>, DateTime<Utc>),
        limit: usize,
        clock: &Clock,
    ) -> Self {
        let all = routines.len();
        let (routines, firings): (Vec<_>, Vec<_>) =
            routines.into_iter().filter_map(|routine| firings_of(&routine).map(|firings| (routine, firings))).unzip();
        let items = soonest(&firings, now, until, limit).into_iter().map(|(utc, position)| {
            let (routine, zone) = (&routines[position], firings[position].schedule.zone());
            let firing = UpcomingFiring {
                routine_id: routine.id,
                routine_name: routine.name.clone(),
                user_id: routine.user_id.clone(),
                utc,
                local: String::new(),
            };
            (utc, zone, firing)
        });
        let items = items.collect();
        let FiringsByHour { hours, left_out } = by_hour(&firings, now, until, is_over(clock));
        let hours = hours.into_iter().map(|(hour, count)| FiringHour { hour, count }).collect();
        Self { items, hours, left_out: left_out + count_of(all - firings.len()) }
    }

    fn none_of(routines: usize) -> Self {
        Self { items: vec![], hours: vec![], left_out: count_of(routines) }
    }
}

fn count_of(routines: usize) -> u64 {
    u64::try_from(routines).unwrap_or(u64::MAX)
}

/// Whether the time of counting, which begins now, is over.
fn is_over(clock: &Clock) -> impl Fn() -> bool {
    let end = clock.monotonic() + COUNTING_TIME;
    move || clock.monotonic() >= end
}

/// What fires a routine; `None` if its schedule makes no sense.
fn firings_of(routine: &ScheduledRoutine) -> Option<Firings> {
    let guardrails = &routine.guardrails;
    Some(Firings {
        schedule: Schedule::of(&routine.trigger, routine.created_at).ok()??,
        stagger: stagger_offset(routine.id, guardrails.stagger_seconds),
        first: routine.next_fire_at,
        until: guardrails.until,
        runs_left: guardrails.max_runs.map(|max| max.saturating_sub(routine.run_count)),
    })
}
