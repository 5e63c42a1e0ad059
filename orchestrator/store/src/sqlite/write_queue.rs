//! The writer's queues: writes of the control plane and of requests, and batches of workers' events.
//!
//! Two queues, served in turn, so that a flood of events delays no transition by more than one group. Both are bounded:
//! a caller waits for a place at most `QUEUE_TIMEOUT`. Never touches the database.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep_until, timeout_at},
};

use super::writer::{Write, fail_all};
use crate::{StoreError, events::batch::PendingBatch};

/// A write that has not begun after this time is withdrawn: less than the client's own timeout, more than the time
/// after which a group fails when another process locks the database.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of queued writes. Each belongs to a request in flight, whose body is bounded by the listener.
const MAX_QUEUED_WRITES: usize = 4_096;
/// Maximum size of queued events: about a hundred batches of the largest size.
const MAX_QUEUED_EVENT_BYTES: usize = 64 * 1024 * 1024;
/// Overhead counted for each batch, so that small ones are bounded as well.
const BATCH_OVERHEAD_BYTES: usize = 4 * 1024;
/// Maximum number of writes in one transaction: more would delay the first answer for little gain.
const MAX_GROUP_WRITES: usize = 64;
/// Maximum number of events in one transaction.
const MAX_GROUP_EVENTS: usize = 2_000;
/// Maximum size of events in one transaction.
const MAX_GROUP_EVENT_BYTES: usize = 4 * 1024 * 1024;

pub(crate) struct WriteQueue {
    lists: Mutex<Lists>,
    arrived: Notify,
    write_permits: Arc<Semaphore>,
    event_byte_permits: Arc<Semaphore>,
}

#[derive(Default)]
struct Lists {
    writes: VecDeque<Queued<Box<dyn Write>>>,
    batches: VecDeque<Queued<PendingBatch>>,
    next_id: u64,
    /// The last group was one of writes.
    writes_served: bool,
    is_closed: bool,
    /// A group is being written.
    #[cfg(test)]
    is_group_taken: bool,
}

struct Queued<T> {
    id: u64,
    item: T,
    _permit: OwnedSemaphorePermit,
}

/// Writes or batches for one transaction.
pub(crate) enum Group {
    Writes(Vec<Box<dyn Write>>),
    Batches(Vec<PendingBatch>),
}

impl Group {
    /// Answers all callers with this error.
    pub(crate) fn fail(self, error: StoreError) {
        match self {
            Self::Writes(writes) => fail_all(writes, error),
            Self::Batches(batches) => {
                let error = Arc::new(error);
                for one in batches {
                    one.finish(Err(StoreError::GroupCommit(Arc::clone(&error))));
                }
            }
        }
    }
}

impl Default for WriteQueue {
    fn default() -> Self {
        Self {
            lists: Mutex::default(),
            arrived: Notify::new(),
            write_permits: Arc::new(Semaphore::new(MAX_QUEUED_WRITES)),
            event_byte_permits: Arc::new(Semaphore::new(MAX_QUEUED_EVENT_BYTES)),
        }
    }
}

impl WriteQueue {
    /// Adds a write once there is room for it.
    pub(crate) async fn push_write(self: &Arc<Self>, item: Box<dyn Write>) -> Result<Position, StoreError> {
        let (deadline, permits) = (Instant::now() + QUEUE_TIMEOUT, Arc::clone(&self.write_permits));
        let permit = acquire(permits, 1, deadline).await?;
        self.push(deadline, |lists, id| lists.writes.push_back(Queued { id, item, _permit: permit }))
    }

    /// Adds a batch once there is room for it.
    pub(crate) async fn push_batch(self: &Arc<Self>, item: PendingBatch) -> Result<Position, StoreError> {
        let (deadline, permits) = (Instant::now() + QUEUE_TIMEOUT, Arc::clone(&self.event_byte_permits));
        let bytes = (item.batch.bytes() + BATCH_OVERHEAD_BYTES).min(MAX_QUEUED_EVENT_BYTES);
        let permit = acquire(permits, bytes, deadline).await?;
        self.push(deadline, |lists, id| lists.batches.push_back(Queued { id, item, _permit: permit }))
    }

    fn push(self: &Arc<Self>, deadline: Instant, add: impl FnOnce(&mut Lists, u64)) -> Result<Position, StoreError> {
        let mut lists = self.lists.lock();
        if lists.is_closed {
            return Err(StoreError::Closed);
        }
        let id = lists.next_id;
        lists.next_id += 1;
        add(&mut lists, id);
        drop(lists);
        self.arrived.notify_one();
        Ok(Position { queue: Arc::clone(self), id, deadline })
    }

    /// The next group; `None` once the queue is closed and empty.
    pub(crate) async fn next(&self) -> Option<Group> {
        loop {
            {
                let mut lists = self.lists.lock();
                let group = lists.take();
                #[cfg(test)]
                {
                    lists.is_group_taken = group.is_some();
                }
                if group.is_some() {
                    return group;
                }
                if lists.is_closed {
                    return None;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// The number of queued writes and batches.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let lists = self.lists.lock();
        lists.writes.len() + lists.batches.len()
    }

    /// Whether the last group that was taken has not been written yet.
    #[cfg(test)]
    pub(crate) fn is_group_taken(&self) -> bool {
        self.lists.lock().is_group_taken
    }

    /// Refuses further writes and batches.
    pub(crate) fn close(&self) {
        self.lists.lock().is_closed = true;
        self.arrived.notify_one();
    }
}

impl Lists {
    fn take(&mut self) -> Option<Group> {
        let batches_first = self.writes.is_empty() || (self.writes_served && !self.batches.is_empty());
        self.writes_served = !batches_first;
        if !batches_first {
            let count = self.writes.len().min(MAX_GROUP_WRITES);
            return Some(Group::Writes(self.writes.drain(..count).map(|queued| queued.item).collect()));
        }
        if self.batches.is_empty() {
            return None;
        }
        // Each job once: a batch's numbers follow those of the one before it.
        let (mut jobs, mut events, mut bytes) = (HashSet::new(), 0, 0);
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for queued in self.batches.drain(..) {
            let batch = &queued.item.batch;
            let fits = taken.is_empty()
                || (events + batch.events() <= MAX_GROUP_EVENTS && bytes + batch.bytes() <= MAX_GROUP_EVENT_BYTES);
            // A later batch of the same job must not overtake the one that did not fit.
            if jobs.insert(batch.job()) && fits {
                events += batch.events();
                bytes += batch.bytes();
                taken.push(queued.item);
            } else {
                left.push_back(queued);
            }
        }
        self.batches = left;
        Some(Group::Batches(taken))
    }
}

async fn acquire(permits: Arc<Semaphore>, count: usize, deadline: Instant) -> Result<OwnedSemaphorePermit, StoreError> {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    match timeout_at(deadline, permits.acquire_many_owned(count)).await {
        Ok(Ok(permit)) => Ok(permit),
        Ok(Err(_closed)) => Err(StoreError::Closed),
        Err(_elapsed) => Err(StoreError::Busy),
    }
}

/// A caller's place in the queue. Dropping it before the writer has taken the write withdraws the write.
pub(crate) struct Position {
    queue: Arc<WriteQueue>,
    id: u64,
    deadline: Instant,
}

impl Position {
    /// Returns at the deadline for the write to begin.
    pub(crate) async fn overdue(&self) {
        sleep_until(self.deadline).await;
    }

    /// Removes the write from the queue; false when it has begun.
    pub(crate) fn withdraw(&self) -> bool {
        let mut lists = self.queue.lists.lock();
        let id = self.id;
        remove(&mut lists.writes, id) || remove(&mut lists.batches, id)
    }
}

impl Drop for Position {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// The queue is ordered by id.
fn remove<T>(queue: &mut VecDeque<Queued<T>>, id: u64) -> bool {
    match queue.binary_search_by_key(&id, |queued| queued.id) {
        Ok(at) => queue.remove(at).is_some(),
        Err(_) => false,
    }
}
