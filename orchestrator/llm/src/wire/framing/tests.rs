//! Bodies as servers send them, split anywhere.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::wire::halves;

fn frames(framing: Framing, parts: &[&[u8]]) -> Result<Vec<Frame>, DecodeError> {
    let mut framer = Framer::new(framing);
    let mut found = Vec::new();
    let mut keep = |frame| {
        found.push(frame);
        Ok(())
    };
    for part in parts {
        framer.push(part, &mut keep)?;
    }
    framer.finish(&mut keep)?;
    for frame in &mut found {
        if let Frame::Json { value, .. } = frame {
            halves::join_all(value);
        }
    }
    Ok(found)
}

fn value(value: Value) -> Frame {
    Frame::Json { event: None, value }
}

#[rstest]
#[case::plain("data: 1\n\ndata: 2\n\ndata: [DONE]\n\n", &["1", "2", "done"])]
#[case::carriage_returns("data: 1\r\rdata: 2\r\r", &["1", "2"])]
#[case::both("data: 1\r\n\r\ndata: 2\r\n\r\n", &["1", "2"])]
#[case::byte_order_mark("\u{feff}data: 1\n\n", &["1"])]
#[case::no_space("data:1\n\n", &["1"])]
#[case::comments(": ping\n\n: ping\n\ndata: 1\n\n:\n\n", &["1"])]
#[case::other_fields("id: 7\nretry: 10\ndata: 1\nnonsense\n\n", &["1"])]
#[case::empty_data("data:\n\ndata: \n\ndata: 1\n\n", &["1"])]
#[case::leading_blank_lines("\n\n\r\n data\n\ndata: 1\n\n", &["1"])]
#[case::a_value_over_several_lines("data: [1,\ndata: 2]\n\n", &["[1,2]"])]
#[case::no_blank_lines("data: 1\ndata: 2\ndata: [DONE]\n\n", &["1", "2", "done"])]
#[case::no_last_blank_line("data: 1\n\ndata: [DONE]", &["1", "done"])]
#[case::cut_off("data: 1\n\ndata: {\"a\": ", &["1"])]
#[case::cut_off_mark("data: 1\n\ndata: [DO", &["1"])]
#[case::a_document(" {\"a\": 1}\n", &["{\"a\":1}", "end"])]
#[case::a_list_of_one("[{\"error\": 1}]", &["{\"error\":1}", "end"])]
#[case::an_error_field("error: {\"code\": 500}\n\n", &["{\"error\":{\"code\":500}}"])]
#[case::half_a_surrogate_pair(
    r#"data: {"a":"smile \ud83d"}"#, &["{\"a\":\"smile \u{fffd}\"}"]
)]
#[case::the_other_half(r#"data: {"a":"\ude00 \\ud83d \ud83d\ude00"}"#, &["{\"a\":\"\u{fffd} \\\\ud83d \u{1f600}\"}"])]
#[case::nothing("", &[])]
fn events(#[case] body: &str, #[case] expected: &[&str]) {
    let describe = |frame: Frame| match frame {
        Frame::Json { value, .. } => value.to_string(),
        Frame::Done => "done".to_owned(),
        Frame::EndOfDocument => "end".to_owned(),
    };
    let found: Vec<_> = frames(Framing::Events, &[body.as_bytes()]).unwrap().into_iter().map(describe).collect();
    assert_eq!(found, expected);
}

#[rstest]
#[case::lines("1\n{\"a\":2}\r\n\n3", vec![json!(1), json!({"a": 2}), json!(3)])]
#[case::pretty("{\n  \"a\": [\n1]\n}\n4\n", vec![json!({"a": [1]}), json!(4)])]
#[case::cut_off("1\n{\"a\":", vec![json!(1)])]
fn lines(#[case] body: &str, #[case] expected: Vec<Value>) {
    let expected: Vec<_> = expected.into_iter().map(value).collect();
    assert_eq!(frames(Framing::Lines, &[body.as_bytes()]).unwrap(), expected);
}

#[rstest]
#[case::event(Framing::Events, b"data: {\"a\": \"caf\xe9\"}\n\n")]
#[case::document(Framing::Events, b"{\"a\": \"caf\xe9\"}")]
#[case::line(Framing::Lines, b"{\"a\":\n\"caf\xe9\"}\n")]
fn invalid_bytes_of_a_text_are_replaced(#[case] framing: Framing, #[case] body: &[u8]) {
    assert_eq!(frames(framing, &[body]).unwrap()[0], value(json!({"a": "caf\u{fffd}"})));
}

/// Each would take minutes if what was buffered were read again.
#[rstest]
#[case::lines_of_one_value(Framing::Lines, "[", "\n", 1 << 20)]
#[case::white_space_first(Framing::Events, "", " ", 1)]
#[case::one_long_line(Framing::Events, "data: ", "x", 1)]
fn a_long_part_is_read_once(
    #[case] framing: Framing,
    #[case] start: &str,
    #[case] filler: &str,
    #[case] chunk_bytes: usize,
) {
    let body = format!("{start}{}", filler.repeat(1 << 20));
    let parts: Vec<&[u8]> = body.as_bytes().chunks(chunk_bytes).collect();
    let mut framer = Framer::new(framing);
    for part in parts {
        framer.push(part, &mut |_| Ok(())).unwrap();
    }
}

#[rstest]
#[case(Framing::Events, "data: }{\n\n")]
#[case(Framing::Events, "<html>welcome</html>")]
#[case(Framing::Events, "{]")]
#[case(Framing::Lines, "}{\n")]
fn unusable_answers_are_refused(#[case] framing: Framing, #[case] body: &str) {
    assert!(matches!(frames(framing, &[body.as_bytes()]), Err(DecodeError::Invalid(_))));
}

#[test]
fn an_event_keeps_its_name_and_a_part_has_a_limit() {
    let named = frames(Framing::Events, &[b"event: ping\ndata: {}\n\n"]).unwrap();
    assert_eq!(named, [Frame::Json { event: Some("ping".to_owned()), value: json!({}) }]);
    let comments = vec![b":\n".repeat(MAX_FRAME_BYTES / 2); MAX_BODY_BYTES / MAX_FRAME_BYTES + 1];
    let comments: Vec<&[u8]> = comments.iter().map(Vec::as_slice).collect();
    assert!(matches!(frames(Framing::Events, &comments), Err(DecodeError::Invalid(_))));
    let endless = vec![b'x'; MAX_FRAME_BYTES];
    assert!(matches!(frames(Framing::Events, &[b"data: ", &endless]), Err(DecodeError::Invalid(_))));
}

proptest! {
    /// However the bytes are split, the frames are the same.
    #[test]
    fn any_split_gives_the_same_frames(
        body in "(data: ?(1|\\{\"a\": \"[a-zé]\"\\}|\\[DONE\\])|event: x|: c|)((\r\n|\n|\r)(data: ?(1|\\[2\\])|event: y|: c|)){0,12}",
        cuts in proptest::collection::vec(0..200_usize, 0..20),
    ) {
        let bytes = body.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
        cuts.sort_unstable();
        let mut parts = Vec::new();
        let mut from = 0;
        for cut in cuts {
            parts.push(&bytes[from..cut]);
            from = cut;
        }
        parts.push(&bytes[from..]);
        let whole = frames(Framing::Events, &[bytes]);
        let split = frames(Framing::Events, &parts);
        prop_assert_eq!(whole.is_ok(), split.is_ok());
        if let (Ok(whole), Ok(split)) = (whole, split) {
            prop_assert_eq!(whole, split);
        }
    }
}
