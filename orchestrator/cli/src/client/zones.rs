//! The time zone of a command: the one in which it reads and shows times, and which it sends with a schedule.
//!
//! Owns the precedence: `--timezone`, then the user's settings, then the machine. Never changes a setting.

use protocol::UserSettings;

use super::Client;
use crate::{
    exit::CliError,
    output::{Format, Output},
};
use base::Zone;

/// The zone of a command; `None` if not even the machine names one. Asks the server unless `--timezone` is given.
pub(crate) async fn named(client: &Client, output: &mut Output) -> Result<Option<Zone>, CliError> {
    if output.chosen_zone.is_none() {
        let settings: UserSettings = client.get("/api/settings", &[]).await?;
        let of_user = settings.timezone.and_then(|name| name.parse().ok());
        output.chosen_zone = of_user.or(output.machine_zone);
    }
    Ok(output.chosen_zone)
}

/// The zone of the times that a command shows. If the settings cannot be read it is the machine's; JSON has all times in UTC.
pub(crate) async fn shown(client: &Client, output: &mut Output) -> Zone {
    if output.format == Format::Text && named(client, output).await.is_err() {
        // Times in another zone are better than none.
        output.chosen_zone = output.machine_zone;
    }
    output.zone()
}

/// The value of `--timezone`.
pub fn parse_zone_name(name: &str) -> Result<String, String> {
    match name.parse::<Zone>() {
        Ok(_) => Ok(name.to_owned()),
        Err(_) => Err("must be an IANA time zone, such as Europe/Oslo or UTC".to_owned()),
    }
}
