//! The parts that routines are made of: what fires them, what works on their runs, and what posts their notifications.

use std::{sync::Arc, time::Duration};

use super::{
    Core,
    limits::{definition_limits, settings_bounds},
};
use base::rate_limit::ToolRateLimits;
use config::Config;
use dispatch::{EventHandler, JobSubmitter, NotificationSender, RoutineEditor, RunJobs, WebhookHandler};
use http_api::public::Inbound;
use routine::{Lightweight, RoutineScheduler, Runner, RunnerParts};
use store::Store;
use tools::BuiltinTools;

impl Core {
    pub(super) fn event_handler(&self, store: Store) -> Arc<EventHandler> {
        Arc::new(EventHandler {
            store,
            matchers: Arc::clone(&self.routine_matchers),
            waker: self.routine_waker.clone(),
            clock: self.clock.clone(),
        })
    }

    pub(super) fn inbound(&self, config: &Config) -> Inbound {
        let (secrets, matchers) = (Arc::clone(&self.secrets), Arc::clone(&self.routine_matchers));
        Inbound {
            events: self.event_handler(self.store.clone()),
            rates: ToolRateLimits::new(config.inbound_rate),
            webhooks: WebhookHandler::new(
                self.store.clone(),
                secrets,
                matchers,
                self.routine_waker.clone(),
                self.clock.clone(),
            ),
        }
    }

    pub(super) fn notification_sender(&self) -> NotificationSender {
        NotificationSender {
            store: self.store.control(),
            secrets: Arc::clone(&self.secrets),
            destinations: self.notification_destinations.clone(),
            clock: self.clock.clone(),
            process: uuid::Uuid::from_u128(rand::random()),
        }
    }

    /// Works on the runs of routines.
    pub(super) fn runner(&self, config: &Config, tools: &Arc<BuiltinTools>, submitter: Arc<JobSubmitter>) -> Runner {
        Runner::new(RunnerParts {
            store: self.store.control(),
            lightweight: Lightweight {
                store: self.store.control(),
                meter: self.meter(config),
                tools: Arc::clone(tools),
                hooks: Arc::clone(&self.hooks),
                clock: self.clock.clone(),
                default_model: config.llm.primary.model.clone(),
                models: settings_bounds(config).models,
                max_tool_rounds: config.routines.max_tool_rounds,
                outage_patience: Duration::from_secs(config.llm.outage_patience_seconds),
            },
            jobs: Arc::new(RunJobs { submitter }),
            waker: self.routine_waker.clone(),
            clock: self.clock.clone(),
            max_concurrent: config.routines.max_concurrent,
        })
    }

    /// Fires routines at the times of their schedules.
    pub(super) fn routine_scheduler(&self, config: &Config) -> RoutineScheduler {
        RoutineScheduler {
            store: self.store.control(),
            clock: self.clock.clone(),
            waker: self.routine_waker.clone(),
            cron_enabled: config.routines.cron_enabled,
        }
    }

    /// Creates, changes and fires routines, with jobs as this submitter would create them.
    pub(super) fn routine_editor(&self, config: &Config, submitter: Arc<JobSubmitter>) -> Arc<RoutineEditor> {
        Arc::new(RoutineEditor {
            submitter,
            destinations: self.notification_destinations.clone(),
            secrets: Arc::clone(&self.secrets),
            waker: self.routine_waker.clone(),
            limits: definition_limits(&config.routines),
            default_model: config.llm.primary.model.clone(),
            max_per_user: config.routines.max_per_user,
            cron_enabled: config.routines.cron_enabled,
        })
    }
}
