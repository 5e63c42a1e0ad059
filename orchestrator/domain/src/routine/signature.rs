//! Signatures of webhooks: of deliveries that arrive, and of requests that Gantry sends.
//!
//! Owns the three schemes and the form of their secrets; the only user of hmac. Knows neither HTTP nor what a delivery
//! does. Digests are compared in constant time.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use chrono::{DateTime, TimeDelta, Utc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Minimum length of a secret in bytes: of its decoded key if it begins with `whsec_`.
pub const MIN_SECRET_BYTES: usize = 16;
/// Maximum length of a secret as it is written.
pub const MAX_SECRET_BYTES: usize = 512;
/// How far the time of a signature may be from the present.
pub const TOLERANCE: TimeDelta = TimeDelta::seconds(300);

const STANDARD_PREFIX: &str = "whsec_";
/// Signatures of one delivery that are compared: senders that rotate a secret send two.
const MAX_SIGNATURES: usize = 8;
/// Maximum length of a delivery's id. A longer one is refused.
const MAX_ID_BYTES: usize = 256;

/// The headers of a delivery that concern its signature.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignatureHeaders<'h> {
    /// `webhook-id`, or `svix-id`.
    pub webhook_id: Option<&'h str>,
    /// `webhook-timestamp`, or `svix-timestamp`.
    pub webhook_timestamp: Option<&'h str>,
    /// `webhook-signature`, or `svix-signature`.
    pub webhook_signature: Option<&'h str>,
    /// `X-Hub-Signature-256`, or `X-Hub-Signature`.
    pub hub_signature: Option<&'h str>,
    /// `X-GitHub-Delivery`.
    pub github_delivery: Option<&'h str>,
    /// `X-Gantry-Signature`, or `Stripe-Signature`.
    pub gantry_signature: Option<&'h str>,
    /// `X-Gantry-Delivery`.
    pub gantry_delivery: Option<&'h str>,
}

/// How a delivery is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Standard Webhooks: `webhook-signature` over the id, the time and the body.
    Standard,
    /// `X-Hub-Signature-256` over the body.
    Hub,
    /// `X-Gantry-Signature: t=…,v1=…` over the time and the body.
    Gantry,
}

/// A delivery with a valid signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub scheme: Scheme,
    /// The id that the sender gave it.
    pub id: Option<String>,
    /// Whether the signature covers the id. Another id can be put on a copy of the delivery otherwise.
    pub is_id_signed: bool,
}

/// A delivery without a valid signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// No header has a signature.
    #[error("the delivery is not signed")]
    Missing,
    /// A header of the signature is absent or is not of its form.
    #[error("{0} is missing or invalid")]
    Malformed(&'static str),
    /// The timestamp differs from the clock by more than 300 s.
    #[error("the time of the signature is more than {} s from the present", TOLERANCE.num_seconds())]
    Expired,
    /// The body is what another scheme, or the same one with another id, signs: a copy of a delivery whose time would
    /// not be checked.
    #[error("the body begins like what a signature with a timestamp covers; send a JSON object or a form")]
    OtherScheme,
    /// No signature is that of the secret.
    #[error("the signature does not match")]
    Mismatch,
}

/// A secret that is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    #[error("must have at least {MIN_SECRET_BYTES} bytes")]
    TooShort,
    #[error("must have at most {MAX_SECRET_BYTES} bytes")]
    TooLong,
    /// It begins as a Standard Webhooks secret and is none.
    #[error("must be base64 after `{STANDARD_PREFIX}`")]
    Encoding,
}

/// Checks a secret that a user chose.
pub(crate) fn check_secret(secret: &str) -> Result<(), InvalidSecret> {
    if secret.len() > MAX_SECRET_BYTES {
        return Err(InvalidSecret::TooLong);
    }
    let key = match secret.strip_prefix(STANDARD_PREFIX) {
        Some(encoded) => BASE64_STANDARD.decode(encoded).map_err(|_| InvalidSecret::Encoding)?.len(),
        None => secret.len(),
    };
    if key < MIN_SECRET_BYTES { Err(InvalidSecret::TooShort) } else { Ok(()) }
}

/// The secret with this key, as Standard Webhooks writes it.
pub fn secret_of_key(key: &[u8; 32]) -> String {
    format!("{STANDARD_PREFIX}{}", BASE64_STANDARD.encode(key))
}

/// The key of a secret for Standard Webhooks.
pub fn standard_key(secret: &str) -> Vec<u8> {
    let encoded = secret.strip_prefix(STANDARD_PREFIX);
    encoded.and_then(|encoded| BASE64_STANDARD.decode(encoded).ok()).unwrap_or_else(|| secret.as_bytes().to_vec())
}

/// The `webhook-signature` of a request by Standard Webhooks.
pub fn standard_signature(key: &[u8], id: &str, timestamp: &str, body: &[u8]) -> String {
    let parts = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body];
    mac(key, &parts)
        .map_or_else(String::new, |mac| format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes())))
}

/// Checks the signature of a delivery. The first scheme that has a header decides.
pub fn verify(
    secret: &str,
    headers: &SignatureHeaders<'_>,
    body: &[u8],
    now: DateTime<Utc>,
) -> Result<Verified, SignatureError> {
    if is_content_of_other_scheme(body) {
        return Err(SignatureError::OtherScheme);
    }
    if let Some(signatures) = headers.webhook_signature {
        return standard(secret, headers, signatures, body, now);
    }
    if let Some(signature) = headers.hub_signature {
        let digest = signature.strip_prefix("sha256=").and_then(from_hex);
        let digest = digest.ok_or(SignatureError::Malformed("X-Hub-Signature-256"))?;
        if !is_mac(secret.as_bytes(), &[body], &digest) {
            return Err(SignatureError::Mismatch);
        }
        let id = delivery_id(headers.github_delivery, "X-GitHub-Delivery")?;
        return Ok(Verified { scheme: Scheme::Hub, id, is_id_signed: false });
    }
    if let Some(signature) = headers.gantry_signature {
        return gantry(secret, headers, signature, body, now);
    }
    Err(SignatureError::Missing)
}

fn standard(
    secret: &str,
    headers: &SignatureHeaders<'_>,
    signatures: &str,
    body: &[u8],
    now: DateTime<Utc>,
) -> Result<Verified, SignatureError> {
    const ID: &str = "webhook-id";
    let id = delivery_id(headers.webhook_id, ID)?.ok_or(SignatureError::Malformed(ID))?;
    let timestamp = headers.webhook_timestamp.ok_or(SignatureError::Malformed("webhook-timestamp"))?;
    check_time(timestamp, "webhook-timestamp", now)?;
    let key = standard_key(secret);
    let parts = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body];
    let versioned = signatures.split_ascii_whitespace().filter_map(|one| one.strip_prefix("v1,"));
    let digests = versioned.filter_map(|encoded| BASE64_STANDARD.decode(encoded).ok());
    if digests.take(MAX_SIGNATURES).any(|digest| is_mac(&key, &parts, &digest)) {
        return Ok(Verified { scheme: Scheme::Standard, id: Some(id), is_id_signed: true });
    }
    Err(SignatureError::Mismatch)
}

fn gantry(
    secret: &str,
    headers: &SignatureHeaders<'_>,
    signature: &str,
    body: &[u8],
    now: DateTime<Utc>,
) -> Result<Verified, SignatureError> {
    const NAME: &str = "X-Gantry-Signature";
    let fields = || signature.split(',').filter_map(|field| field.trim().split_once('='));
    let timestamp = fields().find(|(name, _)| *name == "t").ok_or(SignatureError::Malformed(NAME))?.1;
    check_time(timestamp, NAME, now)?;
    let parts = [timestamp.as_bytes(), b".", body];
    let digests = fields().filter(|(name, _)| *name == "v1").filter_map(|(_, digest)| from_hex(digest));
    if !digests.take(MAX_SIGNATURES).any(|digest| is_mac(secret.as_bytes(), &parts, &digest)) {
        return Err(SignatureError::Mismatch);
    }
    let id = delivery_id(headers.gantry_delivery, "X-Gantry-Delivery")?;
    Ok(Verified { scheme: Scheme::Gantry, id, is_id_signed: false })
}

/// Whether a body begins as what another scheme signs, which are all signed with the same secret: `TIME.BODY` or
/// `ID.TIME.BODY`, where the id is text that could be in a header and has none of the characters with which a JSON
/// document begins. The forms that GitHub sends begin with the name of their only field.
fn is_content_of_other_scheme(body: &[u8]) -> bool {
    if body.starts_with(b"payload=") {
        return false;
    }
    let end = body.iter().position(|byte| byte.is_ascii_whitespace() || b"{}\"'".contains(byte)).unwrap_or(body.len());
    let mut parts = body[..end].split(|byte| *byte == b'.').peekable();
    while let Some(part) = parts.next() {
        let is_time = !part.is_empty() && part.iter().all(u8::is_ascii_digit);
        if is_time && parts.peek().is_some() {
            return true;
        }
    }
    false
}

/// Checks a time in seconds since 1970.
fn check_time(timestamp: &str, name: &'static str, now: DateTime<Utc>) -> Result<(), SignatureError> {
    let is_plain = !timestamp.is_empty() && timestamp.bytes().all(|byte| byte.is_ascii_digit());
    let seconds = timestamp.parse::<i64>().ok().filter(|_| is_plain);
    let at = seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    let at = at.ok_or(SignatureError::Malformed(name))?;
    // The time has no fraction.
    let distance = (now.timestamp() - at.timestamp()).abs();
    if distance > TOLERANCE.num_seconds() { Err(SignatureError::Expired) } else { Ok(()) }
}

fn delivery_id(value: Option<&str>, name: &'static str) -> Result<Option<String>, SignatureError> {
    let Some(id) = value.map(str::trim).filter(|id| !id.is_empty()) else { return Ok(None) };
    if id.len() > MAX_ID_BYTES { Err(SignatureError::Malformed(name)) } else { Ok(Some(id.to_owned())) }
}

fn mac(key: &[u8], parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
    // Keys of every length are valid.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    for part in parts {
        mac.update(part);
    }
    Some(mac)
}

/// Compares in constant time.
fn is_mac(key: &[u8], parts: &[&[u8]], digest: &[u8]) -> bool {
    mac(key, parts).is_some_and(|mac| mac.verify_slice(digest).is_ok())
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() || pairs.len() != 32 {
        return None;
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    pairs.iter().map(|[high, low]| Some(digit(*high)? * 16 + digit(*low)?)).collect()
}

#[cfg(test)]
mod tests;
