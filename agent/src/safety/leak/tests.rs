//! What is found, what passes, and that pieces make no difference.

use std::{fmt::Write as _, sync::Arc};

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD},
};
use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;

fn detector(values: &[&str]) -> LeakDetector {
    LeakDetector::new(values.iter().map(|value| StoredSecret { name: "mine", value })).unwrap()
}

fn redacted(values: &[&str], text: &str) -> String {
    detector(values).redact(text).0.into_owned()
}

fn found(detector: &LeakDetector, text: &str) -> (String, Vec<Finding>) {
    let (redacted, findings) = detector.redact(text);
    (redacted.into_owned(), findings)
}

/// Every byte as an escape, or only those that a URL component cannot contain.
fn percent_encoded(value: &str, all: bool, upper: bool) -> String {
    let encode = |byte: u8| match (byte.is_ascii_alphanumeric() && !all, upper) {
        (true, _) => char::from(byte).to_string(),
        (false, true) => format!("%{byte:02X}"),
        (false, false) => format!("%{byte:02x}"),
    };
    value.bytes().map(encode).collect()
}

fn hexadecimal(value: &str) -> String {
    percent_encoded(value, true, false).replace('%', "")
}

/// The text as JSON has it in a string.
fn in_json(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap();
    quoted[1..quoted.len() - 1].to_owned()
}

/// As Python and others write JSON.
fn json_in_ascii(value: &str) -> String {
    let mut escaped = String::new();
    for c in value.chars() {
        if c.is_ascii() {
            escaped.push_str(&in_json(&c.to_string()));
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            write!(escaped, "\\u{unit:04x}").unwrap();
        }
    }
    escaped
}

/// As PHP and Go write JSON, which may become part of a page.
fn json_with_other_escapes(value: &str) -> String {
    in_json(value).replace('/', "\\/").replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003E")
}

/// The texts that show `value`, each with a name.
fn forms(value: &str) -> Vec<(&'static str, String)> {
    let quoted = serde_json::to_string(value).unwrap();
    let mut forms = vec![
        ("plain", value.to_owned()),
        ("base64", BASE64_STANDARD.encode(value)),
        ("base64 without padding", BASE64_STANDARD_NO_PAD.encode(value)),
        ("base64url", BASE64_URL_SAFE.encode(value)),
        ("base64url without padding", BASE64_URL_SAFE_NO_PAD.encode(value)),
        ("a form", percent_encoded(value, false, true).replace("%20", "+")),
        ("JSON", quoted[1..quoted.len() - 1].to_owned()),
        ("JSON in ASCII", json_in_ascii(value)),
        ("JSON with other escapes", json_with_other_escapes(value)),
        ("JSON in JSON", in_json(&json_in_ascii(value))),
        ("JSON with other escapes in JSON", in_json(&json_with_other_escapes(value))),
        ("form", percent_encoded(value, false, true).replace("%20", "+")),
        ("hexadecimal", hexadecimal(value)),
        ("hexadecimal in capitals", hexadecimal(value).to_uppercase()),
        ("percent-encoded base64", percent_encoded(&BASE64_STANDARD.encode(value), false, true)),
    ];
    for (all, upper) in [(false, false), (false, true), (true, false), (true, true)] {
        forms.push(("percent-encoded", percent_encoded(value, all, upper)));
    }
    forms
}

#[test]
fn a_stored_secret_is_found_in_every_form() {
    for value in [
        "hunter2!",
        "a b&c=d/e?~é日",
        "😀</a b>\\n",
        "{\"key\": \"line\nline\"}",
        "41deadbeef",
        &"0123456789abcdef>?".repeat(60),
    ] {
        let detector = detector(&[value]);
        for (form, text) in forms(value) {
            for (before, after) in [("", ""), ("key=", "&x=1"), ("%", "%"), ("é", "\n"), ("\"", "\"")] {
                let (shown, findings) = found(&detector, &format!("{before}{text}{after}"));
                assert!(shown.contains(REDACTED), "{form} of {value:?}: {shown}");
                assert!(shown.len() <= before.len() + REDACTED.len() + after.len() + 4, "{form} of {value:?}: {shown}");
                assert_eq!(findings.len(), 1, "{form}: {findings:?}");
            }
        }
    }
}

#[test]
fn a_stored_secret_is_found_in_hexadecimal_as_programs_print_it() {
    let grouped = |digits: &str, size: usize, between: &str| {
        let groups: Vec<&str> = digits.as_bytes().chunks(size).map(|group| str::from_utf8(group).unwrap()).collect();
        groups.join(between)
    };
    for value in ["hunter2!", "a b&c=d/e?~é日", "41deadbeef"] {
        let (detector, digits) = (detector(&[value]), hexadecimal(value));
        let mixed: String =
            digits.char_indices().map(|(n, c)| if n % 3 == 0 { c.to_ascii_uppercase() } else { c }).collect();
        for digits in [digits.clone(), digits.to_uppercase(), mixed] {
            for (size, between) in [
                (2, " "),
                (2, ":"),
                (2, "\\x"),
                (2, "  "),
                (2, ":\n        "),
                (4, " "),
                (8, " "),
                (32, "\r\n"),
                (99, ""),
            ] {
                let text = format!("00000000: {}  |", grouped(&digits, size, between));
                assert_eq!(detector.redact(&text).0, "00000000: [redacted]  |", "{text}");
                let mut stream =
                    StreamRedactor::new(Arc::new(LeakDetector::new([StoredSecret { name: "mine", value }]).unwrap()));
                let mut shown: String = text.chars().map(|c| stream.push(&c.to_string())).collect();
                shown.push_str(&stream.finish().0);
                assert_eq!(shown, "00000000: [redacted]  |", "{text}");
            }
        }
    }
    let passes = "68756e74 or 68:75:6e:74:65:72, 6875 6e74 6572 3221x at 12:30:45 add a bee: 68 75-6e 74 65 72 32 21";
    assert_eq!(redacted(&["hunter2!!"], passes), passes);
}

#[test]
fn a_stored_secret_is_found_inside_base64_at_every_alignment_and_over_lines() {
    let value = "a-stored-secret-of-some-length-that-base64-wraps-over-several-lines-of-output";
    let detector = detector(&[value]);
    for before in 0..6 {
        let encoded = BASE64_STANDARD.encode(format!("{}{value}{}", "x".repeat(before), "y".repeat(before)));
        for line_break in ["\n", "\r\n"] {
            let lines: Vec<&str> = encoded.as_bytes().chunks(76).map(|line| str::from_utf8(line).unwrap()).collect();
            let wrapped = lines.join(line_break);
            for text in [encoded.clone(), wrapped] {
                let shown = detector.redact(&text).0;
                // What is left are bits of its neighbours, and at most one character with bits of its ends.
                assert!(shown.len() <= REDACTED.len() + 4 * before + 6, "{before}: {shown}");
            }
        }
    }
}

#[test]
fn long_secrets_are_replaced_as_one() {
    let value: String = (0..3_000_u32).map(|n| char::from(b'!' + u8::try_from(n * 7 % 90).unwrap())).collect();
    assert_eq!(redacted(&[&value], &format!("<{value}>")), "<[redacted]>");
    let encoded = BASE64_STANDARD.encode(&value);
    assert_eq!(redacted(&[&value], &format!("<{encoded}>")), "<[redacted]>");
}

#[test]
fn overlapping_secrets_are_replaced_together() {
    assert_eq!(redacted(&["abcdefgh", "efghijkl"], "_abcdefghijkl_"), "_[redacted]_");
    assert_eq!(redacted(&["abcdefgh", "bcdefghi"], "_abcdefghi_abcdefgh_"), "_[redacted]_[redacted]_");
    assert_eq!(redacted(&["aaaaaaaa"], &"a".repeat(1_000)), REDACTED);
}

#[test]
fn short_secrets_are_not_looked_for() {
    assert_eq!(redacted(&["1234567", ""], "1234567"), "1234567");
}

#[test]
fn secrets_have_a_limit() {
    let value = "x".repeat(MAX_INDEXED_SECRET_BYTES);
    assert!(LeakDetector::new([StoredSecret { name: "a", value: &value }]).is_ok());
    let two = [StoredSecret { name: "a", value: &value }, StoredSecret { name: "b", value: "12345678" }];
    let error = LeakDetector::new(two).unwrap_err();
    assert_eq!(error, LeakDetectorError::TooLarge(MAX_INDEXED_SECRET_BYTES + 8));
}

#[test]
fn findings_name_the_secret_and_never_show_it() {
    let detector = LeakDetector::new([
        StoredSecret { name: "b", value: "hunter2-b" },
        StoredSecret { name: "a", value: "hunter2-a" },
    ])
    .unwrap();
    let (text, findings) = detector.redact("hunter2-b hunter2-a hunter2-b");
    assert_eq!(text, "[redacted] [redacted] [redacted]");
    let names: Vec<String> = findings.iter().map(|finding| finding.source.to_string()).collect();
    assert_eq!(names, ["the secret a", "the secret b"]);
    assert!(!format!("{detector:?}{findings:?}").contains("hunter2"));
}

// Assembled here, so that no scanner of this repository takes them for credentials.
fn random(prefix: &str, length: usize) -> String {
    let body: String = "k7Jq2mZx9RtB4wYc8LdV".chars().cycle().take(length).collect();
    format!("{prefix}{body}")
}

#[rstest]
#[case(random("sk-", 48), LeakAction::Redact)]
#[case(random("sk-proj-", 80), LeakAction::Redact)]
#[case(random("sk-ant-api03-", 95), LeakAction::Redact)]
#[case(random("ghp_", 36), LeakAction::Redact)]
#[case(random("gho_", 36), LeakAction::Redact)]
#[case(random("github_pat_", 82), LeakAction::Redact)]
#[case(random("glpat-", 20), LeakAction::Redact)]
#[case(["AKIA", "IOSFODNN7EXAMPLE"].concat(), LeakAction::Redact)]
#[case(["ASIA", "IOSFODNN7EXAMPLE"].concat(), LeakAction::Redact)]
#[case(random("xoxb-2", 30), LeakAction::Redact)]
#[case(random("xapp-1", 30), LeakAction::Redact)]
#[case(random("AIza", 35), LeakAction::Redact)]
#[case(random("ya29.", 60), LeakAction::Redact)]
#[case(random("sk_live_", 24), LeakAction::Redact)]
#[case(random("pk_live_", 24), LeakAction::Warn)]
#[case(random("npm_", 36), LeakAction::Redact)]
#[case(random("pypi-AgE", 100), LeakAction::Redact)]
#[case(random("hf_", 34), LeakAction::Redact)]
#[case(format!("{}.{}", random("SG.", 22), random("", 43)), LeakAction::Redact)]
#[case(format!("{}.{}.{}", random("eyJ", 33), random("eyJ", 60), random("", 43)), LeakAction::Redact)]
fn credentials_are_recognised_by_their_format(#[case] token: String, #[case] action: LeakAction) {
    let detector = detector(&[]);
    for (before, after) in [("", ""), ("key=", "&x"), ("\"", "\","), ("Bearer ", "\n"), ("TOKEN_", "."), ("é", "é")] {
        let (text, findings) = found(&detector, &format!("{before}{token}{after}"));
        let left = if action == LeakAction::Warn { token.as_str() } else { REDACTED };
        // A full stop after a token may belong to it.
        assert_eq!(text.trim_end_matches('.'), format!("{before}{left}{after}").trim_end_matches('.'));
        assert_eq!(findings.iter().map(|finding| finding.action).collect::<Vec<_>>(), [action], "{text}");
        // Part of a longer word.
        let inside = format!("x{token}");
        assert_eq!(detector.redact(&inside), (inside.as_str().into(), vec![]));
    }
}

#[rstest]
#[case("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")]
#[case("sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
#[case("sha512-n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg0123456789abcdefABCDEF==")]
#[case("cee441f cee441f0b9c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5")]
#[case("550e8400-e29b-41d4-a716-446655440000 0193b1f0-5b6e-7c3a-9b1e-2f4d5a6b7c8d")]
#[case("sk-fading-circle sk-cube-grid-container-wrapper-12 sk-SK task-force disk-usage-report-for-20261123")]
#[case("sk-550e8400-e29b-41d4-a716-446655440000")]
#[case("risk-k7Jq2mZx9RtB4wYc8LdVk7Jq2mZx9RtB4wYc8LdV")]
#[case("AKIA AKIAshort AKIAIOSFODNN7EXAMPLETOOLONG")]
#[case("ghp_short xoxb-token xoxb-your-token-goes-here eyJhbGciOiJIUzI1NiJ9")]
#[case("-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIE\n-----END CERTIFICATE-----")]
#[case("-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0B\n-----END PUBLIC KEY-----")]
#[case("grep -r '-----BEGIN RSA PRIVATE KEY-----' and \"-----BEGIN PRIVATE KEY-----\" in the code")]
#[case("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGk7Jq2mZx9RtB4wYc8LdVk7Jq2mZx9RtB4wYc8L bob@host")]
#[case("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")]
#[case("01ARZ3NDEKTSV4RRFFQ69G5FAV 100% %41 %zz %% %e2%82%ac")]
#[case("k8s-worker-7c9d8b6f5-x2x4z.eu-north-1.compute.internal")]
fn other_text_passes(#[case] text: &str) {
    let detector = detector(&["hunter2-hunter2"]);
    assert_eq!(detector.redact(text), (text.into(), vec![]));
}

#[rstest]
#[case("", "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nowIB+/=\n-----END RSA PRIVATE KEY-----", "\nafter")]
#[case("{\"k\":\"", "-----BEGIN PRIVATE KEY-----\\nMIIE\\n-----END PRIVATE KEY-----", "\\n\"}")]
#[case(
    "x ",
    "-----BEGIN EC PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\nDEK-Info: AES,00\r\n\r\nMHc\r\n-----END EC PRIVATE KEY-----",
    ""
)]
#[case("", "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk", "")]
#[case("", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQdG\n-----END PGP PRIVATE KEY BLOCK-----", "<>")]
fn a_private_key_is_blocked(#[case] before: &str, #[case] key: &str, #[case] after: &str) {
    let (text, findings) = found(&detector(&[]), &format!("{before}{key}{after}"));
    assert_eq!(text, format!("{before}[redacted]{after}"));
    let source = LeakSource::Format("private key");
    assert_eq!(findings, [Finding { source, action: LeakAction::Block }]);
}

#[test]
fn json_is_redacted_in_place() {
    let detector = detector(&["hunter2-secret", "1234567890"]);
    let mut value = json!({
        "a": "x hunter2-secret", "hunter2-secret": 1, "p:hunter2-secret": [1_234_567_890_i64, 12.5, null, true],
        "q": {"1234567890": "ok"},
    });
    let findings = detector.redact_json(&mut value);
    let expected = json!({
        "a": "x [redacted]", "[redacted]": 1, "p:[redacted]": ["[redacted]", 12.5, null, true], "q": {"[redacted]": "ok"},
    });
    assert_eq!(value, expected);
    assert_eq!(findings.len(), 1, "{findings:?}");
    let mut both = json!({"hunter2-secret": 1, "1234567890": 2});
    detector.redact_json(&mut both);
    assert_eq!(both, json!({"[redacted]": 1, "[redacted] (2)": 2}));
}

#[test]
fn a_redacted_argument_names_the_secret() {
    let secrets = [("a", "hunter2-a"), ("b", "1234567890")].map(|(name, value)| StoredSecret { name, value });
    let detector = LeakDetector::new(secrets).unwrap();
    let token = random("ghp_", 36);
    let mut arguments = json!({
        "command": "cat /etc/hunter2-a/x", "both": "hunter2-a 1234567890", "hunter2-a": [1_234_567_890_i64, token, "x"],
    });
    detector.redact_arguments(&mut arguments);
    let expected = json!({
        "command": "cat /etc/[redacted:a]/x", "both": "[redacted:a,b] [redacted:a,b]",
        "[redacted:a]": ["[redacted:b]", "[redacted]", "x"],
    });
    assert_eq!(arguments, expected);
    assert_eq!(detector.redact_arguments(&mut arguments), []);
}

#[test]
fn a_stream_shows_what_cannot_become_a_credential() {
    let detector = Arc::new(detector(&["hunter2-secret"]));
    let mut stream = StreamRedactor::new(Arc::clone(&detector));
    assert_eq!(stream.push("The word hun"), "The word ");
    assert_eq!(stream.push("dred is shown; hunter2"), "hundred is shown; ");
    assert_eq!(stream.push("-sec"), "");
    assert_eq!(stream.push("ret is not"), "[redacted] is ");
    let (rest, findings) = stream.finish();
    assert_eq!((rest.as_str(), findings.len()), ("not", 1));
}

/// The text without the beginning of an escape at its end: what follows would be a part of another character, and no
/// secret.
fn without_open_escape(text: &str) -> &str {
    let last = text.rfind("\\u").filter(|at| text.len() - at < "\\u0000".len());
    last.map_or(text, |at| text[..at].trim_end_matches('\\'))
}

/// Texts that are full of secrets, their beginnings and their encodings.
fn leaky_text() -> impl Strategy<Value = String> {
    let mut parts: Vec<String> = SECRETS.iter().flat_map(|secret| forms(secret)).map(|(_, text)| text).collect();
    parts.extend([random("ghp_", 36), random("sk-", 30), "-----BEGIN PRIVATE KEY-----\nMII".to_owned()]);
    parts.extend(
        ["-----END PRIVATE KEY-----", "%", "%4", "4", "\\", "\\\\", "\n", "é", " ", "x", "-----"].map(str::to_owned),
    );
    let part = prop::sample::select(parts).prop_flat_map(|part| {
        let length = part.len();
        (Just(part), 0..=length).prop_map(|(part, cut)| match cut % 3 {
            // A beginning of it, as often as the whole.
            0 => without_open_escape(&part[..part.floor_char_boundary(cut)]).to_owned(),
            _ => part,
        })
    });
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

const SECRETS: [&str; 4] = ["hunter2 secret", "41deadbeef/+~", "secret-hunter2-é", "aaaaaaaaaa"];

proptest! {
    #[test]
    fn pieces_are_redacted_as_the_whole(text in leaky_text(), cuts in prop::collection::vec(0_usize..400, 0..12)) {
        let detector = Arc::new(detector(&SECRETS));
        let (whole, findings) = detector.redact(&text);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| text.floor_char_boundary(cut)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut stream = StreamRedactor::new(Arc::clone(&detector));
        let mut shown = String::new();
        for piece in cuts.windows(2) {
            shown.push_str(&stream.push(&text[piece[0]..piece[1]]));
        }
        let (rest, found) = stream.finish();
        shown.push_str(&rest);
        prop_assert_eq!(&shown, &whole);
        prop_assert_eq!(found, findings);
    }

    #[test]
    fn no_form_of_a_secret_is_left(text in leaky_text()) {
        let shown = redacted(&SECRETS, &text);
        for secret in SECRETS {
            for (form, hidden) in forms(secret) {
                prop_assert!(!shown.contains(&hidden), "{form} of {secret} in {shown}");
            }
        }
    }

    #[test]
    fn text_without_secrets_stays(text in "[a-z .,\n]{0,200}") {
        let detector = detector(&["HUNTER2-SECRET"]);
        prop_assert_eq!(detector.redact(&text), (text.as_str().into(), vec![]));
    }
}
