//! `gantry settings`: the caller's settings.

use clap::{Args, Subcommand, ValueEnum};
use protocol::{Effort, QuietHours, TimeOfDay, UserSettings};

use crate::{
    client::Client,
    exit::CliError,
    input::one_of,
    output::{Output, one_line},
};

const PATH: &str = "/api/settings";

#[derive(Debug, Subcommand)]
pub enum SettingsCommand {
    /// Show your settings
    Show,
    /// Change some of your settings
    Set(SetArgs),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct SetArgs {
    /// Model to use where a request names none
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// How much the model thinks where a request does not say
    #[arg(long, value_name = "LEVEL", value_parser = one_of(Effort::ALL))]
    effort: Option<Effort>,
    /// Temperature of model calls, 0 to 2
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = parse_temperature)]
    temperature: Option<f64>,
    /// IANA time zone, such as Europe/Oslo
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Daily quiet hours in your time zone, such as 22:00-07:00
    #[arg(long, value_name = "FROM-TO", value_parser = parse_quiet_hours)]
    quiet_hours: Option<QuietHours>,
    /// Time between two heartbeats, such as 30m; 0s for none
    #[arg(long, value_name = "DURATION")]
    heartbeat_every: Option<humantime::Duration>,
    /// Settings to reset to their defaults, separated by commas
    #[arg(long, value_enum, value_delimiter = ',')]
    reset: Vec<SettingArg>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SettingArg {
    Model,
    Effort,
    Temperature,
    Timezone,
    QuietHours,
    HeartbeatEvery,
}

pub(crate) async fn run(command: SettingsCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let (mut settings, version): (UserSettings, _) = client.get_with_version(PATH).await?;
    if let SettingsCommand::Set(args) = command {
        args.apply(&mut settings);
        settings = client.put_if_version(PATH, &[], &settings, version).await?;
    }
    output.either(&settings, |_| describe(&settings))
}

impl SetArgs {
    /// Resets first, so that a setting that is also given has its new value.
    fn apply(self, settings: &mut UserSettings) {
        for setting in self.reset {
            match setting {
                SettingArg::Model => settings.model = None,
                SettingArg::Effort => settings.effort = None,
                SettingArg::Temperature => settings.temperature = None,
                SettingArg::Timezone => settings.timezone = None,
                SettingArg::QuietHours => settings.quiet_hours = None,
                SettingArg::HeartbeatEvery => settings.heartbeat_every_seconds = None,
            }
        }
        settings.model = self.model.or(settings.model.take());
        settings.effort = self.effort.or(settings.effort);
        settings.temperature = self.temperature.or(settings.temperature);
        settings.quiet_hours = self.quiet_hours.or(settings.quiet_hours);
        settings.timezone = self.timezone.or(settings.timezone.take());
        if let Some(every) = self.heartbeat_every {
            settings.heartbeat_every_seconds = Some(every.as_secs());
        }
    }
}

/// A number that JSON has; the server checks its range.
fn parse_temperature(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| "must be a number from 0 to 2".to_owned())
}

fn parse_quiet_hours(text: &str) -> Result<QuietHours, String> {
    let invalid = || "must be two times, such as 22:00-07:00".to_owned();
    let (from, to) = text.split_once('-').ok_or_else(invalid)?;
    let time = |text: &str| text.trim().parse::<TimeOfDay>().map_err(|_| invalid());
    Ok(QuietHours { from: time(from)?, to: time(to)? })
}

fn describe(settings: &UserSettings) -> String {
    let unset = |default: &str| format!("- ({default})");
    let seconds = |seconds| match seconds {
        0 => "off".to_owned(),
        seconds => humantime::format_duration(std::time::Duration::from_secs(seconds)).to_string(),
    };
    let rows = [
        ("model", settings.model.as_deref().map_or_else(|| unset("the server's default"), one_line)),
        ("effort", settings.effort.map_or_else(|| unset("the server's default"), |effort| effort.to_string())),
        ("temperature", settings.temperature.map_or_else(|| unset("the model's default"), |value| value.to_string())),
        ("timezone", settings.timezone.as_deref().map_or_else(|| unset("UTC"), one_line)),
        (
            "quiet hours",
            settings.quiet_hours.map_or_else(|| unset("none"), |hours| format!("{}-{}", hours.from, hours.to)),
        ),
        ("heartbeat", settings.heartbeat_every_seconds.map_or_else(|| unset("the server's default"), seconds)),
    ];
    rows.map(|(name, value)| format!("{name:<15} {value}")).join("\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: SettingsCommand,
    }

    fn applied(line: &str, mut settings: UserSettings) -> UserSettings {
        let line = ["gantry", "set"].into_iter().chain(line.split_whitespace());
        let SettingsCommand::Set(args) = Line::try_parse_from(line).unwrap().command else { panic!("set is given") };
        args.apply(&mut settings);
        settings
    }

    fn hours(from: &str, to: &str) -> QuietHours {
        QuietHours { from: from.parse().unwrap(), to: to.parse().unwrap() }
    }

    #[test]
    fn only_what_is_given_changes() {
        let before = UserSettings { model: Some("m".to_owned()), temperature: Some(0.5), ..UserSettings::default() };
        let after = applied("--quiet-hours 22:00-07:00 --heartbeat-every 30m", before.clone());
        let expected =
            UserSettings { quiet_hours: Some(hours("22:00", "07:00")), heartbeat_every_seconds: Some(1_800), ..before };
        assert_eq!(after, expected);
        assert_eq!(applied("--effort high", after.clone()).effort, Some(Effort::High));
        assert_eq!(applied("--reset effort", applied("--effort high", after.clone())), after);
        let after = applied("--reset model,quiet-hours,temperature --temperature 1 --timezone Europe/Oslo", after);
        let expected = UserSettings {
            temperature: Some(1.0),
            timezone: Some("Europe/Oslo".to_owned()),
            heartbeat_every_seconds: Some(1_800),
            ..UserSettings::default()
        };
        assert_eq!(after, expected);
        assert_eq!(applied("--reset timezone", after).timezone, None);
    }

    #[test]
    fn malformed_arguments_are_usage_errors() {
        for line in [
            &["set"][..],
            &["set", "--quiet-hours", "22-7"],
            &["set", "--quiet-hours", "22:00"],
            &["set", "--reset", "x"],
            &["set", "--effort", "max"],
        ] {
            assert!(Line::try_parse_from(["gantry"].iter().chain(line)).is_err(), "{line:?}");
        }
    }

    #[test]
    fn unset_settings_are_shown_with_their_default() {
        let settings = UserSettings {
            effort: Some(Effort::Low),
            quiet_hours: Some(hours("22:00", "07:00")),
            heartbeat_every_seconds: Some(0),
            ..UserSettings::default()
        };
        let text = describe(&settings);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["effort", "low"]);
        assert_eq!(lines[0], ["model", "-", "(the", "server's", "default)"]);
        assert_eq!(lines[3], ["timezone", "-", "(UTC)"]);
        assert_eq!((lines[4].last(), lines[5].last()), (Some(&"22:00-07:00"), Some(&"off")));
    }
}
