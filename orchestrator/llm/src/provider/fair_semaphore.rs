//! A semaphore over a provider's concurrency slots that is fair to users, then to jobs, instead of first come, first
//! served. Many calls of one user delay another user's call by one turn.
//!
//! Owns the slots; the order of the calls that wait is the queue's. Never knows what a slot is used for.

use std::sync::Arc;

use parking_lot::Mutex;
use protocol::WorkId;
use tokio::sync::oneshot;

use super::breaker::CallOwner;
use base::fair_queue::FairQueue;

/// The slots; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct FairSemaphore(Arc<Mutex<Slots>>);

/// One slot, released on drop.
#[derive(Debug)]
pub(crate) struct SlotPermit {
    semaphore: FairSemaphore,
    /// None once it was released.
    user: Option<String>,
}

#[derive(Debug)]
struct Slots {
    free: usize,
    /// The calls that wait, and the slots that each user holds.
    calls: FairQueue<WorkId, oneshot::Sender<SlotPermit>>,
}

impl FairSemaphore {
    pub(crate) fn new(slots: usize) -> Self {
        Self(Arc::new(Mutex::new(Slots { free: slots, calls: FairQueue::default() })))
    }

    /// Waits for a slot. Cancel-safe: a dropped future holds none.
    pub(crate) async fn acquire(&self, caller: CallOwner<'_>) -> SlotPermit {
        loop {
            let turn = {
                let mut slots = self.0.lock();
                if slots.free > 0 {
                    slots.free -= 1;
                    slots.calls.begin(caller.user);
                    return self.permit(caller.user.to_owned());
                }
                slots.enqueue(caller)
            };
            // An error means that the sender was dropped without a permit: queue again.
            if let Ok(permit) = turn.await {
                return permit;
            }
        }
    }

    fn permit(&self, user: String) -> SlotPermit {
        SlotPermit { semaphore: self.clone(), user: Some(user) }
    }

    fn release(&self, user: &str) {
        let mut slots = self.0.lock();
        slots.put_back(user);
        while slots.free > 0
            && let Some((user, call)) = slots.calls.pop()
        {
            slots.free -= 1;
            if let Err(mut unwanted) = call.send(self.permit(user.clone())) {
                // The call was given up. Disarmed here, since dropping the permit would lock again.
                unwanted.user = None;
                slots.put_back(&user);
            }
        }
    }
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        if let Some(user) = self.user.take() {
            self.semaphore.release(&user);
        }
    }
}

impl Slots {
    fn enqueue(&mut self, caller: CallOwner<'_>) -> oneshot::Receiver<SlotPermit> {
        let (call, turn) = oneshot::channel();
        // Calls that were given up while they waited would pile up behind slots that stay taken.
        self.calls.retain(caller.user, |call| !call.is_closed());
        self.calls.push(caller.user, caller.work, call);
        turn
    }

    fn put_back(&mut self, user: &str) {
        self.free += 1;
        self.calls.finish(user);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::JobId;
    use tokio::{
        sync::mpsc,
        time::{sleep, timeout},
    };

    use super::*;

    /// Lets each caller wait in this order behind one slot that is taken, then gives it back: the order of service.
    async fn served(callers: &[(&'static str, usize)]) -> Vec<(&'static str, usize)> {
        let jobs: Vec<JobId> = (0..10).map(|_| JobId::generate()).collect();
        let semaphore = FairSemaphore::new(1);
        let first = semaphore.acquire(CallOwner { work: JobId::generate().into(), user: "first" }).await;
        let (done, mut order) = mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        for &(user, job) in callers {
            let (semaphore, done, id) = (semaphore.clone(), done.clone(), jobs[job]);
            tasks.spawn(async move {
                let permit = semaphore.acquire(CallOwner { work: id.into(), user }).await;
                done.send((user, job)).unwrap();
                sleep(Duration::from_secs(1)).await;
                drop(permit);
            });
            tokio::task::yield_now().await;
        }
        drop((first, done));
        let mut served = Vec::new();
        while let Some(one) = order.recv().await {
            served.push(one);
        }
        tasks.join_all().await;
        let slots = semaphore.0.lock();
        assert!(slots.free == 1 && slots.calls.is_empty());
        served
    }

    #[tokio::test(start_paused = true)]
    async fn users_take_turns_then_their_jobs() {
        let callers = [("ada", 0), ("ada", 0), ("ada", 0), ("ada", 1), ("bob", 2), ("bob", 2), ("cleo", 3)];
        let expected = [("ada", 0), ("bob", 2), ("cleo", 3), ("ada", 1), ("bob", 2), ("ada", 0), ("ada", 0)];
        assert_eq!(served(&callers).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_who_holds_many_slots_waits_for_one_who_holds_none() {
        let semaphore = FairSemaphore::new(3);
        let call = |user| CallOwner { work: JobId::generate().into(), user };
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(semaphore.acquire(call("ada")).await);
        }
        let (ada, bob) = (semaphore.acquire(call("ada")), semaphore.acquire(call("bob")));
        tokio::pin!(ada, bob);
        assert!(timeout(Duration::from_secs(1), &mut ada).await.is_err());
        assert!(timeout(Duration::from_secs(1), &mut bob).await.is_err());
        held.pop();
        let bobs = timeout(Duration::from_secs(1), &mut bob).await.expect("bob is next, though ada came first");
        assert!(timeout(Duration::from_secs(1), &mut ada).await.is_err());
        drop(bobs);
        timeout(Duration::from_secs(1), ada).await.expect("the slot is ada's now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_given_up_takes_no_slot() {
        let semaphore = FairSemaphore::new(1);
        let call = |user| CallOwner { work: JobId::generate().into(), user };
        let held = semaphore.acquire(call("ada")).await;
        assert!(timeout(Duration::from_secs(1), semaphore.acquire(call("bob"))).await.is_err());
        // One that is given up in the moment in which it is served.
        let mut late = Box::pin(semaphore.acquire(call("cleo")));
        assert!(timeout(Duration::from_secs(1), &mut late).await.is_err());
        drop(held);
        drop(late);
        timeout(Duration::from_secs(1), semaphore.acquire(call("dan"))).await.expect("the slot is free");
    }
}
