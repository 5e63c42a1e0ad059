//! Shared by the endpoints of threads: how a request names one, and who may use it.

use auth::Identity;
use domain::chat::ThreadRef;
use store::{OwnedThread, ThreadCaller, ThreadChange};

use crate::{problem::ApiError, public::PublicApi};

/// The thread that a request names by its id or key. A name that is neither is that of no thread.
pub(super) fn named(thread: &str) -> Result<ThreadRef, ApiError> {
    ThreadRef::parse(thread).ok_or_else(ApiError::not_found)
}

/// The thread, if it exists and the caller may see it.
pub(super) async fn authorize(api: &PublicApi, who: &Identity, thread: &str) -> Result<OwnedThread, ApiError> {
    let found = api.store.chat_thread(&who.user, &named(thread)?).await?.ok_or_else(ApiError::not_found)?;
    if who.may_see(&found.user) { Ok(found) } else { Err(ApiError::not_owner()) }
}

/// The caller, for a change of a thread.
pub(super) fn caller(who: &Identity) -> ThreadCaller {
    ThreadCaller { user: who.user.clone(), sees_all: who.role.sees_all() }
}

/// The thread that was changed, or the problem.
pub(super) fn changed(change: ThreadChange) -> Result<protocol::ThreadId, ApiError> {
    match change {
        ThreadChange::Done(thread) => Ok(thread),
        ThreadChange::Missing => Err(ApiError::not_found()),
        ThreadChange::NotOwner => Err(ApiError::not_owner()),
    }
}
