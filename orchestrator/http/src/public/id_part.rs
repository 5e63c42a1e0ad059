//! The filter by a part of an id, which several lists have.

use crate::problem::ApiError;

/// Minimum length of an id prefix or suffix (contract: api, Decided in detail).
const MIN_ID_DIGITS: usize = 4;
/// Hexadecimal digits of a whole id.
const ID_DIGITS: usize = 32;

/// The hexadecimal digits of a prefix or suffix of an id.
pub(super) fn id_part(asked: &str) -> Result<String, ApiError> {
    let digits: String = asked.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
    if digits.bytes().all(|b| b.is_ascii_hexdigit()) && (MIN_ID_DIGITS..=ID_DIGITS).contains(&digits.len()) {
        return Ok(digits);
    }
    Err(ApiError::field("id", format!("must be a prefix or suffix of an id with at least {MIN_ID_DIGITS} characters")))
}
