//! Slots: how many jobs of one placement may have an attempt at once, in total and for each user.
//!
//! A job that waits for a child lends its slot to one job below it, so that a parent and its children make progress
//! with a single slot. It lends to no other job: otherwise each free slot would start one more parent, and the number
//! of containers would have no bound. The bound is the slots times the levels of a tree of jobs.

use std::collections::{HashMap, HashSet};

use protocol::{JobId, Placement};

use super::{Facts, JobFacts, SlotLimits};
use domain::job::{MAX_DEPTH, OpenJob};

/// The slots that are taken.
pub(super) struct Slots<'a> {
    limits: SlotLimits,
    /// The parent of each listed job that has one.
    parents: HashMap<JobId, JobId>,
    /// Jobs that wait for a child and whose slot is not lent yet.
    lenders: HashSet<JobId>,
    taken: usize,
    taken_by_user: HashMap<&'a str, usize>,
}

impl<'a> Slots<'a> {
    /// The slots of a placement, of which `taken` are taken already. Jobs of this placement that have a slot are to be
    /// added with [`Self::add`].
    pub(super) fn new(facts: &'a Facts<'_>, placement: Placement, taken: usize) -> Self {
        let parent = |job: &OpenJob| Some((job.id, job.parent?));
        let lends = |job: &JobFacts<'_>| job.waits_for_child && job.open.placement == placement;
        Self {
            limits: facts.limits.slots(placement),
            parents: facts.jobs.iter().filter_map(|job| parent(job.open)).collect(),
            lenders: facts.jobs.iter().filter(|job| lends(job)).map(|job| job.open.id).collect(),
            taken,
            taken_by_user: HashMap::new(),
        }
    }

    /// Counts a job that has a slot, whether or not there is room for it.
    pub(super) fn add(&mut self, job: &'a OpenJob) {
        if let Some(lender) = self.lender_of(job.id) {
            // The nearest one: it could lend to the fewest jobs.
            self.lenders.remove(&lender);
            return;
        }
        self.taken += 1;
        *self.taken_by_user.entry(&job.user).or_default() += 1;
    }

    /// Whether there is a slot for one more job.
    pub(super) fn has_room_for(&self, job: &OpenJob) -> bool {
        let taken_by_user = self.taken_by_user.get(&*job.user).copied().unwrap_or_default();
        let is_free = self.taken < self.limits.total && taken_by_user < self.limits.per_user;
        is_free || self.lender_of(job.id).is_some()
    }

    /// The nearest job above a job that can lend its slot.
    fn lender_of(&self, job: JobId) -> Option<JobId> {
        let above = std::iter::successors(self.parents.get(&job), |above| self.parents.get(above));
        above.take(MAX_DEPTH as usize).find(|above| self.lenders.contains(above)).copied()
    }
}
