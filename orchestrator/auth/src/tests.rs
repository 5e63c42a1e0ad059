//! Forged tokens in every way that is known, and both kinds refused in each other's place.

use std::{collections::HashSet, os::unix::fs::PermissionsExt};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use jsonwebtoken::EncodingKey;
use rstest::rstest;
use serde_json::{Value, json};
use strum::VariantArray as _;

use super::*;

const SECRET: &[u8] = b"a secret that is long enough for HS256";
const NOW: i64 = 1_800_000_000;

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(NOW, 0).unwrap()
}

fn good() -> Value {
    json!({"iss": "gantry", "aud": "gantry-api", "sub": "ada", "role": "user", "jti": "j1", "iat": NOW, "exp": NOW + 60})
}

fn signed(algorithm: Algorithm, claims: &Value, secret: &[u8]) -> String {
    jsonwebtoken::encode(&Header::new(algorithm), claims, &EncodingKey::from_secret(secret)).unwrap()
}

fn unsigned(header: &Value, claims: &Value, signature: &str) -> String {
    format!("{}.{}.{signature}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()))
}

fn with(claim: &str, value: &Value) -> Value {
    let mut claims = good();
    match value {
        Value::Null => drop(claims.as_object_mut().unwrap().remove(claim)),
        value => claims[claim] = value.clone(),
    }
    claims
}

#[test]
fn an_issued_token_says_who_it_was_made_for() {
    let key = SigningKey::from_secret(SECRET);
    let issued = key.issue("ada@example.org", Role::Viewer, now(), chrono::Duration::days(30)).unwrap();
    assert!(!format!("{issued:?}").contains(&issued.token), "{issued:?}");
    let identity = key.verify(&issued.token, now()).unwrap();
    assert_eq!(
        identity,
        Identity {
            user: "ada@example.org".into(),
            role: Role::Viewer,
            jti: issued.jti,
            is_session: false,
            expires_at: issued.expires_at
        }
    );
    let last = issued.expires_at - chrono::Duration::microseconds(1);
    assert!(key.verify(&issued.token, last).is_ok());
    assert_eq!(key.verify(&issued.token, issued.expires_at), Err(TokenError::Expired), "no leeway");
}

#[test]
fn a_token_signed_elsewhere_with_the_key_is_valid() {
    let key = SigningKey::from_secret(SECRET);
    let identity = key.verify(&signed(Algorithm::HS256, &with("iat", &Value::Null), SECRET), now()).unwrap();
    assert_eq!(
        identity,
        Identity {
            user: "ada".into(),
            role: Role::User,
            jti: "j1".into(),
            is_session: false,
            expires_at: identity.expires_at
        }
    );
}

#[rstest]
#[case("iss", json!("someone"), TokenError::WrongIssuer)]
#[case("iss", Value::Null, TokenError::Malformed)]
#[case("aud", json!("gantry-worker"), TokenError::WrongAudience)]
#[case("aud", Value::Null, TokenError::Malformed)]
#[case("sub", Value::Null, TokenError::Malformed)]
#[case("sub", json!(""), TokenError::BadUser)]
#[case("sub", json!("a b"), TokenError::BadUser)]
#[case("sub", json!("a/../b"), TokenError::BadUser)]
#[case("sub", json!("x".repeat(65)), TokenError::BadUser)]
#[case("role", Value::Null, TokenError::Malformed)]
#[case("role", json!("root"), TokenError::UnknownRole)]
#[case("role", json!("Admin"), TokenError::UnknownRole)]
#[case("jti", Value::Null, TokenError::Malformed)]
#[case("jti", json!(""), TokenError::Malformed)]
#[case("exp", Value::Null, TokenError::Malformed)]
#[case("exp", json!("never"), TokenError::Malformed)]
#[case("exp", json!(NOW), TokenError::Expired)]
#[case("exp", json!(NOW - 1), TokenError::Expired)]
#[case("exp", json!(-1), TokenError::Malformed)]
#[case("nbf", json!(NOW + 1), TokenError::NotYet)]
#[case("nbf", json!(1_800_000_000.5), TokenError::NotYet)]
#[case("nbf", json!("later"), TokenError::Malformed)]
fn a_wrong_claim_is_refused(#[case] claim: &str, #[case] value: Value, #[case] wanted: TokenError) {
    let token = signed(Algorithm::HS256, &with(claim, &value), SECRET);
    assert_eq!(SigningKey::from_secret(SECRET).verify(&token, now()), Err(wanted));
}

#[test]
fn a_token_is_valid_from_its_first_moment() {
    let token = signed(Algorithm::HS256, &with("nbf", &json!(NOW)), SECRET);
    assert!(SigningKey::from_secret(SECRET).verify(&token, now()).is_ok());
}

#[rstest]
#[case(json!({"alg": "HS256", "crit": ["exp"]}))]
#[case(json!({"alg": "HS256", "crit": ["b64"], "b64": false}))]
#[case(json!({"alg": "HS256", "crit": []}))]
fn unknown_critical_extensions_are_refused(#[case] header: Value) {
    let text = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(good().to_string()));
    let signature =
        jsonwebtoken::crypto::sign(text.as_bytes(), &EncodingKey::from_secret(SECRET), Algorithm::HS256).unwrap();
    let error = SigningKey::from_secret(SECRET).verify(&format!("{text}.{signature}"), now());
    assert_eq!(error, Err(TokenError::Critical));
}

#[rstest]
#[case::no_algorithm(unsigned(&json!({"alg": "none", "typ": "JWT"}), &good(), ""))]
#[case::no_algorithm_shouted(unsigned(&json!({"alg": "NONE"}), &good(), ""))]
#[case::no_algorithm_signed(unsigned(&json!({"alg": "none"}), &good(), "AAAA"))]
#[case::hs512_with_our_key(signed(Algorithm::HS512, &good(), SECRET))]
#[case::hs384_with_our_key(signed(Algorithm::HS384, &good(), SECRET))]
#[case::rs256_that_uses_the_secret(unsigned(&json!({"alg": "RS256"}), &good(), "AAAA"))]
#[case::other_key(signed(Algorithm::HS256, &good(), b"another secret that is long enough too"))]
#[case::cut(signed(Algorithm::HS256, &good(), SECRET).trim_end_matches(|c| c != '.').to_owned())]
#[case::empty(String::new())]
#[case::junk("junk".to_owned())]
#[case::dots("...".to_owned())]
#[case::long("a.".repeat(100_000))]
#[case::array_claims(signed(Algorithm::HS256, &json!(["gantry"]), SECRET))]
fn a_forged_token_is_refused(#[case] token: String) {
    let key = SigningKey::from_secret(SECRET);
    let error = key.verify(&token, now()).unwrap_err();
    let expected = [TokenError::Malformed, TokenError::WrongAlgorithm, TokenError::WrongSignature];
    assert!(expected.contains(&error), "{error}");
    assert!(key.verify_worker(&token, InstanceId::generate(), now()).is_err());
}

#[test]
fn a_changed_claim_breaks_the_signature() {
    let token = signed(Algorithm::HS256, &good(), SECRET);
    let (head, rest) = token.split_once('.').unwrap();
    let signature = rest.split_once('.').unwrap().1;
    let admin = BASE64.encode(with("role", &json!("admin")).to_string());
    let forged = format!("{head}.{admin}.{signature}");
    assert_eq!(SigningKey::from_secret(SECRET).verify(&forged, now()), Err(TokenError::WrongSignature));
}

#[test]
fn each_kind_is_refused_in_the_others_place() {
    let key = SigningKey::from_secret(SECRET);
    let (instance, job_id) = (InstanceId::generate(), JobId::generate());
    let worker = key.issue_worker(instance, job_id, 2, now() + chrono::Duration::hours(1)).unwrap();
    let identity = key.verify_worker(&worker.token, instance, now()).unwrap();
    assert_eq!(identity, WorkerIdentity { job_id, attempt: 2, jti: worker.jti.clone() });
    assert_eq!(key.verify_worker(&worker.token, instance, worker.expires_at), Err(TokenError::Expired));
    assert_eq!(key.verify_worker(&worker.token, InstanceId::generate(), now()), Err(TokenError::WrongIssuer));

    assert!(key.verify(&worker.token, now()).is_err());
    let public = key.issue("ada", Role::Admin, now(), chrono::Duration::days(1)).unwrap();
    assert!(key.verify_worker(&public.token, instance, now()).is_err());
}

#[test]
fn the_key_in_the_directory_is_created_once_and_private() {
    let directory = tempfile::tempdir().unwrap();
    let tokens: Vec<String> = std::thread::scope(|scope| {
        let make = || SigningKey::load(None, directory.path()).unwrap();
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
        let keys = threads.into_iter().map(|thread| thread.join().unwrap());
        keys.map(|key| {
            key.issue_worker(InstanceId::nil(), JobId::nil(), 1, now() + chrono::Duration::hours(1)).unwrap().token
        })
        .collect()
    });
    let key = SigningKey::load(None, directory.path()).unwrap();
    for token in &tokens {
        assert!(key.verify_worker(token, InstanceId::nil(), now()).is_ok(), "one key for all");
    }
    let files: HashSet<_> = std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(files, HashSet::from(["jwt.key".into()]), "no draft is left");
    let mode = std::fs::metadata(directory.path().join("jwt.key")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_damaged_key_file_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("jwt.key"), "").unwrap();
    assert!(matches!(SigningKey::load(None, directory.path()), Err(KeyError::TooShort { .. })));
}

#[test]
fn a_key_file_that_others_can_read_is_made_private() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jwt.key");
    std::fs::write(&path, "k".repeat(40)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    SigningKey::load(None, directory.path()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_role_has_one_name() {
    for role in Role::VARIANTS {
        assert_eq!(Role::parse(role.as_str()), Some(*role));
        assert_eq!(serde_json::to_value(role).unwrap(), role.as_str());
    }
}
