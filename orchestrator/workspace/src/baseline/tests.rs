//! Baselines as they are stored.

use super::*;

fn stored(baseline: &Baseline) -> Baseline {
    serde_json::from_slice(&serde_json::to_vec(baseline).unwrap()).unwrap()
}

fn entry(modified_at: DateTime<Utc>, text: &str) -> BaselineEntry {
    let (digest, content) = (Some(sha256_hex(b"")), Content::Text(text.to_owned()));
    BaselineEntry { kind: Some(FileKind::Directory), size_bytes: u64::MAX, modified_at, digest, content }
}

#[test]
fn the_largest_entry_is_smaller_in_json_than_the_limit_expects() {
    for modified_at in [DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC] {
        for byte in [b'a', b'"', 1, 0x7f, 0xff] {
            let path = vec![byte; 1000];
            let text = "\u{1}".repeat(1000);
            let entries = BTreeMap::from([(EntryPath(path.clone()), entry(modified_at, &text))]);
            let baseline = Baseline { entries, is_complete: false };
            let json = serde_json::to_vec(&baseline).unwrap().len() as u64;
            assert!(json <= MAX_ESCAPED_BYTES * 2_000 + MAX_FIELDS_BYTES, "{json}");
            let read = stored(&baseline);
            assert_eq!(read.entries[&EntryPath(path)].modified_at, modified_at);
        }
    }
}

#[test]
fn paths_are_stored_byte_for_byte() {
    let paths = [b"a/caf\xc3\xa9".as_slice(), b"caf\xe9", b"caf\xe8", b"caf\xef\xbf\xbd", b"\xff", b"line\n\"\\"];
    let entries = paths.map(|path| (EntryPath(path.to_vec()), entry(DateTime::UNIX_EPOCH, "")));
    let baseline = Baseline { entries: BTreeMap::from(entries), is_complete: true };
    assert!(stored(&baseline).entries.keys().eq(baseline.entries.keys()));
}

#[test]
fn a_baseline_of_an_earlier_version_is_read() {
    let json = r#"{"entries": {"a/b": {"size_bytes": 2, "modified_at": "2026-11-22T12:00:00Z", "digest": null,
        "content": {"text": "1\n"}}}, "is_complete": true}"#;
    let baseline: Baseline = serde_json::from_str(json).unwrap();
    assert_eq!(baseline.entries[&EntryPath(b"a/b".to_vec())].kind, None);
}
