//! Calls under way, by name: whoever asks again while one runs gets the same answer.
//!
//! Owns that a call happens once at a time and runs to its end though the worker that asked has gone. What comes after
//! the end (the recorded answer) is the call's own to look for: it starts by looking.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use protocol::{CallId, ErrorCode, JobId};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::http::problem::{ApiError, Carried};

/// A call's name.
pub(super) type Key = (JobId, u32, CallId);
type Answer<A> = Result<Arc<A>, Carried>;

/// The calls of one kind.
pub(super) struct UnderWay<A> {
    tasks: TaskTracker,
    calls: Mutex<HashMap<Key, Call<A>>>,
}

struct Call<A> {
    question: String,
    answer: Shared<BoxFuture<'static, Answer<A>>>,
}

impl<A: Send + Sync + 'static> UnderWay<A> {
    pub(super) fn new(tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self { tasks, calls: Mutex::default() })
    }

    /// The answer to `question`; `call` gives it, unless the call of this name is under way already.
    pub(super) async fn join(
        self: &Arc<Self>,
        key: Key,
        question: &str,
        call: impl Future<Output = Result<A, ApiError>> + Send + 'static,
    ) -> Answer<A> {
        let answer = {
            let mut calls = self.lock();
            let known = calls.entry(key.clone()).or_insert_with(|| {
                let leaving = Leaving { calls: Arc::clone(self), key };
                let task = async move {
                    let answer = call.await;
                    drop(leaving);
                    answer.map(Arc::new).map_err(Carried::from)
                };
                let task = self.tasks.spawn(task.in_current_span());
                let answer = task.map(|done| done.unwrap_or_else(|died| Err(ApiError::internal(died).into())));
                Call { question: question.to_owned(), answer: answer.boxed().shared() }
            });
            if known.question != question {
                return Err(reused().into());
            }
            known.answer.clone()
        };
        answer.await
    }
}

impl<A> UnderWay<A> {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Call<A>>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of a call was that of another one.
pub(super) fn reused() -> ApiError {
    ApiError::new(
        ErrorCode::CallIdReused,
        "call_id names an earlier call that asked for something else; make a new one",
    )
}

/// Takes the call out of the map however its task ends.
struct Leaving<A> {
    calls: Arc<UnderWay<A>>,
    key: Key,
}

impl<A> Drop for Leaving<A> {
    fn drop(&mut self) {
        self.calls.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        (JobId::nil(), 1, CallId("c1".to_owned()))
    }

    #[tokio::test]
    async fn one_that_panics_is_forgotten() {
        let calls = UnderWay::<u32>::new(TaskTracker::new());
        let died = calls.join(key(), "q", async { panic!("the story wants it") }).await;
        assert_eq!(died.map_err(|error| error.0.code()), Err(ErrorCode::Internal));
        assert!(calls.lock().is_empty());
        let again = calls.join(key(), "q", async { Ok(7) }).await;
        assert_eq!(again.map_err(|error| error.0.code()), Ok(Arc::new(7)));
    }

    #[tokio::test]
    async fn it_runs_once_and_a_name_means_one_question() {
        let calls = UnderWay::<u32>::new(TaskTracker::new());
        let (go, gone) = tokio::sync::oneshot::channel();
        let first = calls.join(key(), "q", async { Ok(gone.await.unwrap_or_default()) });
        let second = calls.join(key(), "q", async { panic!("it is under way") });
        let other = async {
            let refused = calls.join(key(), "another", async { panic!("it is under way") }).await;
            go.send(7).unwrap();
            refused
        };
        let (first, second, other) = tokio::join!(first, second, other);
        assert_eq!(
            (first.map_err(|error| error.0.code()), second.map_err(|error| error.0.code())),
            (Ok(Arc::new(7)), Ok(Arc::new(7)))
        );
        assert_eq!(other.map_err(|error| error.0.code()), Err(ErrorCode::CallIdReused));
        assert!(calls.lock().is_empty());
    }
}
