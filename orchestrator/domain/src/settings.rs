//! Validation of a user's settings. Pure.

use protocol::{FieldError, UserSettings};

use base::Zone;

/// Maximum temperature; providers with a lower maximum get theirs.
const MAX_TEMPERATURE: f64 = 2.0;
/// Maximum seconds between two heartbeats: a week.
const MAX_HEARTBEAT_SECONDS: u64 = 7 * 86_400;

/// What a user may choose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsBounds {
    pub models: Vec<String>,
    /// Minimum seconds between two heartbeats.
    pub min_heartbeat_seconds: u64,
}

impl SettingsBounds {
    /// The invalid fields; empty if there are none.
    pub fn check(&self, settings: &UserSettings) -> Vec<FieldError> {
        let mut errors = vec![];
        let mut add = |field: &str, message: String| errors.push(FieldError { field: field.to_owned(), message });
        if let Some(model) = &settings.model
            && !self.models.contains(model)
        {
            add("model", format!("must be one of {}, or null", self.models.join(", ")));
        }
        if settings.temperature.is_some_and(|temperature| !(0.0..=MAX_TEMPERATURE).contains(&temperature)) {
            add("temperature", format!("must be from 0 to {MAX_TEMPERATURE}, or null"));
        }
        if settings.timezone.as_ref().is_some_and(|zone| zone.parse::<Zone>().is_err()) {
            add("timezone", "must be an IANA time zone, such as Europe/Oslo or UTC, or null".to_owned());
        }
        if settings.quiet_hours.is_some_and(|hours| hours.from == hours.to) {
            add("quiet_hours", "from and to must differ; use null for no quiet hours".to_owned());
        }
        let range = self.min_heartbeat_seconds..=MAX_HEARTBEAT_SECONDS;
        if settings.heartbeat_every_seconds.is_some_and(|seconds| seconds != 0 && !range.contains(&seconds)) {
            let message = format!("must be from {} to {MAX_HEARTBEAT_SECONDS}, 0 or null", self.min_heartbeat_seconds);
            add("heartbeat_every_seconds", message);
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use protocol::{QuietHours, TimeOfDay};
    use rstest::rstest;

    use super::*;

    fn errors(change: impl FnOnce(&mut UserSettings)) -> Vec<String> {
        let bounds = SettingsBounds { models: vec!["small".to_owned(), "large".to_owned()], min_heartbeat_seconds: 60 };
        let mut settings = UserSettings::default();
        change(&mut settings);
        bounds.check(&settings).into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(errors(|_| {}), Vec::<String>::new());
    }

    #[rstest]
    #[case(Some("small"), true)]
    #[case(Some("large"), true)]
    #[case(Some("Large"), false)]
    #[case(Some(""), false)]
    fn a_model_is_one_of_the_operators(#[case] model: Option<&str>, #[case] is_valid: bool) {
        assert_eq!(errors(|settings| settings.model = model.map(str::to_owned)).is_empty(), is_valid);
    }

    #[rstest]
    #[case(0.0, true)]
    #[case(2.0, true)]
    #[case(-0.1, false)]
    #[case(2.1, false)]
    #[case(f64::NAN, false)]
    fn a_temperature_has_a_range(#[case] temperature: f64, #[case] is_valid: bool) {
        assert_eq!(errors(|settings| settings.temperature = Some(temperature)).is_empty(), is_valid);
    }

    #[rstest]
    #[case("Europe/Oslo", true)]
    #[case("America/Argentina/Buenos_Aires", true)]
    #[case("UTC", true)]
    #[case("Europe/Atlantis", false)]
    #[case("+02:00", false)]
    #[case("", false)]
    fn a_time_zone_is_known(#[case] zone: &str, #[case] is_valid: bool) {
        assert_eq!(errors(|settings| settings.timezone = Some(zone.to_owned())).is_empty(), is_valid);
    }

    #[rstest]
    #[case(0, true)]
    #[case(59, false)]
    #[case(60, true)]
    #[case(604_800, true)]
    #[case(604_801, false)]
    fn a_heartbeat_is_off_or_in_range(#[case] seconds: u64, #[case] is_valid: bool) {
        assert_eq!(errors(|settings| settings.heartbeat_every_seconds = Some(seconds)).is_empty(), is_valid);
    }

    #[test]
    fn every_invalid_field_is_reported() {
        let noon = TimeOfDay::new(12, 0).unwrap();
        let all = errors(|settings| {
            *settings = UserSettings {
                effort: None,
                model: Some("other".to_owned()),
                temperature: Some(3.0),
                timezone: Some("Moon".to_owned()),
                quiet_hours: Some(QuietHours { from: noon, to: noon }),
                heartbeat_every_seconds: Some(1),
            }
        });
        assert_eq!(all, ["model", "temperature", "timezone", "quiet_hours", "heartbeat_every_seconds"]);
    }
}
