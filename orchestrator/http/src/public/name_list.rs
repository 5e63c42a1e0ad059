//! Query parameters that are names separated by commas, such as `state=failed,stuck`.

use crate::problem::ApiError;

/// The values of the names in a parameter, each once; none if the parameter is absent or empty.
pub(super) fn parse<T: Copy + PartialEq>(
    field: &str,
    asked: Option<&str>,
    all: &[T],
    name_of: impl Fn(T) -> &'static str,
) -> Result<Vec<T>, ApiError> {
    let mut values = vec![];
    for name in asked.filter(|asked| !asked.is_empty()).into_iter().flat_map(|asked| asked.split(',')) {
        let Some(value) = all.iter().copied().find(|value| name_of(*value) == name.trim()) else {
            let known: Vec<&str> = all.iter().map(|value| name_of(*value)).collect();
            return Err(ApiError::field(field, format!("must be one of {}", known.join(", "))));
        };
        // A statement has one parameter for each, and the number of those is limited.
        if !values.contains(&value) {
            values.push(value);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use protocol::GateState;

    use super::*;

    fn states(asked: Option<&str>) -> Result<Vec<GateState>, String> {
        parse("state", asked, GateState::ALL, GateState::as_str).map_err(|error| error.detail().to_owned())
    }

    #[test]
    fn each_name_counts_once_and_an_unknown_one_is_an_error() {
        assert_eq!(states(None), Ok(vec![]));
        assert_eq!(states(Some("")), Ok(vec![]));
        let repeated = format!("denied, {}", "pending,".repeat(50_000));
        assert_eq!(states(Some(repeated.trim_end_matches(','))), Ok(vec![GateState::Denied, GateState::Pending]));
        let error = "state: must be one of pending, approved, denied, expired".to_owned();
        for unknown in ["open", "pending,open", "pending,", "Pending"] {
            assert_eq!(states(Some(unknown)), Err(error.clone()), "{unknown}");
        }
    }
}
