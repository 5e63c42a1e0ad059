//! Signatures as senders and the reference libraries make them.

use rstest::rstest;

use super::*;

/// The secret, payload and signature of GitHub's documentation.
const GITHUB_SECRET: &str = "It's a Secret to Everybody";
const GITHUB_BODY: &[u8] = b"Hello, World!";
const GITHUB_SIGNATURE: &str = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
/// The example of the reference libraries of Standard Webhooks.
const STANDARD_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const STANDARD_BODY: &[u8] = br#"{"test": 2432232314}"#;
const STANDARD_ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const STANDARD_TIME: i64 = 1_614_265_330;
const STANDARD_SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).unwrap()
}

fn hex_mac(key: &[u8], parts: &[&[u8]]) -> String {
    let digits = mac(key, parts).unwrap().finalize().into_bytes();
    digits.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).map(char::from).collect()
}

#[rstest]
#[case::documented(GITHUB_SIGNATURE, GITHUB_BODY, Ok(()))]
#[case::other_body(GITHUB_SIGNATURE, b"Hello, World?", Err(SignatureError::Mismatch))]
#[case::no_prefix(&GITHUB_SIGNATURE[7..], GITHUB_BODY, Err(SignatureError::Malformed("X-Hub-Signature-256")))]
#[case::short("sha256=7571", GITHUB_BODY, Err(SignatureError::Malformed("X-Hub-Signature-256")))]
#[case::empty("", GITHUB_BODY, Err(SignatureError::Malformed("X-Hub-Signature-256")))]
fn github(#[case] signature: &str, #[case] body: &[u8], #[case] expected: Result<(), SignatureError>) {
    let headers = SignatureHeaders {
        hub_signature: Some(signature),
        github_delivery: Some("72d3162e-cc78-11e3-81ab-4c9367dc0958"),
        ..SignatureHeaders::default()
    };
    let verified = verify(GITHUB_SECRET, &headers, body, at(0));
    assert_eq!(verified.clone().map(drop), expected);
    if let Ok(verified) = verified {
        let id = Some("72d3162e-cc78-11e3-81ab-4c9367dc0958".to_owned());
        assert_eq!(verified, Verified { scheme: Scheme::Hub, id, is_id_signed: false });
    }
}

#[rstest]
#[case::own("1000.{}", false)]
#[case::own_empty("1000.", false)]
#[case::own_text("1000.Hello", false)]
#[case::standard("msg_2Lh9KRb0pzN4LePd3XiA4v9Axpp.1614265330.{}", false)]
#[case::id_with_dots("a.b-c.1614265330.[1]", false)]
#[case::id_of_base64("YQ==.1614265330.x", false)]
#[case::object(r#"{"version": "1.2.3"}"#, true)]
#[case::indented("  {\"a\": 1.5}", true)]
#[case::numbers("[1.5,2.5]", true)]
#[case::form("payload=%7B%22url%22%3A%22http%3A%2F%2F10.0.0.1%2F%22%7D", true)]
#[case::sentence("Hello, 1.2.3", true)]
#[case::digits("1000", true)]
#[case::empty("", true)]
fn github_signs_nothing_that_another_scheme_signs(#[case] body: &str, #[case] accepted: bool) {
    let signature = format!("sha256={}", hex_mac(GITHUB_SECRET.as_bytes(), &[body.as_bytes()]));
    let headers = SignatureHeaders { hub_signature: Some(&signature), ..SignatureHeaders::default() };
    let expected = if accepted { Ok(()) } else { Err(SignatureError::OtherScheme) };
    assert_eq!(verify(GITHUB_SECRET, &headers, body.as_bytes(), at(0)).map(drop), expected);
}

#[rstest]
#[case::exact(0, STANDARD_SIGNATURE, STANDARD_ID, Ok(()))]
#[case::rotated(0, &format!("v1,AAAA v2,x {STANDARD_SIGNATURE}"), STANDARD_ID, Ok(()))]
#[case::late(300, STANDARD_SIGNATURE, STANDARD_ID, Ok(()))]
#[case::early(-300, STANDARD_SIGNATURE, STANDARD_ID, Ok(()))]
#[case::too_late(301, STANDARD_SIGNATURE, STANDARD_ID, Err(SignatureError::Expired))]
#[case::too_early(-301, STANDARD_SIGNATURE, STANDARD_ID, Err(SignatureError::Expired))]
#[case::other_id(0, STANDARD_SIGNATURE, "msg_other", Err(SignatureError::Mismatch))]
#[case::no_version(0, &STANDARD_SIGNATURE[3..], STANDARD_ID, Err(SignatureError::Mismatch))]
#[case::no_id(0, STANDARD_SIGNATURE, " ", Err(SignatureError::Malformed("webhook-id")))]
#[case::many(0, &format!("{}{STANDARD_SIGNATURE}", "v1,AAAA ".repeat(8)), STANDARD_ID, Err(SignatureError::Mismatch))]
fn standard_webhooks(
    #[case] later: i64,
    #[case] signatures: &str,
    #[case] id: &str,
    #[case] expected: Result<(), SignatureError>,
) {
    let timestamp = STANDARD_TIME.to_string();
    let headers = SignatureHeaders {
        webhook_id: Some(id),
        webhook_timestamp: Some(&timestamp),
        webhook_signature: Some(signatures),
        ..SignatureHeaders::default()
    };
    let verified = verify(STANDARD_SECRET, &headers, STANDARD_BODY, at(STANDARD_TIME + later));
    assert_eq!(verified.clone().map(drop), expected);
    if let Ok(verified) = verified {
        let id = Some(STANDARD_ID.to_owned());
        assert_eq!(verified, Verified { scheme: Scheme::Standard, id, is_id_signed: true });
    }
}

#[test]
fn a_request_is_signed_as_by_the_reference_libraries() {
    let signed = standard_signature(&standard_key(STANDARD_SECRET), STANDARD_ID, "1614265330", STANDARD_BODY);
    assert_eq!(signed, STANDARD_SIGNATURE);
}

#[rstest]
#[case::plain("t=1000,v1={}", 1_000, Ok(()))]
#[case::spaced("t=1000, v1=00, v1={}", 1_000, Ok(()))]
#[case::expired("t=1000,v1={}", 1_301, Err(SignatureError::Expired))]
#[case::other_time("t=1001,v1={}", 1_000, Err(SignatureError::Mismatch))]
#[case::no_time("v1={}", 1_000, Err(SignatureError::Malformed("X-Gantry-Signature")))]
#[case::signed_time("t=+1000,v1={}", 1_000, Err(SignatureError::Malformed("X-Gantry-Signature")))]
#[case::huge_time("t=99999999999999999999,v1={}", 1_000, Err(SignatureError::Malformed("X-Gantry-Signature")))]
#[case::no_digest("t=1000", 1_000, Err(SignatureError::Mismatch))]
fn own_scheme(#[case] form: &str, #[case] now: i64, #[case] expected: Result<(), SignatureError>) {
    // The secret is used as it is written, whatever it begins with.
    let digest = hex_mac(STANDARD_SECRET.as_bytes(), &[b"1000", b".", b"body"]);
    let signature = form.replace("{}", &digest);
    let headers = SignatureHeaders { gantry_signature: Some(&signature), ..SignatureHeaders::default() };
    let verified = verify(STANDARD_SECRET, &headers, b"body", at(now));
    assert_eq!(verified.clone().map(drop), expected);
    if let Ok(verified) = verified {
        assert_eq!(verified, Verified { scheme: Scheme::Gantry, id: None, is_id_signed: false });
    }
}

#[test]
fn an_unsigned_delivery_is_refused_whatever_its_ids_are() {
    let headers = SignatureHeaders {
        webhook_id: Some("a"),
        webhook_timestamp: Some("0"),
        github_delivery: Some("a"),
        gantry_delivery: Some("a"),
        ..SignatureHeaders::default()
    };
    assert_eq!(verify(GITHUB_SECRET, &headers, b"", at(0)), Err(SignatureError::Missing));
}

#[rstest]
#[case("0123456789abcdef", Ok(()))]
#[case("0123456789abcde", Err(InvalidSecret::TooShort))]
#[case(STANDARD_SECRET, Ok(()))]
#[case("whsec_AAAAAAAAAAAAAAAAAAAA", Err(InvalidSecret::TooShort))]
#[case("whsec_not base64 at all, although long", Err(InvalidSecret::Encoding))]
#[case(&"a".repeat(513), Err(InvalidSecret::TooLong))]
fn secrets(#[case] secret: &str, #[case] expected: Result<(), InvalidSecret>) {
    assert_eq!(check_secret(secret), expected);
}

#[test]
fn a_generated_secret_is_valid_and_has_its_key() {
    let secret = secret_of_key(&[7; 32]);
    assert_eq!(check_secret(&secret), Ok(()));
    assert_eq!(standard_key(&secret), [7; 32]);
}
