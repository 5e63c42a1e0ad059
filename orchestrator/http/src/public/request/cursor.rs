//! Pagination: limits, and opaque cursors, which are positions in URL-safe base64.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use protocol::Page;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::problem::ApiError;

/// Items on a page by default, and at most.
pub(in crate::public) const DEFAULT_LIMIT: u32 = 50;
pub(in crate::public) const MAX_LIMIT: u32 = 200;

/// Query parameters of a list without filters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::public) struct PageParams {
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

impl PageParams {
    /// The maximum number of items.
    pub(in crate::public) fn limit(&self) -> Result<u32, ApiError> {
        limit(self.limit)
    }

    /// The position that the page starts after.
    pub(in crate::public) fn after<T: std::str::FromStr>(&self) -> Result<Option<T>, ApiError> {
        self.cursor.as_deref().map(read).transpose()
    }
}

pub(in crate::public) fn write(position: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(position)
}

pub(in crate::public) fn read<T: std::str::FromStr>(cursor: &str) -> Result<T, ApiError> {
    BASE64_URL_SAFE_NO_PAD
        .decode(cursor)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .and_then(|text| text.parse().ok())
        .ok_or_else(invalid)
}

/// The error for a cursor of another list.
pub(in crate::public) fn invalid() -> ApiError {
    ApiError::field("cursor", "invalid cursor; omit it to start at the beginning")
}

/// Makes a page of `items` with their keys. One more than `limit` was requested, to know whether there is a next page.
pub(in crate::public) fn page<K, T>(mut items: Vec<(K, T)>, limit: u32, key: impl FnOnce(&K) -> String) -> Page<T> {
    let more = items.len() > limit as usize;
    items.truncate(limit as usize);
    let next_cursor = items.last().filter(|_| more).map(|(last, _)| write(&key(last)));
    Page { items: items.into_iter().map(|(_, item)| item).collect(), next_cursor }
}

pub(in crate::public) fn limit(asked: Option<u32>) -> Result<u32, ApiError> {
    match asked {
        None => Ok(DEFAULT_LIMIT),
        Some(limit @ 1..=MAX_LIMIT) => Ok(limit),
        Some(_) => Err(ApiError::field("limit", format!("must be from 1 to {MAX_LIMIT}"))),
    }
}
