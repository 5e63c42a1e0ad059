//! Metrics for Prometheus.
//!
//! Owns the only registry with every metric name and label. No label holds an id, a user or anything else of unbounded
//! cardinality. What the database counts (jobs, events) is read at each scrape; the rest is recorded when it happens.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use protocol::{JobState, TokenUsage};

/// Histogram bounds: from a local request to a job that is queued for half an hour.
const BUCKETS_SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

const JOBS: &str = "gantry_jobs";
const QUEUE_LENGTH: &str = "gantry_queue_length";
const EVENT_STREAMS: &str = "gantry_sse_readers";
const BUILD_INFO: &str = "gantry_build_info";
const JOBS_ENDED: &str = "gantry_jobs_ended_total";
const EVENTS_APPENDED: &str = "gantry_events_appended_total";
const JOBS_STUCK: &str = "gantry_jobs_stuck_total";
const REPAIRS: &str = "gantry_repairs_total";
const WORKERS_LOST: &str = "gantry_workers_lost_total";
const REQUESTS_FENCED: &str = "gantry_fenced_requests_total";
const ORPHANS_REMOVED: &str = "gantry_orphans_removed_total";
const ROWS_INCONSISTENT: &str = "gantry_inconsistent_rows_total";
const JOB_ENDS_DROPPED: &str = "gantry_job_end_notices_dropped_total";
const MODEL_TOKENS: &str = "gantry_model_tokens_total";
const MODEL_COST: &str = "gantry_model_cost_micro_usd_total";
const CONNECTIONS_TIMED_OUT: &str = "gantry_slow_readers_dropped_total";
const CONNECTIONS_REFUSED: &str = "gantry_connections_refused_total";
const REQUESTS_LIMITED: &str = "gantry_requests_limited_total";
const SESSIONS_REJECTED: &str = "gantry_worker_sessions_rejected_total";
const REFUSALS_UNRECORDED: &str = "gantry_audit_refusals_unrecorded_total";
const REQUESTS_UNAUTHENTICATED: &str = "gantry_unauthenticated_requests_total";
const QUEUE_WAIT: &str = "gantry_queue_wait_seconds";
const ATTEMPT_START: &str = "gantry_attempt_start_seconds";
const CONTAINER_REMOVAL: &str = "gantry_container_removal_seconds";
const MODEL_CALL: &str = "gantry_model_call_seconds";
const HTTP_REQUEST: &str = "gantry_http_request_seconds";

/// Names and descriptions.
const GAUGES: &[(&str, &str)] = &[
    (JOBS, "Jobs by state, from the database."),
    (QUEUE_LENGTH, "Jobs in the queue."),
    (EVENT_STREAMS, "Open event streams."),
    (BUILD_INFO, "Always 1; the version is a label."),
];
const COUNTERS: &[(&str, &str)] = &[
    (JOBS_ENDED, "Finished jobs by state and reason, from the database."),
    (EVENTS_APPENDED, "Events written, from the database."),
    (JOBS_STUCK, "Jobs that became stuck."),
    (REPAIRS, "Repairs of stuck jobs, by a nudge to the worker or by a new attempt."),
    (WORKERS_LOST, "Attempts that ended without their worker's report and without an error."),
    (REQUESTS_FENCED, "Worker requests rejected because their attempt has been replaced."),
    (ORPHANS_REMOVED, "Removed containers and run directories that belonged to no job."),
    (ROWS_INCONSISTENT, "Rows of the database that make no sense and are left out, by table."),
    (JOB_ENDS_DROPPED, "Ends of jobs that were not announced because too many waited for the hooks."),
    (MODEL_TOKENS, "Tokens of model calls by kind."),
    (MODEL_COST, "Cost of model calls in micro-dollars; calls without a known price count as 0."),
    (CONNECTIONS_TIMED_OUT, "Connections closed because the client stopped reading."),
    (CONNECTIONS_REFUSED, "Connections closed because of a limit on connections."),
    (REQUESTS_LIMITED, "Requests rejected because of a limit on concurrency or rate."),
    (SESSIONS_REJECTED, "Worker calls with a valid token but another session or none."),
    (REFUSALS_UNRECORDED, "Refused requests without an audit row, because their user exceeded the rate of rows."),
    (REQUESTS_UNAUTHENTICATED, "Requests of the public API without a token signed by this server."),
];
const HISTOGRAMS: &[(&str, &str)] = &[
    (QUEUE_WAIT, "Seconds from a job's creation to its first start."),
    (ATTEMPT_START, "Seconds from the start of an attempt to its worker's first call."),
    (CONTAINER_REMOVAL, "Seconds from a job's end to its container's removal."),
    (MODEL_CALL, "Seconds per model call by provider and outcome, waits and retries included."),
    (
        HTTP_REQUEST,
        "Seconds per HTTP request by side, method, route and status class; a stream is measured up to its response head.",
    ),
];
/// Counters without labels: exported as 0 from the start.
const UNLABELLED_COUNTERS: &[&str] = &[
    JOBS_STUCK,
    WORKERS_LOST,
    REQUESTS_FENCED,
    JOB_ENDS_DROPPED,
    MODEL_COST,
    CONNECTIONS_TIMED_OUT,
    CONNECTIONS_REFUSED,
    REQUESTS_LIMITED,
    SESSIONS_REJECTED,
    REFUSALS_UNRECORDED,
    REQUESTS_UNAUTHENTICATED,
];

/// The metrics registry. Clones share it.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

/// Counts from the database at the time of a scrape.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DbCounts {
    /// Jobs by state and reason.
    pub jobs: Vec<JobCount>,
    /// Jobs that were deleted, by the state and reason that they had.
    pub deleted: Vec<JobCount>,
    /// Events written so far, including trimmed ones.
    pub events: u64,
}

/// The jobs of one state and reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobCount {
    /// The state; `None` for rows with a state that does not exist.
    pub state: Option<JobState>,
    /// The reason's name, `none`, or [`UNKNOWN`].
    pub reason: &'static str,
    pub jobs: u64,
}

/// Label value for what an inconsistent row has.
pub const UNKNOWN: &str = "unknown";

/// A finished HTTP request.
#[derive(Debug, Clone, Copy)]
pub struct HttpRequest<'a> {
    /// `public`, `worker` or `metrics`.
    pub side: &'static str,
    /// Unknown methods are counted as `other`.
    pub method: &'a str,
    /// The route's pattern, without parameter values.
    pub route: &'a str,
    /// The response's status code.
    pub status: u16,
    /// Up to the response head.
    pub duration: Duration,
}

/// A finished model call.
#[derive(Debug, Clone, Copy)]
pub struct ModelCall<'a> {
    /// The provider's configured name.
    pub provider: &'a str,
    /// One of a fixed set of values.
    pub outcome: &'static str,
    pub usage: TokenUsage,
    /// None if the model has no known price.
    pub cost_micro_usd: Option<i64>,
    /// Including waits and retries.
    pub duration: Duration,
}

impl Default for Metrics {
    fn default() -> Self {
        let builder = PrometheusBuilder::new();
        // Fails only for an empty list; histograms would be summaries then.
        let recorder = builder.set_buckets(BUCKETS_SECONDS).unwrap_or_default().build_recorder();
        for (name, help) in GAUGES {
            recorder.describe_gauge(KeyName::from_const_str(name), None, (*help).into());
        }
        for (name, help) in COUNTERS {
            recorder.describe_counter(KeyName::from_const_str(name), None, (*help).into());
        }
        for (name, help) in HISTOGRAMS {
            recorder.describe_histogram(KeyName::from_const_str(name), None, (*help).into());
        }
        let handle = recorder.handle();
        let metrics = Self(Arc::new(Inner { recorder, handle }));
        for name in UNLABELLED_COUNTERS {
            metrics.counter(name, &[]).absolute(0);
        }
        metrics.gauge(EVENT_STREAMS, &[]).set(0);
        metrics.gauge(BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        metrics
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// A request's method as a label; `other` for any that is not standard, since clients can send arbitrary ones.
pub fn known_method(method: &str) -> &str {
    match method {
        "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS" => method,
        _ => "other",
    }
}

impl Metrics {
    /// All metrics in the Prometheus text format.
    pub fn render(&self, counts: &DbCounts) -> String {
        for state in JobState::ALL {
            self.gauge(JOBS, &[("state", state.as_str())]).set(counts.in_state(Some(*state)));
        }
        self.gauge(JOBS, &[("state", UNKNOWN)]).set(counts.in_state(None));
        self.gauge(QUEUE_LENGTH, &[]).set(counts.in_state(Some(JobState::Pending)));
        for ((state, reason), jobs) in counts.ended() {
            self.counter(JOBS_ENDED, &[("state", state), ("reason", reason)]).absolute(jobs);
        }
        self.counter(EVENTS_APPENDED, &[]).absolute(counts.events);
        self.0.handle.render()
    }

    /// Moves recorded samples into their buckets. Must be called periodically: without scrapes samples would
    /// accumulate.
    pub fn upkeep(&self) {
        self.0.handle.run_upkeep();
    }

    /// Records a finished HTTP request.
    pub fn http_request(&self, request: HttpRequest<'_>) {
        let method = known_method(request.method);
        let class = match request.status / 100 {
            1 => "1xx",
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        let labels = [("side", request.side), ("method", method), ("route", request.route), ("status", class)];
        self.histogram(HTTP_REQUEST, &labels).record(request.duration);
    }

    /// Records the start of a job's first attempt after `queue_wait`.
    pub fn job_started(&self, queue_wait: Duration) {
        self.histogram(QUEUE_WAIT, &[]).record(queue_wait);
    }

    /// Records the first call of an attempt's worker, `elapsed` after the attempt began.
    pub fn first_worker_call(&self, elapsed: Duration) {
        self.histogram(ATTEMPT_START, &[]).record(elapsed);
    }

    /// Counts a row of a table that makes no sense. The caller counts each row once.
    pub fn inconsistent_row(&self, table: &'static str) {
        self.counter(ROWS_INCONSISTENT, &[("table", table)]).increment(1);
    }

    /// Counts an end of a job that is not announced.
    pub fn job_end_dropped(&self) {
        self.counter(JOB_ENDS_DROPPED, &[]).increment(1);
    }

    /// Records the removal of a finished job's container, `elapsed` after the job's end.
    pub fn container_removed(&self, elapsed: Duration) {
        self.histogram(CONTAINER_REMOVAL, &[]).record(elapsed);
    }

    /// Counts a job that became stuck.
    pub fn job_stuck(&self) {
        self.counter(JOBS_STUCK, &[]).increment(1);
    }

    /// Counts a repair of a stuck job by `nudge` or by `attempt`.
    pub fn job_repaired(&self, by: &'static str) {
        self.counter(REPAIRS, &[("by", by)]).increment(1);
    }

    /// Counts an attempt whose worker was lost.
    pub fn worker_lost(&self) {
        self.counter(WORKERS_LOST, &[]).increment(1);
    }

    /// Counts a request of a replaced attempt's worker.
    pub fn request_fenced(&self) {
        self.counter(REQUESTS_FENCED, &[]).increment(1);
    }

    /// Counts a connection that was closed because of a limit.
    pub fn connection_refused(&self) {
        self.counter(CONNECTIONS_REFUSED, &[]).increment(1);
    }

    /// Counts a request that was rejected because of a limit.
    pub fn request_limited(&self) {
        self.counter(REQUESTS_LIMITED, &[]).increment(1);
    }

    /// Counts a call with a valid token but another session or none.
    pub fn session_rejected(&self) {
        self.counter(SESSIONS_REJECTED, &[]).increment(1);
    }

    /// Counts the removal of a `container` or run `directory` that belonged to no job.
    pub fn orphan_removed(&self, kind: &'static str) {
        self.counter(ORPHANS_REMOVED, &[("kind", kind)]).increment(1);
    }

    /// Counts a connection that was closed because its client stopped reading.
    pub fn connection_timed_out(&self) {
        self.counter(CONNECTIONS_TIMED_OUT, &[]).increment(1);
    }

    /// Counts a refusal without an audit row.
    pub fn refusal_unrecorded(&self) {
        self.counter(REFUSALS_UNRECORDED, &[]).increment(1);
    }

    /// Counts a request without a token signed by this server.
    pub fn request_unauthenticated(&self) {
        self.counter(REQUESTS_UNAUTHENTICATED, &[]).increment(1);
    }

    /// Records a finished model call.
    pub fn model_call(&self, call: &ModelCall<'_>) {
        let labels = [("provider", call.provider), ("outcome", call.outcome)];
        self.histogram(MODEL_CALL, &labels).record(call.duration);
        let usage = &call.usage;
        let kinds = [
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cache_read", usage.cache_read_tokens),
            ("cache_write", usage.cache_write_tokens),
        ];
        for (kind, count) in kinds {
            self.counter(MODEL_TOKENS, &[("kind", kind)]).increment(count);
        }
        let cost = call.cost_micro_usd.and_then(|cost| u64::try_from(cost).ok());
        self.counter(MODEL_COST, &[]).increment(cost.unwrap_or(0));
    }

    /// Counts an open event stream until the guard is dropped.
    pub fn event_stream_opened(&self) -> EventStreamGuard {
        let gauge = self.gauge(EVENT_STREAMS, &[]);
        gauge.increment(1);
        EventStreamGuard(gauge)
    }

    fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        self.0.recorder.register_counter(&key(name, labels), &METADATA)
    }

    fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.0.recorder.register_gauge(&key(name, labels), &METADATA)
    }

    fn histogram(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        self.0.recorder.register_histogram(&key(name, labels), &METADATA)
    }
}

impl DbCounts {
    /// The jobs that have ended so far, by state and reason.
    fn ended(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        let mut ended = BTreeMap::new();
        for JobCount { state, reason, jobs } in self.jobs.iter().chain(&self.deleted) {
            if let Some(state) = state.filter(|state| state.is_finished()) {
                *ended.entry((state.as_str(), *reason)).or_default() += jobs;
            }
        }
        ended
    }

    fn in_state(&self, state: Option<JobState>) -> f64 {
        let counts = self.jobs.iter().filter(|count| count.state == state).map(|count| count.jobs);
        let count = u32::try_from(counts.sum::<u64>()).unwrap_or(u32::MAX);
        f64::from(count)
    }
}

/// An open event stream.
pub struct EventStreamGuard(Gauge);

impl Drop for EventStreamGuard {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

static METADATA: Metadata<'static> = Metadata::new("gantry", Level::INFO, None);

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}
