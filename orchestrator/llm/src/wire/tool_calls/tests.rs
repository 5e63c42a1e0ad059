//! The shapes in which servers send tool calls.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// Each piece is a separate chunk.
fn assembled(pieces: &[Value]) -> Vec<(String, String, String)> {
    let mut calls = ToolCallAssembler::default();
    for piece in pieces {
        calls.take(std::slice::from_ref(piece));
    }
    shown(calls)
}

fn shown(calls: ToolCallAssembler) -> Vec<(String, String, String)> {
    let shown = |call: ToolCall| (call.id, call.name, call.arguments.to_string());
    calls.into_calls().0.into_iter().map(shown).collect()
}

/// A piece: index, id, name, arguments; `-` leaves a field out.
fn piece(index: &str, id: &str, name: &str, arguments: &str) -> Value {
    let mut piece = json!({"type": "function", "function": {}});
    if index != "-" {
        piece["index"] = index.parse::<u64>().unwrap().into();
    }
    for (value, field) in [(id, &mut piece["id"])] {
        if value != "-" {
            *field = json!(value);
        }
    }
    for (value, field) in [(name, "name"), (arguments, "arguments")] {
        if value != "-" {
            piece["function"][field] = json!(value);
        }
    }
    piece
}

type Row = (&'static str, &'static str, &'static str, &'static str);

#[rstest]
#[case::as_the_format_says(&[("0", "a", "f", ""), ("0", "-", "-", "{\"x\":"), ("0", "-", "-", "1}"), ("1", "b", "g", "{}")], "a f {\"x\":1}; b g {}")]
#[case::pieces_that_alternate(&[("0", "a", "f", ""), ("1", "b", "f", ""), ("0", "-", "-", "{\"x\":1}"), ("1", "-", "-", "{\"x\":2}")], "a f {\"x\":1}; b f {\"x\":2}")]
#[case::indexes_from_1(&[("1", "a", "f", ""), ("1", "-", "-", "{\"x\":1}"), ("2", "b", "f", "{\"x\":2}")], "a f {\"x\":1}; b f {\"x\":2}")]
#[case::always_0_with_changing_ids(&[("0", "a", "f", "{\"x\":1}"), ("0", "b", "f", "{\"x\":2}")], "a f {\"x\":1}; b f {\"x\":2}")]
#[case::always_0_in_pieces(&[("0", "a", "f", ""), ("0", "-", "-", "{\"x\":1}"), ("0", "b", "f", ""), ("0", "-", "-", "{\"x\":2}")], "a f {\"x\":1}; b f {\"x\":2}")]
#[case::always_0_without_ids(&[("0", "-", "f", "{\"x\":1}"), ("0", "-", "f", "{\"x\":1}")], " f {\"x\":1};  f {\"x\":1}")]
#[case::always_0_without_ids_other_names(&[("0", "-", "f", "{}"), ("0", "-", "g", "{}")], " f {};  g {}")]
#[case::no_index(&[("-", "a", "f", "{\"x\":1}"), ("-", "b", "f", "{\"x\":2}")], "a f {\"x\":1}; b f {\"x\":2}")]
#[case::no_index_in_pieces(&[("-", "a", "f", ""), ("-", "-", "-", "{\"x\":"), ("-", "-", "-", "1}"), ("-", "b", "f", "{}")], "a f {\"x\":1}; b f {}")]
#[case::no_index_id_in_each_piece(&[("-", "a", "f", ""), ("-", "a", "-", "{\"x\":1}"), ("-", "b", "f", ""), ("-", "b", "-", "{}")], "a f {\"x\":1}; b f {}")]
#[case::neither_index_nor_id(&[("-", "-", "f", "{\"x\":1}"), ("-", "-", "f", "{\"x\":2}")], " f {\"x\":1};  f {\"x\":2}")]
#[case::neither_nor_arguments(&[("-", "-", "f", ""), ("-", "-", "f", "")], " f {};  f {}")]
#[case::neither_in_pieces(&[("-", "-", "f", ""), ("-", "-", "-", "{\"x\":"), ("-", "-", "-", "1}")], " f {\"x\":1}")]
#[case::name_in_each_piece(&[("0", "a", "f", "{\"x\""), ("0", "a", "f", ":1}"), ("0", "a", "f", "")], "a f {\"x\":1}")]
#[case::name_in_each_piece_without_ids(&[("0", "-", "f", ""), ("0", "-", "f", "{\"x\""), ("0", "-", "f", ":1}")], " f {\"x\":1}")]
#[case::a_name_in_pieces(&[("0", "a", "ti", ""), ("0", "-", "me", ""), ("0", "-", "-", "{}")], "a time {}")]
#[case::an_id_for_each_piece(&[("0", "a", "f", ""), ("0", "b", "-", "{\"x\":"), ("0", "c", "-", "1}")], "a f {\"x\":1}")]
#[case::an_id_for_each_piece_and_no_index(&[("-", "a", "f", ""), ("-", "b", "-", "{\"x\":1}")], "a f {\"x\":1}")]
#[case::one_id_for_all(&[("0", "a", "f", "{\"x\":1}"), ("1", "a", "f", "{\"x\":2}")], "a f {\"x\":1}; a f {\"x\":2}")]
#[case::one_id_and_one_index_for_all(&[("0", "a", "f", "{\"x\":1}"), ("0", "a", "f", "{\"x\":2}")], "a f {\"x\":1}; a f {\"x\":2}")]
#[case::repeated_whole_at_the_end(&[("0", "a", "f", "{\"x\":"), ("0", "-", "-", "1}"), ("0", "a", "f", "{\"x\":1}")], "a f {\"x\":1}")]
#[case::all_so_far_in_each_piece(&[("0", "a", "f", "{\"x\""), ("0", "-", "-", "{\"x\":1"), ("0", "-", "-", "{\"x\":12}")], "a f {\"x\":12}")]
#[case::cut_before_an_object(&[("0", "a", "f", "{\"x\":["), ("0", "-", "-", "{\"y\":1}")], "a f \"{\\\"x\\\":[{\\\"y\\\":1}\"")]
#[case::a_placeholder(&[("0", "a", "f", "{}"), ("0", "-", "-", "{\"x\":"), ("0", "-", "-", "1}")], "a f {\"x\":1}")]
#[case::a_placeholder_that_stays(&[("0", "a", "f", "{}"), ("1", "b", "f", "{}")], "a f {}; b f {}")]
#[case::name_after_the_id(&[("0", "a", "-", ""), ("0", "-", "f", ""), ("0", "-", "-", "{}")], "a f {}")]
#[case::index_only_in_the_first_piece(&[("3", "a", "f", ""), ("-", "-", "-", "{\"x\":1}")], "a f {\"x\":1}")]
#[case::index_only_in_later_pieces(&[("-", "a", "f", ""), ("0", "-", "-", "{\"x\":1}")], "a f {\"x\":1}")]
#[case::huge_indexes(&[("18446744073709551615", "b", "f", "{}"), ("4000000000", "a", "f", "{}")], "a f {}; b f {}")]
#[case::bad_arguments_stay_text(&[("0", "a", "f", "{\"x\":"), ("1", "b", "f", "nonsense")], "a f \"{\\\"x\\\":\"; b f \"nonsense\"")]
#[case::blank_arguments(&[("0", "a", "f", "  ")], "a f {}")]
#[case::white_space_at_the_end(&[("0", "a", "f", "{\"x\":1}"), ("0", "-", "-", "\n")], "a f {\"x\":1}")]
#[case::nothing_at_all(&[("0", "-", "-", "-")], "")]
#[case::arguments_without_a_name(&[("0", "a", "-", "{\"x\":1}")], "a  {\"x\":1}")]
#[case::heads_of_the_same_tool(&[("0", "-", "f", ""), ("0", "-", "-", "{\"x\":"), ("0", "-", "-", "1}"), ("0", "-", "f", ""), ("0", "-", "-", "{\"x\":"), ("0", "-", "-", "2}")], " f {\"x\":1};  f {\"x\":2}")]
#[case::heads_without_index(&[("-", "-", "f", ""), ("-", "-", "-", "{\"x\":"), ("-", "-", "-", "1}"), ("-", "-", "f", ""), ("-", "-", "-", "{\"x\":"), ("-", "-", "-", "2}")], " f {\"x\":1};  f {\"x\":2}")]
#[case::heads_without_arguments(&[("0", "-", "f", "-"), ("0", "-", "-", "{\"x\":"), ("0", "-", "-", "1}"), ("0", "-", "f", "-"), ("0", "-", "-", "{\"x\":"), ("0", "-", "-", "1}")], " f {\"x\":1};  f {\"x\":1}")]
#[case::heads_with_one_id(&[("0", "a", "f", ""), ("0", "-", "-", "{\"x\":"), ("0", "-", "-", "1}"), ("0", "a", "f", ""), ("0", "-", "-", "{\"x\":"), ("0", "-", "-", "2}")], "a f {\"x\":1}; a f {\"x\":2}")]
#[case::repeated_whole_without_a_name(&[("0", "a", "f", "{\"x\":"), ("0", "-", "-", "1}"), ("0", "-", "-", "{\"x\":1}")], "a f {\"x\":1}")]
#[case::name_and_a_new_id_in_each_piece(&[("0", "a", "f", ""), ("0", "b", "f", "{\"x\":"), ("0", "c", "f", "1}"), ("0", "d", "f", "{\"x\":2}")], "a f {\"x\":1}; d f {\"x\":2}")]
#[case::new_ids_without_arguments(&[("0", "a", "f", ""), ("0", "b", "f", ""), ("0", "c", "f", "{\"x\":1}")], "a f {}; b f {}; c f {\"x\":1}")]
fn shapes(#[case] rows: &[Row], #[case] expected: &str) {
    let pieces: Vec<Value> =
        rows.iter().map(|(index, id, name, arguments)| piece(index, id, name, arguments)).collect();
    let found: Vec<_> =
        assembled(&pieces).into_iter().map(|(id, name, arguments)| format!("{id} {name} {arguments}")).collect();
    assert_eq!(found.join("; "), expected);
}

#[test]
fn calls_of_one_chunk_are_different_calls() {
    let mut calls = ToolCallAssembler::default();
    calls.take(&[piece("-", "-", "f", ""), piece("-", "-", "f", ""), piece("-", "-", "g", "{}")]);
    assert_eq!(shown(calls).len(), 3);
    let mut calls = ToolCallAssembler::default();
    calls.take(&[piece("0", "-", "f", "{\"x\":1}"), piece("0", "-", "f", "{\"x\":1}")]);
    assert_eq!(shown(calls).len(), 2);
}

/// Would take minutes if each piece were checked together with all that came before it.
#[test]
fn arguments_of_many_pieces_are_read_once() {
    let mut pieces = vec![piece("0", "a", "f", "{\"x\":\"")];
    pieces.resize(200_000, piece("0", "a", "f", "}"));
    assert_eq!(assembled(&pieces).len(), 1);
}

#[test]
fn arguments_may_be_an_object() {
    let object = json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}});
    assert_eq!(assembled(&[object]), [("a".to_owned(), "f".to_owned(), "{\"x\":1}".to_owned())]);
}

/// How a server marks its pieces.
#[derive(Debug, Clone, Copy)]
enum Style {
    /// As the format says, counting from here.
    Indexes(u64),
    /// Index 0 for all; a call's first piece has its id.
    Zero,
    /// No index; a call's first piece has its id.
    Ids,
    /// As the format says, with id and name in each piece.
    Repeating,
    /// A name without arguments first, then the arguments; no id, and this index for all.
    Heads(Option<u64>),
}

proptest! {
    /// Whatever a server's style, calls that are sent one after another arrive as they are.
    #[test]
    fn every_call_arrives_once_and_in_order(
        arguments in proptest::collection::vec("[a-z{}\": ]{0,12}", 1..6),
        size in 1..6_usize,
        style in prop_oneof![
            (0..3_u64).prop_map(Style::Indexes), Just(Style::Zero), Just(Style::Ids), Just(Style::Repeating),
            Just(Style::Heads(None)), Just(Style::Heads(Some(0)))
        ],
    ) {
        let mut pieces = Vec::new();
        let mut expected = Vec::new();
        for (at, argument) in arguments.iter().enumerate() {
            let (mut id, text) = (format!("call_{at}"), json!({"a": argument}).to_string());
            if let Style::Heads(index) = style {
                let index = index.map_or_else(|| "-".to_owned(), |index| index.to_string());
                pieces.push(piece(&index, "-", "f", ""));
                id.clear();
            }
            let chars: Vec<char> = text.chars().collect();
            for (place, part) in chars.chunks(size).enumerate() {
                let (part, is_first) = (part.iter().collect::<String>(), place == 0);
                let at = u64::try_from(at).unwrap();
                let index = match style {
                    Style::Indexes(first) => Some(first + at),
                    Style::Repeating => Some(at),
                    Style::Zero => Some(0),
                    Style::Ids => None,
                    Style::Heads(index) => index,
                };
                let mut piece = json!({"function": {"arguments": part}});
                if let Some(index) = index {
                    piece["index"] = json!(index);
                }
                if is_first && !matches!(style, Style::Heads(_)) || matches!(style, Style::Repeating) {
                    piece["id"] = json!(id);
                    piece["function"]["name"] = json!("f");
                }
                pieces.push(piece);
            }
            expected.push((id, "f".to_owned(), text));
        }
        prop_assert_eq!(assembled(&pieces), expected);
    }

    /// Nothing that a server sends makes it panic, and nothing that it sends makes more calls than pieces.
    #[test]
    fn any_pieces_are_taken(
        rows in proptest::collection::vec(
            ("(-|0|1|7)", "(-|a|b)", "(-|f|g)", "(-|\\{\\}|\\{\"x\":|1\\}|x)"), 0..12
        ),
    ) {
        let pieces: Vec<Value> = rows.iter().map(|(index, id, name, arguments)| piece(index, id, name, arguments)).collect();
        prop_assert!(assembled(&pieces).len() <= pieces.len());
    }
}
