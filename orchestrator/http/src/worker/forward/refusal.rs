//! Refusals of the egress proxy: their status, the rule in their header, and the one line of text.

use axum::{
    body::Body,
    http::{HeaderName, HeaderValue, Response, StatusCode, header},
};
use dispatch::EgressDirection;
use egress::{Destination, EgressError};
use protocol::EGRESS_HEADER;

/// Why a request is not carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefusalKind {
    /// It can be read in two ways, or is none.
    Invalid,
    Forbidden,
    /// Try again later.
    Unavailable,
    /// The host cannot be reached.
    Unreachable,
}

/// A refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    kind: RefusalKind,
    rule: String,
    detail: String,
}

impl Refusal {
    pub(super) fn new(kind: RefusalKind, rule: &str, detail: &str) -> Self {
        Self { kind, rule: rule.to_owned(), detail: detail.to_owned() }
    }

    /// The bytes of the job are used up.
    pub(super) fn limit(direction: EgressDirection) -> Self {
        let (name, megabytes) = (direction.limit(), direction.limit_mb());
        let detail = format!("the job has reached its limit of {megabytes} MB ({name})");
        Self::new(RefusalKind::Forbidden, &format!("limits.{name}"), &detail)
    }

    pub(super) fn no_tunnel() -> Self {
        Self::new(RefusalKind::Unavailable, "limits.tunnels", "too many connections at once; try again in a moment")
    }

    pub(super) fn ending() -> Self {
        Self::new(RefusalKind::Forbidden, "job", "the job is ending")
    }

    /// The job's events have reached their limit, so that nothing about it can be recorded.
    pub(super) fn no_event_left() -> Self {
        Self::new(RefusalKind::Forbidden, "limits.max_events_mb", "the job has no room for further events")
    }

    pub(super) fn unreachable(error: &EgressError) -> Self {
        Self::new(RefusalKind::Unreachable, "unreachable", &error.to_string())
    }

    /// Nothing is carried without a trace.
    pub(super) fn unrecorded(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error, "a connection of a job is not recorded, and refused");
        Self::new(RefusalKind::Unavailable, "unrecorded", "the connection cannot be recorded; try again in a moment")
    }

    /// The refusal with the name of its host.
    pub(super) fn about(mut self, to: &Destination) -> Self {
        let host = to.to_string();
        if !self.detail.contains(&host) {
            self.detail = format!("{host}: {}", self.detail);
        }
        self
    }

    pub(super) fn rule(&self) -> &str {
        &self.rule
    }

    /// The response, after which the connection ends.
    pub(super) fn response(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(format!("{}\n", self.detail)));
        *response.status_mut() = match self.kind {
            RefusalKind::Invalid => StatusCode::BAD_REQUEST,
            RefusalKind::Forbidden => StatusCode::FORBIDDEN,
            RefusalKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            RefusalKind::Unreachable => StatusCode::BAD_GATEWAY,
        };
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        let denied = HeaderValue::try_from(format!("denied; rule={}", self.rule));
        if let (RefusalKind::Invalid | RefusalKind::Forbidden, Ok(denied)) = (self.kind, denied) {
            headers.insert(HeaderName::from_static(EGRESS_HEADER), denied);
        }
        response
    }
}
