//! Plans with made-up jobs, for measurements: the way of the dispatcher from the facts in memory to the actions.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use base::clock::Clock;
use domain::job::sample;
use engine::{ContainerRole, ContainerStatus, ContainerView};
use protocol::{ContainerInfo, ContainerName, JobState};
use store::JobChange;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    AttemptRegistry, DispatcherWaker, OpenJobs,
    dispatcher::{Conditions, Snapshot},
    plan::{Plan, PlanLimits, SlotLimits, StartPolicy},
};

const USERS: usize = 100;

/// Running jobs in containers, each with its socket served, and a tenth of that number in the queue.
pub struct PlanScene {
    clock: Clock,
    jobs: Arc<OpenJobs>,
    attempts: Arc<AttemptRegistry>,
    containers: Vec<ContainerView>,
    run_dirs: Vec<String>,
    limits: PlanLimits,
}

impl PlanScene {
    /// # Panics
    /// If a registered attempt is not found.
    pub fn with_running_jobs(count: usize) -> Self {
        let slots = SlotLimits { total: count, per_user: count };
        let clock = Clock::system();
        let mut scene = Self {
            jobs: OpenJobs::new(DispatcherWaker::default()),
            attempts: AttemptRegistry::new(clock.clone(), TaskTracker::new()),
            clock,
            containers: Vec::new(),
            run_dirs: Vec::new(),
            limits: PlanLimits {
                container_slots: slots,
                host_slots: slots,
                start_timeout: Duration::from_mins(1),
                lease: Duration::from_mins(1),
                stuck_after: Duration::from_mins(5),
                max_repairs: 3,
            },
        };
        (0..count).for_each(|number| scene.add(number, JobState::InProgress));
        (0..count / 10).for_each(|number| scene.add(number, JobState::Pending));
        scene
    }

    fn add(&mut self, number: usize, state: JobState) {
        let mut job = sample::job(state).with_brief(|brief| brief.user_id = format!("user-{}", number % USERS));
        let observe = self.jobs.observer(&self.attempts);
        if state == JobState::Pending {
            return observe(JobChange::Created(&job));
        }
        let name = ContainerName::job(job.id, job.attempt).to_string();
        job.started_at = Some(self.clock.now());
        job.running_mut().worker_seen_at = Some(sample::now());
        job.container = Some(ContainerInfo { name: name.clone(), ..ContainerInfo::default() });
        observe(JobChange::Created(&job));
        let attempt = self.attempts.live(job.id).expect("it is running");
        attempt.set_listener(&name, CancellationToken::new());
        self.run_dirs.push(name.clone());
        self.containers.push(ContainerView {
            id: name.clone(),
            name,
            job_id: Some(job.id),
            attempt: job.attempt,
            role: Some(ContainerRole::Job),
            status: ContainerStatus::Running,
        });
    }

    /// The containers and run directories, as they are listed for each plan.
    pub fn list(&self) -> (Vec<ContainerView>, Vec<String>) {
        (self.containers.clone(), self.run_dirs.clone())
    }

    /// Plans once, by what is listed and what is known now.
    pub fn plan(&self, (containers, run_dirs): (Vec<ContainerView>, Vec<String>)) -> Plan {
        self.attempts.drop_ended(&self.jobs);
        let snapshot = Snapshot {
            containers: Some(containers),
            run_dirs,
            listed: self.jobs.list(self.limits.container_slots.per_user),
            attempts: self.attempts.facts(),
            ended: HashMap::new(),
            waiting_for_tools: HashSet::new(),
        };
        snapshot.plan(Conditions {
            now: self.clock.now(),
            start_policy: StartPolicy::Allow,
            busy: &HashSet::new(),
            over_budget: &HashMap::new(),
            limits: self.limits,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_run_and_jobs_that_wait_for_slots_need_no_action() {
        let scene = PlanScene::with_running_jobs(200);
        assert_eq!(scene.plan(scene.list()).actions, []);
    }
}
