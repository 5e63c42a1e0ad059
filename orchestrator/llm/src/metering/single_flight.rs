//! Single flight: calls with the same id share one execution and its result.
//!
//! A call runs at most once at a time, and to its end even if all its callers have gone. A caller that comes after the
//! end starts a new execution, which begins by looking for the recorded result.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use futures_util::{FutureExt, future::Shared};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

/// The calls in flight, by id.
#[derive(Debug)]
pub struct SingleFlight<K, T> {
    tasks: TaskTracker,
    calls: Mutex<HashMap<K, InFlight<T>>>,
}

#[derive(Debug)]
struct InFlight<T> {
    request_digest: String,
    result: Shared<oneshot::Receiver<T>>,
}

/// Why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FlightError {
    /// A call with this id is in flight that asks for something else.
    #[error("the call id is in use by another request")]
    IdReused,
    /// Its task panicked, or the process ends.
    #[error("the call was abandoned")]
    Abandoned,
}

impl<K, T> SingleFlight<K, T>
where
    K: Clone + Eq + Hash + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    /// Empty. Executions are owned by `tasks`.
    pub fn new(tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self { tasks, calls: Mutex::default() })
    }

    /// Returns the result of the call in flight with this id, or of `call`, which is run when there is none.
    pub async fn run(
        self: &Arc<Self>,
        id: K,
        request_digest: &str,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, FlightError> {
        let (send, receive) = oneshot::channel();
        let joined = {
            let mut calls = self.calls.lock();
            match calls.get(&id) {
                Some(known) if known.request_digest == request_digest => Ok(known.result.clone()),
                Some(_) => return Err(FlightError::IdReused),
                None => {
                    let result = receive.shared();
                    let own = InFlight { request_digest: request_digest.to_owned(), result: result.clone() };
                    calls.insert(id.clone(), own);
                    Err(result)
                }
            }
        };
        let result = match joined {
            Ok(result) => result,
            Err(result) => {
                // Outside the lock: a task that is dropped at once, as when the runtime shuts down, takes it.
                let remove_on_drop = RemoveOnDrop { calls: Arc::clone(self), id };
                let execution = async move {
                    let done = call.await;
                    drop(remove_on_drop);
                    // No caller waits any more: the result was recorded by the call itself.
                    let _ = send.send(done);
                };
                self.tasks.spawn(execution.in_current_span());
                result
            }
        };
        result.await.map_err(|_| FlightError::Abandoned)
    }
}

/// Removes the call from the map however its task ends.
struct RemoveOnDrop<K: Eq + Hash, T> {
    calls: Arc<SingleFlight<K, T>>,
    id: K,
}

impl<K: Eq + Hash, T> Drop for RemoveOnDrop<K, T> {
    fn drop(&mut self) {
        self.calls.calls.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flights() -> Arc<SingleFlight<&'static str, u32>> {
        SingleFlight::new(TaskTracker::new())
    }

    #[tokio::test]
    async fn a_call_that_panics_is_removed() {
        let calls = flights();
        assert_eq!(calls.run("c1", "q", async { panic!("expected by the test") }).await, Err(FlightError::Abandoned));
        assert!(calls.calls.lock().is_empty());
        assert_eq!(calls.run("c1", "q", async { 7 }).await, Ok(7));
    }

    #[tokio::test]
    async fn a_call_runs_once_and_its_id_is_one_requests() {
        let calls = flights();
        let (go, gone) = oneshot::channel();
        let first = calls.run("c1", "q", async { gone.await.unwrap_or_default() });
        let second = calls.run("c1", "q", async { panic!("it is in flight") });
        let other = async {
            let refused = calls.run("c1", "another", async { panic!("it is in flight") }).await;
            go.send(7).unwrap();
            refused
        };
        assert_eq!(tokio::join!(first, second, other), (Ok(7), Ok(7), Err(FlightError::IdReused)));
        assert!(calls.calls.lock().is_empty());
    }

    #[tokio::test]
    async fn a_call_runs_to_its_end_though_its_caller_is_gone() {
        let calls = flights();
        let (go, gone) = oneshot::channel();
        let (done, is_done) = oneshot::channel();
        let call = async move {
            let number = gone.await.unwrap_or_default();
            done.send(number).unwrap();
            number
        };
        {
            let mut caller = Box::pin(calls.run("c1", "q", call));
            assert!(futures_util::poll!(&mut caller).is_pending());
        }
        go.send(7).unwrap();
        assert_eq!(is_done.await, Ok(7));
    }

    #[test]
    fn a_call_that_the_runtime_drops_at_once_blocks_no_other_call() {
        let calls = flights();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let handle = runtime.handle().clone();
        drop(runtime);
        let _inside = handle.enter();
        let mut caller = Box::pin(calls.run("c1", "q", async { 7 }));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(matches!(caller.as_mut().poll(&mut context), std::task::Poll::Ready(Err(FlightError::Abandoned))));
        assert!(calls.calls.lock().is_empty());
    }
}
