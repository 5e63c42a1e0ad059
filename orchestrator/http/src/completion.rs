//! Requests whose work must not be cancelled when their client disconnects.

use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::problem::ApiError;

/// Runs work that has more than one step to its end. Without this, a client that disconnects would drop the request between
/// two steps: a change and its audit entry, or pausing a container and unpausing it.
pub(super) async fn run_to_completion<T: Send + 'static>(
    tasks: &TaskTracker,
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    tasks.spawn(work.in_current_span()).await.map_err(ApiError::internal)?
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_is_completed_though_its_client_disconnects() {
        let tasks = TaskTracker::new();
        let (proceed, may_proceed) = oneshot::channel();
        let (finish, is_finished) = oneshot::channel();
        let work = async move {
            may_proceed.await.map_err(ApiError::internal)?;
            finish.send(()).map_err(|()| ApiError::internal("no receiver"))
        };
        let mut request = Box::pin(run_to_completion(&tasks, work));
        assert!(futures_util::poll!(&mut request).is_pending());
        drop(request);
        proceed.send(()).unwrap();
        is_finished.await.unwrap();
    }
}
