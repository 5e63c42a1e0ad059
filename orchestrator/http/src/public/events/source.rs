//! The source of the streams of `GET /api/events` and `GET /api/chat/events`: stored events, and what is live between them.
//!
//! Owns the order of the two: a piece of an answer comes before the message that contains it, and after the messages before
//! it; what a job does comes after the stored events that it is as of. Never buffers for a client that reads too slowly: its
//! stream ends.

use std::future::pending;

use axum::response::sse::Event as Sse;
use store::{EventSubscription, StoreError};

use super::{
    live_chat::{Arrived, LiveChat},
    live_jobs::LiveJobs,
    reader::InstanceReader,
};
use crate::public::response::stream::{Batch, EventSource, Next};

pub(in crate::public) struct InstanceEvents {
    subscription: EventSubscription,
    stored: InstanceReader,
    /// There may be stored events that were not read.
    is_stored_new: bool,
    /// Stored events up to this cursor come before the next live one.
    up_to: Option<i64>,
    chat: Option<LiveChat>,
    jobs: Option<LiveJobs>,
    /// What jobs do, and the cursor of the last stored event that comes before it.
    held: Option<(i64, Vec<Sse>)>,
}

impl InstanceEvents {
    pub(in crate::public) const fn new(subscription: EventSubscription, stored: InstanceReader) -> Self {
        Self { subscription, stored, is_stored_new: true, up_to: None, chat: None, jobs: None, held: None }
    }

    /// With the live events of threads.
    pub(in crate::public) fn with_chat(self, chat: Option<LiveChat>) -> Self {
        Self { chat, ..self }
    }

    /// With what jobs do.
    pub(super) fn with_jobs(self, jobs: Option<LiveJobs>) -> Self {
        Self { jobs, ..self }
    }

    /// Of what is stored up to here, the live events that come before it have arrived; `None` if all of it was read.
    async fn stored_until(&self) -> Result<Option<i64>, StoreError> {
        if !self.is_stored_new {
            return Ok(None);
        }
        // Without pieces there is nothing to wait for.
        if self.chat.is_some() { self.stored.last().await.map(Some) } else { Ok(Some(i64::MAX)) }
    }

    /// Reads the stored events that come next, and then what follows them.
    async fn read_stored(&mut self, up_to: i64) -> Result<Batch, StoreError> {
        // What was stored after jobs were read comes after them.
        let until = self.held.as_ref().map_or(up_to, |(as_of, _)| up_to.min(*as_of));
        let Batch { mut messages, next } = self.stored.read(until).await?;
        if next == Next::Wait && until == up_to {
            self.up_to = None;
        }
        if self.held.as_ref().is_some_and(|(as_of, _)| *as_of <= self.stored.position()) {
            messages.extend(self.held.take().into_iter().flat_map(|(_, live)| live));
        }
        Ok(Batch { messages, next: Next::Read })
    }
}

impl EventSource for InstanceEvents {
    async fn changed(&mut self) {
        let due = self.jobs.as_ref().and_then(LiveJobs::due);
        tokio::select! {
            () = self.subscription.changed() => {
                self.is_stored_new = true;
                self.jobs.iter_mut().for_each(LiveJobs::note_change);
            }
            () = async { match &mut self.chat { Some(chat) => chat.wait().await, None => pending().await } } => {}
            () = async { match due { Some(due) => tokio::time::sleep_until(due).await, None => pending().await } } => {}
        }
    }

    async fn read(&mut self) -> Result<Batch, StoreError> {
        if let Some(up_to) = self.up_to {
            return self.read_stored(up_to).await;
        }
        if let Some(jobs) = self.jobs.as_mut().filter(|jobs| jobs.is_due()) {
            self.held = jobs.read().await?;
            self.is_stored_new |= self.held.is_some();
        }
        let until = self.stored_until().await?;
        let arrived = match &mut self.chat {
            Some(chat) => chat.take(),
            None => Ok(Arrived::default()),
        };
        let Ok(arrived) = arrived else {
            tracing::debug!("a reader of live events was too slow");
            return Ok(Batch { messages: vec![], next: Next::End });
        };
        self.up_to = arrived.stored;
        let has_more = arrived.is_full();
        if self.up_to.is_none() && !has_more && until.is_some() {
            self.is_stored_new = false;
            self.up_to = until;
        }
        let next = if has_more || self.up_to.is_some() { Next::Read } else { Next::Wait };
        Ok(Batch { messages: arrived.messages, next })
    }

    fn position(&self) -> (&'static str, i64) {
        ("cursor", self.stored.position())
    }
}

#[cfg(test)]
mod tests;
