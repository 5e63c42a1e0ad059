//! Tests of tables.

use rstest::rstest;

use super::*;

const COLUMNS: &[Column<(&str, i64, &str)>] = &[
    Column::text("id", |item, view| view.id(&item.0)),
    Column::number("tokens", |item, _| item.1.to_string()),
    Column::user(|item, _| item.2.to_owned()),
    Column::text("model", |_, _| "m-1".to_owned()).wide(),
    Column::flexible("title", |_, _| "Write a parser for CSV files with tests".to_owned()),
];

fn view(width: Option<usize>) -> View {
    View { width, user: Some("ada".to_owned()), ..View::unlimited() }
}

const ITEMS: &[(&str, i64, &str)] = &[("01890000-0000-7000-8000-0000000000aa", 7, "ada"), ("b", 1_234, "ada")];

#[test]
fn a_table_fits_the_width_by_cutting_its_flexible_column() {
    let shown = table(COLUMNS, ITEMS, &view(Some(40)));
    let expected =
        "id        tokens  title\n000000aa       7  Write a parser for CS…\nb           1234  Write a parser for CS…";
    assert_eq!(shown, expected);
    assert!(shown.lines().all(|line| line.chars().count() <= 40), "{shown}");
}

#[test]
fn optional_columns_are_left_out_where_the_others_do_not_fit() {
    const COLUMNS: &[Column<u8>] = &[
        Column::text("state", |_, _| "completed".to_owned()),
        Column::<u8>::text("last", |_, _| "3h ago".to_owned()).optional(),
        Column::<u8>::number("runs", |_, _| "7".to_owned()).optional(),
        Column::flexible("title", |_, _| "Write a parser for CSV files".to_owned()),
    ];
    let header = |width| {
        let shown = table(COLUMNS, &[1], &view(Some(width)));
        assert!(shown.lines().all(|line| line.chars().count() <= width), "{shown}");
        shown.lines().next().unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(header(60), ["state", "last", "runs", "title"]);
    assert_eq!(header(36), ["state", "last", "title"]);
    assert_eq!(header(24), ["state", "title"]);
}

#[test]
fn without_a_width_nothing_is_cut() {
    assert!(table(COLUMNS, ITEMS, &view(None)).lines().skip(1).all(|line| line.ends_with("CSV files with tests")));
}

#[test]
fn the_users_are_shown_if_there_are_others() {
    let items = [("a", 1, "ada"), ("b", 2, "bob")];
    let shown = table(COLUMNS, &items, &view(None));
    assert!(shown.starts_with("id  tokens  user  title\na        1  ada   Write"), "{shown}");
}

#[test]
fn wide_and_whole_ids_show_more() {
    let shown = table(COLUMNS, ITEMS, &View { is_wide: true, has_whole_ids: true, ..view(None) });
    assert!(shown.contains("model") && shown.contains(ITEMS[0].0), "{shown}");
}

#[rstest]
#[case(0, "0s")]
#[case(-5, "0s")]
#[case(119, "119s")]
#[case(120, "2m")]
#[case(7_199, "119m")]
#[case(7_200, "2h")]
#[case(172_800, "2d")]
fn durations_have_one_unit(#[case] seconds: i64, #[case] text: &str) {
    assert_eq!(duration(TimeDelta::seconds(seconds)), text);
}
