//! The beginning or the end of an id, as users and models write it. Pure.

/// Minimum number of digits.
pub const MIN_ID_DIGITS: usize = 4;
/// Hexadecimal digits of a whole id.
const ID_DIGITS: usize = 32;

/// The lower-case hexadecimal digits of the beginning or end of an id; `None` if the text can be neither.
pub fn id_digits(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
    let is_part = digits.bytes().all(|b| b.is_ascii_hexdigit()) && (MIN_ID_DIGITS..=ID_DIGITS).contains(&digits.len());
    is_part.then_some(digits)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("01aB", Some("01ab"))]
    #[case("8000-0000abcd", Some("80000000abcd"))]
    #[case("01890000-0000-7000-8000-00000000abcd", Some("0189000000007000800000000000abcd"))]
    #[case("01890000-0000-7000-8000-00000000abcd0", None)]
    #[case("1-2-3", None)]
    #[case("latest", None)]
    #[case("", None)]
    fn a_part_of_an_id_has_at_least_four_digits(#[case] text: &str, #[case] digits: Option<&str>) {
        assert_eq!(id_digits(text).as_deref(), digits);
    }
}
