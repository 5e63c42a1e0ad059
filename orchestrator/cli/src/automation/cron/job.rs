//! The fields of a cron job from the command line.

use chrono::{DateTime, Utc};
use clap::Args;
use protocol::{
    AddCronJob, CronIsolation, CronJobPatch, CronPayload, CronRuntime, CronSchedule, CronWakeMode, RoutineSession,
    RoutineTrigger,
};
use schedule::needs_zone;

use crate::{
    automation::{routine::time, wake},
    exit::CliError,
    input::{one_of, one_of_explained, text_or_stdin},
    output::{one_line, truncate},
};
use base::Zone;

/// Characters of a name that is made from a text.
const MAX_NAME_CHARS: usize = 60;

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("schedule").args(["at", "every", "cron"]).required(true)))]
#[command(group(clap::ArgGroup::new("payload").args(["system_event", "message"]).required(true)))]
pub struct AddArgs {
    /// Name (default: the beginning of the text)
    #[arg(long)]
    name: Option<String>,
    /// Add it without enabling it
    #[arg(long)]
    disabled: bool,
    #[command(flatten)]
    fields: JobFields,
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("schedule").args(["at", "every", "cron"])))]
#[command(group(clap::ArgGroup::new("payload").args(["system_event", "message"])))]
pub struct EditArgs {
    /// Name or id
    pub(super) routine: String,
    /// New name
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    fields: JobFields,
}

#[derive(Debug, Args)]
struct JobFields {
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Once: RFC 3339, a local time, milliseconds since 1970, or a duration from now such as 20m
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// At a fixed interval, such as 10m
    #[arg(long, value_name = "DURATION")]
    every: Option<humantime::Duration>,
    /// At times of a calendar
    #[arg(long, value_name = "EXPR")]
    cron: Option<String>,
    /// IANA time zone of --cron (default: --timezone, else that of your settings, else the machine's)
    #[arg(long, value_name = "ZONE", requires = "cron", conflicts_with_all = ["at", "every"])]
    tz: Option<String>,
    /// Session (default: main for --system-event, else isolated)
    #[arg(long, value_parser = one_of(&[RoutineSession::Main, RoutineSession::Isolated]))]
    session: Option<RoutineSession>,
    /// When the main session looks at its line (default: next-heartbeat)
    #[arg(long, value_parser = one_of_explained(wake::MODES))]
    wake: Option<CronWakeMode>,
    /// Put this line into the main session; - reads it from standard input
    #[arg(long, value_name = "TEXT")]
    system_event: Option<String>,
    /// Run the agent with this message; - reads it from standard input
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
    /// Notify of every run that has something to report
    #[arg(long, requires = "message", conflicts_with = "system_event")]
    deliver: bool,
    /// Post notifications to this URL, with --deliver; the operator must allow it
    #[arg(long, value_name = "URL", requires = "message", conflicts_with = "system_event")]
    to: Option<String>,
    /// Where notifications go: last (to you, in Gantry) or webhook (to the URL of --to, too)
    #[arg(long, value_parser = ["last", "webhook"], requires = "message", conflicts_with = "system_event")]
    provider: Option<String>,
    /// Longest time of a run, such as 5m
    #[arg(long, value_name = "DURATION", requires = "message", conflicts_with = "system_event")]
    timeout: Option<humantime::Duration>,
    /// First word of the summary line in the main session (default: Cron)
    #[arg(long, value_name = "TEXT")]
    post_to_main_prefix: Option<String>,
}

impl AddArgs {
    pub(super) fn params(self, zone: Zone, now: DateTime<Utc>) -> Result<AddCronJob, CliError> {
        let missing = |what: &str| CliError::Usage(format!("{what} is missing"));
        let mut fields = self.fields;
        let schedule = fields.schedule(zone, now)?.ok_or_else(|| missing("--at, --every or --cron"))?;
        let payload = fields.payload()?.ok_or_else(|| missing("--system-event or --message"))?;
        Ok(AddCronJob {
            name: self.name.unwrap_or_else(|| name_of(&payload)),
            description: fields.description,
            enabled: !self.disabled,
            schedule,
            session_target: fields.session,
            wake_mode: fields.wake.unwrap_or_default(),
            payload,
            isolation: CronIsolation { post_to_main_prefix: fields.post_to_main_prefix },
            runtime: CronRuntime::default(),
        })
    }
}

/// Names the zone of a new schedule that needs one.
pub(super) fn name_zone(schedule: &mut CronSchedule, zone: Option<Zone>, now: DateTime<Utc>) {
    if let (CronSchedule::Cron { expr, tz }, Some(zone)) = (schedule, zone) {
        let trigger = RoutineTrigger::Cron { schedule: expr.clone(), timezone: tz.clone() };
        if needs_zone(&trigger, now) {
            *tz = Some(zone.name().to_owned());
        }
    }
}

/// The beginning of what a job says.
fn name_of(payload: &CronPayload) -> String {
    let (CronPayload::SystemEvent { text } | CronPayload::AgentTurn { message: text, .. }) = payload;
    truncate(&one_line(text.trim()), MAX_NAME_CHARS)
}

impl EditArgs {
    pub(super) fn patch(self, zone: Zone, now: DateTime<Utc>) -> Result<CronJobPatch, CliError> {
        let mut fields = self.fields;
        let isolation = fields.post_to_main_prefix.take();
        let patch = CronJobPatch {
            name: self.name,
            schedule: fields.schedule(zone, now)?,
            payload: fields.payload()?,
            description: fields.description,
            session_target: fields.session,
            wake_mode: fields.wake,
            isolation: isolation.map(|prefix| CronIsolation { post_to_main_prefix: Some(prefix) }),
            ..CronJobPatch::default()
        };
        if patch == CronJobPatch::default() {
            return Err(CliError::Usage("nothing to change: add a flag, see `gantry cron edit --help`".to_owned()));
        }
        Ok(patch)
    }
}

impl JobFields {
    fn schedule(&self, zone: Zone, now: DateTime<Utc>) -> Result<Option<CronSchedule>, CliError> {
        if let Some(at) = &self.at {
            // Eight digits and more are milliseconds: a year has four.
            let milliseconds = at.parse::<i64>().ok().filter(|_| at.len() >= 8);
            let at_ms = milliseconds.map_or_else(|| time(at, zone, now).map(|at| at.timestamp_millis()), Ok)?;
            return Ok(Some(CronSchedule::At { at_ms }));
        }
        if let Some(every) = self.every {
            let every_ms = u64::try_from(every.as_millis())
                .map_err(|_| CliError::Usage(format!("--every {every}: is too long")))?;
            return Ok(Some(CronSchedule::Every { every_ms, anchor_ms: None }));
        }
        Ok(self.cron.clone().map(|expr| CronSchedule::Cron { expr, tz: self.tz.clone() }))
    }

    fn payload(&mut self) -> Result<Option<CronPayload>, CliError> {
        if let Some(text) = self.system_event.take() {
            return Ok(Some(CronPayload::SystemEvent { text: text_or_stdin(text)? }));
        }
        let Some(message) = self.message.take() else { return Ok(None) };
        let to = self.to.take();
        Ok(Some(CronPayload::AgentTurn {
            message: text_or_stdin(message)?,
            deliver: self.deliver.then_some(true),
            provider: self.provider.take().or_else(|| to.as_ref().map(|_| "webhook".to_owned())),
            to,
            timeout_seconds: self.timeout.map(|timeout| timeout.as_secs().max(1)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Parser)]
    struct Add {
        #[command(flatten)]
        args: AddArgs,
    }

    #[derive(Parser)]
    struct Edit {
        #[command(flatten)]
        args: EditArgs,
    }

    fn now() -> DateTime<Utc> {
        "1970-01-01T00:01:00Z".parse().unwrap()
    }

    #[rstest]
    #[case(&["--at", "20m", "--message", "m"],
        json!({"schedule": {"kind": "at", "atMs": 1_260_000}, "payload": {"kind": "agentTurn", "message": "m"}}))]
    #[case(&["--at", "1800000000000", "--system-event", "t", "--wake", "now"],
        json!({"schedule": {"kind": "at", "atMs": 1_800_000_000_000_u64}, "payload": {"kind": "systemEvent", "text": "t"},
            "wakeMode": "now"}))]
    #[case(&["--at", "1970-01-01T01:00:00+01:00", "--message", "m", "--session", "isolated"],
        json!({"schedule": {"kind": "at", "atMs": 0}, "payload": {"kind": "agentTurn", "message": "m"},
            "sessionTarget": "isolated"}))]
    #[case(&["--every", "10m", "--message", "m", "--deliver", "--to", "https://a.example"],
        json!({"schedule": {"kind": "every", "everyMs": 600_000},
            "payload": {"kind": "agentTurn", "message": "m", "deliver": true, "provider": "webhook", "to": "https://a.example"}}))]
    #[case(&["--every", "10m", "--message", "m", "--to", "https://a.example"],
        json!({"schedule": {"kind": "every", "everyMs": 600_000},
            "payload": {"kind": "agentTurn", "message": "m", "provider": "webhook", "to": "https://a.example"}}))]
    #[case(&["--cron", "0 9 * * *", "--tz", "Europe/Oslo", "--message", "m"],
        json!({"schedule": {"kind": "cron", "expr": "0 9 * * *", "tz": "Europe/Oslo"},
            "payload": {"kind": "agentTurn", "message": "m"}}))]
    fn flags_become_a_job(#[case] flags: &[&str], #[case] expected: Value) {
        let line = Add::try_parse_from(["gantry", "--name", "n"].iter().chain(flags)).unwrap();
        let mut whole =
            json!({"name": "n", "enabled": true, "wakeMode": "next-heartbeat", "isolation": {}, "runtime": {}});
        whole.as_object_mut().unwrap().extend(expected.as_object().unwrap().clone());
        assert_eq!(serde_json::to_value(line.args.params(Zone::UTC, now()).unwrap()).unwrap(), whole);
    }

    #[rstest]
    #[case(&["--name", "n", "--message", "m"])]
    #[case(&["--name", "n", "--every", "1m"])]
    #[case(&["--name", "n", "--every", "1m", "--at", "1m", "--message", "m"])]
    #[case(&["--name", "n", "--every", "1m", "--tz", "UTC", "--message", "m"])]
    #[case(&["--name", "n", "--every", "1m", "--message", "m", "--system-event", "t"])]
    #[case(&["--name", "n", "--every", "1m", "--system-event", "t", "--timeout", "1m"])]
    fn a_job_has_one_schedule_and_one_payload(#[case] flags: &[&str]) {
        assert!(Add::try_parse_from(["gantry"].iter().chain(flags)).is_err());
    }

    /// As people of an older program have them in their notes.
    #[rstest]
    #[case(
        &["--at", "2099-12-14T07:00:00-08:00", "--session", "main", "--wake", "now", "--system-event", "Alarm: wake up."],
        json!({"name": "Alarm: wake up.", "schedule": {"kind": "at", "atMs": 4_100_943_600_000_i64}, "sessionTarget": "main",
            "wakeMode": "now", "payload": {"kind": "systemEvent", "text": "Alarm: wake up."}})
    )]
    #[case(
        &["--cron", "0 7 * * *", "--tz", "America/Los_Angeles", "--session", "isolated", "--wake", "now", "--message",
            "Daily check.", "--deliver", "--provider", "last"],
        json!({"name": "Daily check.", "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": "America/Los_Angeles"},
            "sessionTarget": "isolated", "wakeMode": "now",
            "payload": {"kind": "agentTurn", "message": "Daily check.", "deliver": true, "provider": "last"}})
    )]
    #[case(
        &["--every", "1h", "--message", "m", "--timeout", "5m", "--post-to-main-prefix", "News", "--description", "d", "--disabled"],
        json!({"name": "m", "description": "d", "enabled": false, "schedule": {"kind": "every", "everyMs": 3_600_000},
            "payload": {"kind": "agentTurn", "message": "m", "timeoutSeconds": 300}, "isolation": {"postToMainPrefix": "News"}})
    )]
    fn a_name_is_made_from_the_text(#[case] flags: &[&str], #[case] expected: Value) {
        let line = Add::try_parse_from(["gantry"].iter().chain(flags)).unwrap();
        let mut whole = json!({"enabled": true, "wakeMode": "next-heartbeat", "isolation": {}, "runtime": {}});
        whole.as_object_mut().unwrap().extend(expected.as_object().unwrap().clone());
        assert_eq!(serde_json::to_value(line.args.params(Zone::UTC, now()).unwrap()).unwrap(), whole);
    }

    #[test]
    fn only_what_is_given_is_changed() {
        let line = Edit::try_parse_from(["gantry", "news", "--name", "n"]).unwrap();
        assert_eq!(serde_json::to_value(line.args.patch(Zone::UTC, now()).unwrap()).unwrap(), json!({"name": "n"}));
        let line = Edit::try_parse_from(["gantry", "news"]).unwrap();
        assert!(line.args.patch(Zone::UTC, now()).is_err());
    }
}
