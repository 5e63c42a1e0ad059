//! Bytes of request bodies in memory, reserved before they are read, and large JSON being parsed.
//!
//! Owns the reservations of a request. Never reads a body.

use std::{sync::Arc, time::Duration};

use base::per_user_semaphore::{PerUserSemaphore, Permit};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// Unit of reservations.
const UNIT_BYTES: usize = 1024;
/// Bodies up to this size have an eighth of the budget to themselves, so that a heartbeat never waits for model calls.
const SMALL_BODY_BYTES: usize = 256 * 1024;
/// Maximum wait for a reservation; then the request is refused.
const RESERVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Large bodies parsed at once, of one kind of listener. Each takes a core, and as much memory again as it has bytes.
const PUBLIC_PARSES_AT_ONCE: usize = 1;
const WORKER_PARSES_AT_ONCE: usize = 2;
/// A user's share of the public budget is one of so many.
const PUBLIC_SHARES: usize = 4;
const TOTAL_BYTES: usize = 256 * 1024 * 1024;
const TOTAL_SMALL_BYTES: usize = 32 * 1024 * 1024;

/// Body bytes that may be in memory at once. Clones are the same budget.
#[derive(Debug, Clone)]
pub struct BodyBudget {
    small: Arc<PerUserSemaphore>,
    large: Arc<PerUserSemaphore>,
    parses: Arc<Semaphore>,
}

impl BodyBudget {
    /// The budget of one worker's socket: 40 MiB, so one model call of the largest size and 16 requests of the small ones fit.
    pub fn worker_socket() -> Self {
        Self::of(40 * 1024 * 1024, 16 * SMALL_BODY_BYTES, 1, WORKER_PARSES_AT_ONCE)
    }

    /// The budget of all worker sockets together.
    pub fn workers() -> Self {
        Self::of(TOTAL_BYTES, TOTAL_SMALL_BYTES, 1, WORKER_PARSES_AT_ONCE)
    }

    /// The budget of the public listener: a user has a quarter, so that announcing bodies never keeps other users' requests out.
    pub fn public() -> Self {
        Self::of(TOTAL_BYTES, TOTAL_SMALL_BYTES, PUBLIC_SHARES, PUBLIC_PARSES_AT_ONCE)
    }

    pub(super) fn of(bytes: usize, small_bytes: usize, shares: usize, parses: usize) -> Self {
        let units = |bytes: usize| {
            let units = bytes / UNIT_BYTES;
            Arc::new(PerUserSemaphore::new(units, units / shares))
        };
        let parses = Arc::new(Semaphore::new(parses));
        Self { small: units(small_bytes), large: units(bytes.saturating_sub(small_bytes)), parses }
    }

    fn class(&self, bytes: usize) -> &PerUserSemaphore {
        if bytes <= SMALL_BODY_BYTES { &self.small } else { &self.large }
    }
}

/// The budgets of a listener.
#[derive(Debug)]
pub(super) struct BodyLimits {
    pub(super) own: Option<BodyBudget>,
    pub(super) all: BodyBudget,
}

/// The reservation for a body timed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoCapacity;

/// The memory that a request has reserved for its body, until it is answered.
#[derive(Debug)]
pub struct BodyReservation {
    limits: Arc<BodyLimits>,
    /// The user, for the user's share; empty where there are no shares.
    user: Mutex<String>,
    held: Mutex<Vec<Permit>>,
}

impl BodyReservation {
    pub(super) fn new(limits: Arc<BodyLimits>) -> Self {
        Self { limits, user: Mutex::default(), held: Mutex::default() }
    }

    /// Sets the user whose share the body counts to.
    pub(crate) fn belongs_to(&self, user: &str) {
        user.clone_into(&mut self.user.lock());
    }

    /// Reserves memory for a body, waiting at most `RESERVE_TIMEOUT`: first of the listener's budget, then of the total, so that
    /// no request holds a part of the total while it waits for its listener's.
    pub async fn reserve(&self, bytes: usize) -> Result<(), NoCapacity> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).map_err(|_| NoCapacity)?;
        let user = self.user.lock().clone();
        let permits = async {
            let mut permits = Vec::with_capacity(2);
            for budget in self.limits.own.iter().chain([&self.limits.all]) {
                let permit = budget.class(bytes).acquire_many(&user, units).await;
                permits.push(permit.map_err(|_| NoCapacity)?);
            }
            Ok(permits)
        };
        let permits = timeout(RESERVE_TIMEOUT, permits).await.unwrap_or(Err(NoCapacity))?;
        self.held.lock().extend(permits);
        Ok(())
    }

    /// Waits for a permit to parse a large body. It is kept until the body is parsed, even if the request is dropped.
    pub(crate) async fn parse_turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.limits.all.parses).acquire_owned().await.ok()
    }
}
