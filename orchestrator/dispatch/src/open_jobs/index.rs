//! The open jobs by id, by queue and by parent. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use protocol::{JobId, Placement};

use domain::job::{AttemptContainer, JobRecord, OpenJob, OpenStage};
use store::{JobChange, OpenJobs, RevisionSum};

/// Why the index may not be what the database has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Doubt {
    #[error("a change of a job that is not known to be open")]
    UnknownJob,
    #[error("a change of another state of a job than the known one")]
    OtherState,
    #[error("a write failed and may be committed")]
    UncertainWrite,
    #[error("the database has other open jobs")]
    OtherSum,
}

/// The jobs of one user that wait for a start in one placement.
type QueueKey = (Arc<str>, Placement);

#[derive(Debug, Default, PartialEq)]
pub(super) struct JobIndex {
    /// Shared with the plans.
    jobs: HashMap<JobId, Arc<OpenJob>>,
    running: HashSet<JobId>,
    /// Queued jobs that are not held, by priority and age.
    queues: HashMap<QueueKey, BTreeSet<(Reverse<i32>, JobId)>>,
    /// Open jobs by their parent, which may have ended.
    children: HashMap<JobId, HashSet<JobId>>,
    /// Jobs with an invalid row.
    unreadable: HashSet<JobId>,
    /// Of the open jobs, those with an invalid row included.
    sum: RevisionSum,
}

/// The jobs that a plan is about.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ListedJobs {
    /// By id.
    pub(crate) jobs: Vec<Arc<OpenJob>>,
    /// Open jobs that are not to be cancelled themselves, and whose parent has ended or is to be cancelled.
    pub(crate) orphaned: HashSet<JobId>,
    /// Jobs with an invalid row.
    pub(crate) unreadable: HashSet<JobId>,
}

impl JobIndex {
    pub(super) fn new(read: &OpenJobs) -> Self {
        let mut index = Self { unreadable: read.unreadable_ids(), sum: read.sum, ..Self::default() };
        for job in &read.jobs {
            index.insert(Arc::new(job.clone()));
        }
        index
    }

    /// Takes over a change. On doubt the job is as the change has it, and others may not be as the database has them.
    pub(super) fn apply(&mut self, change: JobChange<'_>) -> Result<(), Doubt> {
        match change {
            JobChange::Created(job) => {
                self.add_to_sum(job);
                let is_new = self.replace(job).is_none();
                if is_new { Ok(()) } else { Err(Doubt::OtherState) }
            }
            JobChange::Transitioned { from, job } => {
                let was_unreadable = self.unreadable.remove(&job.id);
                let known = self.replace(job);
                // A submitted job that is reviewed was not open before.
                if known.is_some() || was_unreadable {
                    self.sum.jobs -= 1;
                    self.sum.revisions -= from;
                }
                self.add_to_sum(job);
                match known {
                    Some(known) if known.rev == from => Ok(()),
                    Some(_) => Err(Doubt::OtherState),
                    None if was_unreadable || !job.is_open() => Ok(()),
                    None => Err(Doubt::UnknownJob),
                }
            }
            // Of a job that has ended, too.
            JobChange::ContainerRecorded { job, attempt, container } => match self.jobs.get_mut(&job) {
                Some(known) if known.attempt == attempt => {
                    Arc::make_mut(known).container = Some(AttemptContainer::of(container));
                    Ok(())
                }
                Some(_) => Err(Doubt::OtherState),
                None => Ok(()),
            },
            JobChange::WorkerCalled { job, .. } if self.unreadable.contains(&job) => Ok(()),
            JobChange::WorkerCalled { job, attempt } => match self.jobs.get_mut(&job).map(Arc::make_mut) {
                Some(OpenJob { attempt: known, stage: OpenStage::Running { has_worker_called, .. }, .. })
                    if *known == attempt =>
                {
                    *has_worker_called = true;
                    Ok(())
                }
                Some(_) => Err(Doubt::OtherState),
                None => Err(Doubt::UnknownJob),
            },
            JobChange::Read(read) => {
                *self = Self::new(read);
                Ok(())
            }
            JobChange::Summed(sum) if sum == self.sum => Ok(()),
            JobChange::Summed(_) => Err(Doubt::OtherSum),
            JobChange::PromptAdded(_) => Ok(()),
            JobChange::Uncertain => Err(Doubt::UncertainWrite),
        }
    }

    /// Leaves a job out until its row is read again.
    pub(super) fn set_unreadable(&mut self, job: JobId) {
        self.remove(job);
        self.unreadable.insert(job);
    }

    /// Whether attempts of a job from this one on are kept: it is open, and this one or a later one is its current.
    pub(super) fn keeps_attempt(&self, job: JobId, attempt: u32) -> bool {
        self.unreadable.contains(&job) || self.jobs.get(&job).is_some_and(|job| attempt >= job.attempt)
    }

    /// All running jobs, the first `pending_per_user` of each queue, and the queued children of running jobs, which may
    /// start in the slot of a job above them. A long queue is not listed to start a few jobs.
    pub(super) fn list(&self, pending_per_user: usize) -> ListedJobs {
        let queued = self.queues.values().flat_map(|queue| queue.iter().take(pending_per_user).map(|(_, id)| *id));
        let children = self.running.iter().filter_map(|id| self.children.get(id)).flatten();
        let startable = children.copied().filter(|id| self.jobs.get(id).is_some_and(|job| queue_of(job).is_some()));
        let mut ids: Vec<JobId> = self.running.iter().copied().chain(queued).chain(startable).collect();
        ids.sort_unstable();
        ids.dedup();
        ListedJobs {
            jobs: ids.iter().filter_map(|id| self.jobs.get(id)).cloned().collect(),
            orphaned: self.orphaned(),
            unreadable: self.unreadable.clone(),
        }
    }

    fn orphaned(&self) -> HashSet<JobId> {
        let is_at_work =
            |id: &JobId| self.unreadable.contains(id) || self.jobs.get(id).is_some_and(|job| !job.is_stopping());
        let children =
            self.children.iter().filter(|(parent, _)| !is_at_work(parent)).flat_map(|(_, children)| children);
        children.copied().filter(|id| self.jobs.get(id).is_some_and(|job| !job.is_stopping())).collect()
    }

    fn add_to_sum(&mut self, job: &JobRecord) {
        if job.is_open() {
            self.sum.jobs += 1;
            self.sum.revisions += job.rev;
        }
    }

    /// Returns what was known of the job.
    fn replace(&mut self, job: &JobRecord) -> Option<Arc<OpenJob>> {
        let known = self.remove(job.id);
        if let Some(job) = job.to_open() {
            self.insert(Arc::new(job));
        }
        known
    }

    fn insert(&mut self, job: Arc<OpenJob>) {
        let id = job.id;
        if job.is_running() {
            self.running.insert(id);
        }
        if let Some((queue, place)) = queue_of(&job) {
            self.queues.entry(queue).or_default().insert(place);
        }
        if let Some(parent) = job.parent {
            self.children.entry(parent).or_default().insert(id);
        }
        self.jobs.insert(id, job);
    }

    fn remove(&mut self, id: JobId) -> Option<Arc<OpenJob>> {
        let job = self.jobs.remove(&id)?;
        self.running.remove(&id);
        if let Some((key, place)) = queue_of(&job)
            && let Some(queue) = self.queues.get_mut(&key)
        {
            queue.remove(&place);
            if queue.is_empty() {
                self.queues.remove(&key);
            }
        }
        if let Some(parent) = job.parent
            && let Some(children) = self.children.get_mut(&parent)
        {
            children.remove(&id);
            if children.is_empty() {
                self.children.remove(&parent);
            }
        }
        Some(job)
    }
}

/// The queue that a job waits in, and its place there.
fn queue_of(job: &OpenJob) -> Option<(QueueKey, (Reverse<i32>, JobId))> {
    match job.stage {
        OpenStage::Queued { held: false, .. } => {
            Some(((Arc::clone(&job.user), job.placement), (Reverse(job.priority), job.id)))
        }
        OpenStage::Queued { held: true, .. } | OpenStage::Running { .. } => None,
    }
}
