//! What is counted and measured, for Prometheus.
//!
//! Owns the one registry, every name in it and every label: none holds an id, a user or anything else that grows without
//! bound. What the database knows (jobs, events) is read there when somebody asks; the rest is told here as it happens.
//! Never decides anything.

use std::{fmt, sync::Arc, time::Duration};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use protocol::{JobReason, JobState, TokenUsage};

/// From a request on this machine to a job that waits half an hour.
const BUCKETS_SECONDS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

const JOBS: &str = "gantry_jobs";
const QUEUE_LENGTH: &str = "gantry_queue_length";
const READERS: &str = "gantry_sse_readers";
const BUILD: &str = "gantry_build_info";
const ENDED: &str = "gantry_jobs_ended_total";
const EVENTS: &str = "gantry_events_appended_total";
const STUCK: &str = "gantry_jobs_stuck_total";
const REPAIRS: &str = "gantry_repairs_total";
const LEASES_LOST: &str = "gantry_leases_lost_total";
const FENCED: &str = "gantry_fenced_requests_total";
const ORPHANS: &str = "gantry_orphans_removed_total";
const TOKENS: &str = "gantry_model_tokens_total";
const COST: &str = "gantry_model_cost_micro_usd_total";
const READERS_DROPPED: &str = "gantry_slow_readers_dropped_total";
const REFUSALS_UNRECORDED: &str = "gantry_audit_refusals_unrecorded_total";
const UNAUTHENTICATED: &str = "gantry_unauthenticated_requests_total";
const QUEUE_WAIT: &str = "gantry_queue_wait_seconds";
const START: &str = "gantry_attempt_start_seconds";
const REMOVAL: &str = "gantry_container_removal_seconds";
const MODEL_CALL: &str = "gantry_model_call_seconds";
const REQUEST: &str = "gantry_http_request_seconds";

/// Names with what they mean. Those without labels are there from the start, as zero.
const GAUGES: &[(&str, &str)] = &[
    (JOBS, "Jobs by state, from the database."),
    (QUEUE_LENGTH, "Jobs that wait for their turn."),
    (READERS, "Event streams that are open."),
    (BUILD, "1, with the version as a label."),
];
const COUNTERS: &[(&str, &str)] = &[
    (ENDED, "Finished jobs by state and reason, from the database."),
    (EVENTS, "Events written, from the database."),
    (STUCK, "Jobs that became stuck."),
    (REPAIRS, "Repairs of stuck jobs, by a word to the worker or by a new attempt."),
    (LEASES_LOST, "Attempts whose worker was lost or fell silent."),
    (FENCED, "Workers' requests refused because another attempt has taken over."),
    (ORPHANS, "Containers and run folders removed that belonged to no job."),
    (TOKENS, "Tokens of model calls by kind."),
    (COST, "Cost of model calls in millionths of a dollar, as far as prices are known."),
    (READERS_DROPPED, "Connections given up because their reader took nothing."),
    (REFUSALS_UNRECORDED, "Refused requests without a row in the audit, because their user had too many of them."),
    (UNAUTHENTICATED, "Requests of the public API without a token that this server signed."),
];
const HISTOGRAMS: &[(&str, &str)] = &[
    (QUEUE_WAIT, "From a job's creation to its first start."),
    (START, "From an attempt's beginning to its worker's first call."),
    (REMOVAL, "From a job's end to its container's removal."),
    (MODEL_CALL, "Model calls by provider and outcome, waits and retries included."),
    (REQUEST, "HTTP requests by side, method, route and class of status; a stream counts to its head."),
];
const UNLABELLED: &[&str] = &[STUCK, LEASES_LOST, FENCED, COST, READERS_DROPPED, REFUSALS_UNRECORDED, UNAUTHENTICATED];

/// The registry. Clones are the same one.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

/// What the database knows, at the moment somebody asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many jobs are in which state, for which reason.
    pub jobs: Vec<(JobState, Option<JobReason>, u64)>,
    /// How many events there have been.
    pub events: u64,
}

/// A request that was answered.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// `public`, `worker` or `metrics`.
    pub side: &'static str,
    /// As it came; one that is not usual is not told apart.
    pub method: &'a str,
    /// As the router has it, without what callers filled in.
    pub route: &'a str,
    /// The status.
    pub status: u16,
    /// To the answer's head.
    pub took: Duration,
}

/// A model call that is over.
#[derive(Debug, Clone, Copy)]
pub struct ModelCall<'a> {
    /// As the configuration names it.
    pub provider: &'a str,
    /// One of a few words.
    pub outcome: &'static str,
    /// What it used.
    pub usage: TokenUsage,
    /// None when the price is not known.
    pub cost_micro_usd: Option<i64>,
    /// How long it took.
    pub took: Duration,
}

impl Default for Metrics {
    fn default() -> Self {
        let builder = PrometheusBuilder::new();
        // It refuses an empty list only; summaries would do then.
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
        for name in UNLABELLED {
            metrics.counter(name, &[]).absolute(0);
        }
        metrics.gauge(READERS, &[]).set(0);
        metrics.gauge(BUILD, &[("version", env!("CARGO_PKG_VERSION"))]).set(1);
        metrics
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// A request's method; one that HTTP does not know is a text that somebody made up.
pub fn known_method(method: &str) -> &str {
    match method {
        "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS" => method,
        _ => "other",
    }
}

impl Metrics {
    /// Everything, in Prometheus' text form.
    pub fn render(&self, tally: &Tally) -> String {
        for state in JobState::ALL {
            self.gauge(JOBS, &[("state", state.as_str())]).set(tally.in_state(*state));
        }
        self.gauge(QUEUE_LENGTH, &[]).set(tally.in_state(JobState::Pending));
        for (state, reason, count) in tally.jobs.iter().filter(|(state, ..)| state.is_finished()) {
            let reason = reason.map_or("none", JobReason::as_str);
            self.counter(ENDED, &[("state", state.as_str()), ("reason", reason)]).absolute(*count);
        }
        self.counter(EVENTS, &[]).absolute(tally.events);
        self.0.handle.render()
    }

    /// Puts samples into their buckets. Whoever runs the process asks for it now and then, since nobody may ever read.
    pub fn upkeep(&self) {
        self.0.handle.run_upkeep();
    }

    /// A request was answered.
    pub fn request(&self, request: Request<'_>) {
        let method = known_method(request.method);
        let class = match request.status / 100 {
            1 => "1xx",
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            _ => "5xx",
        };
        let labels = [("side", request.side), ("method", method), ("route", request.route), ("status", class)];
        self.histogram(REQUEST, &labels).record(request.took);
    }

    /// A job's first attempt begins after so long in the queue.
    pub fn started(&self, waited: Duration) {
        self.histogram(QUEUE_WAIT, &[]).record(waited);
    }

    /// An attempt's worker called for the first time, so long after the attempt began.
    pub fn worker_came(&self, after: Duration) {
        self.histogram(START, &[]).record(after);
    }

    /// A finished job's container is gone, so long after its end.
    pub fn container_gone(&self, after: Duration) {
        self.histogram(REMOVAL, &[]).record(after);
    }

    /// A job became stuck.
    pub fn stuck(&self) {
        self.counter(STUCK, &[]).increment(1);
    }

    /// A stuck job was repaired, by `word` or by `attempt`.
    pub fn repaired(&self, by: &'static str) {
        self.counter(REPAIRS, &[("by", by)]).increment(1);
    }

    /// An attempt's worker was lost.
    pub fn lease_lost(&self) {
        self.counter(LEASES_LOST, &[]).increment(1);
    }

    /// A worker of an overtaken attempt was refused.
    pub fn fenced(&self) {
        self.counter(FENCED, &[]).increment(1);
    }

    /// Something that belonged to no job was removed: `container` or `folder`.
    pub fn orphan_removed(&self, kind: &'static str) {
        self.counter(ORPHANS, &[("kind", kind)]).increment(1);
    }

    /// A reader that took nothing was given up.
    pub fn reader_dropped(&self) {
        self.counter(READERS_DROPPED, &[]).increment(1);
    }

    /// A refusal was not recorded in the audit.
    pub fn refusal_unrecorded(&self) {
        self.counter(REFUSALS_UNRECORDED, &[]).increment(1);
    }

    /// Somebody without a token of ours was refused.
    pub fn unauthenticated(&self) {
        self.counter(UNAUTHENTICATED, &[]).increment(1);
    }

    /// A model call is over.
    pub fn model_call(&self, call: &ModelCall<'_>) {
        let labels = [("provider", call.provider), ("outcome", call.outcome)];
        self.histogram(MODEL_CALL, &labels).record(call.took);
        let usage = &call.usage;
        let kinds = [
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cache_read", usage.cache_read_tokens),
            ("cache_write", usage.cache_write_tokens),
        ];
        for (kind, count) in kinds {
            self.counter(TOKENS, &[("kind", kind)]).increment(count);
        }
        let cost = call.cost_micro_usd.and_then(|cost| u64::try_from(cost).ok());
        self.counter(COST, &[]).increment(cost.unwrap_or(0));
    }

    /// Counts a stream for as long as the guard lives.
    pub fn reader(&self) -> ReaderGuard {
        let gauge = self.gauge(READERS, &[]);
        gauge.increment(1);
        ReaderGuard(gauge)
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

impl Tally {
    fn in_state(&self, state: JobState) -> f64 {
        let counts = self.jobs.iter().filter(|(at, ..)| *at == state).map(|(.., count)| *count);
        let count = u32::try_from(counts.sum::<u64>()).unwrap_or(u32::MAX);
        f64::from(count)
    }
}

/// An open stream.
pub struct ReaderGuard(Gauge);

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        self.0.decrement(1);
    }
}

static METADATA: Metadata<'static> = Metadata::new("gantry", Level::INFO, None);

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}
