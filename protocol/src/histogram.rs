//! Numbers of jobs and runs by the hour in which they were created.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// The jobs that were created in an hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobHour {
    /// The beginning of the hour, in UTC.
    pub hour: DateTime<Utc>,
    /// Their number by state, without states that none has.
    pub states: BTreeMap<String, u64>,
}

/// The answer to `GET /api/jobs/histogram`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobHistogram {
    /// The hours with jobs, the earliest first.
    pub items: Vec<JobHour>,
}

/// The runs that were recorded in an hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunHour {
    /// The beginning of the hour, in UTC.
    pub hour: DateTime<Utc>,
    /// Their number by status, without statuses that none has.
    pub statuses: BTreeMap<String, u64>,
}

/// The answer to `GET /api/runs/histogram`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunHistogram {
    /// The hours with runs, the earliest first.
    pub items: Vec<RunHour>,
}
