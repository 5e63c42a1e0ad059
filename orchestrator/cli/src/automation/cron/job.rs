//! The fields of a cron job from the command line.

use chrono::{DateTime, Utc};
use clap::Args;
use protocol::{
    AddCronJob, CronIsolation, CronJobPatch, CronPayload, CronRuntime, CronSchedule, CronWakeMode, RoutineSession,
};

use crate::{
    automation::{routine::time, wake},
    exit::CliError,
    input::{one_of, one_of_explained, text_or_stdin},
};

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("schedule").args(["at", "every", "cron"]).required(true)))]
#[command(group(clap::ArgGroup::new("payload").args(["system_event", "message"]).required(true)))]
pub struct AddArgs {
    /// Name
    #[arg(long)]
    name: String,
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
    /// Once: RFC 3339, milliseconds since 1970, or a duration from now such as 20m
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// At a fixed interval, such as 10m
    #[arg(long, value_name = "DURATION")]
    every: Option<humantime::Duration>,
    /// At times of a calendar
    #[arg(long, value_name = "EXPR")]
    cron: Option<String>,
    /// IANA time zone of --cron (default: UTC)
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
    #[arg(long, requires = "message")]
    deliver: bool,
    /// Post notifications to this URL; the operator must allow it
    #[arg(long, value_name = "URL", requires = "message")]
    to: Option<String>,
}

impl AddArgs {
    pub(super) fn params(self, now: DateTime<Utc>) -> Result<AddCronJob, CliError> {
        let missing = |what: &str| CliError::Usage(format!("{what} is missing"));
        Ok(AddCronJob {
            name: self.name,
            description: None,
            enabled: true,
            schedule: self.fields.schedule(now)?.ok_or_else(|| missing("--at, --every or --cron"))?,
            session_target: self.fields.session,
            wake_mode: self.fields.wake.unwrap_or_default(),
            payload: self.fields.payload()?.ok_or_else(|| missing("--system-event or --message"))?,
            isolation: CronIsolation::default(),
            runtime: CronRuntime::default(),
        })
    }
}

impl EditArgs {
    pub(super) fn patch(self, now: DateTime<Utc>) -> Result<CronJobPatch, CliError> {
        let patch = CronJobPatch {
            name: self.name,
            schedule: self.fields.schedule(now)?,
            session_target: self.fields.session,
            wake_mode: self.fields.wake,
            payload: self.fields.payload()?,
            ..CronJobPatch::default()
        };
        if patch == CronJobPatch::default() {
            return Err(CliError::Usage("nothing to change: add a flag, see `gantry cron edit --help`".to_owned()));
        }
        Ok(patch)
    }
}

impl JobFields {
    fn schedule(&self, now: DateTime<Utc>) -> Result<Option<CronSchedule>, CliError> {
        if let Some(at) = &self.at {
            // Eight digits and more are milliseconds: a year has four.
            let milliseconds = at.parse::<i64>().ok().filter(|_| at.len() >= 8);
            let at_ms = milliseconds.map_or_else(|| time(at, None, now).map(|at| at.timestamp_millis()), Ok)?;
            return Ok(Some(CronSchedule::At { at_ms }));
        }
        if let Some(every) = self.every {
            let every_ms = u64::try_from(every.as_millis())
                .map_err(|_| CliError::Usage(format!("--every {every}: is too long")))?;
            return Ok(Some(CronSchedule::Every { every_ms, anchor_ms: None }));
        }
        Ok(self.cron.clone().map(|expr| CronSchedule::Cron { expr, tz: self.tz.clone() }))
    }

    fn payload(self) -> Result<Option<CronPayload>, CliError> {
        if let Some(text) = self.system_event {
            return Ok(Some(CronPayload::SystemEvent { text: text_or_stdin(text)? }));
        }
        let Some(message) = self.message else { return Ok(None) };
        Ok(Some(CronPayload::AgentTurn {
            message: text_or_stdin(message)?,
            deliver: self.deliver.then_some(true),
            provider: self.to.as_ref().map(|_| "webhook".to_owned()),
            to: self.to,
            timeout_seconds: None,
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
        assert_eq!(serde_json::to_value(line.args.params(now()).unwrap()).unwrap(), whole);
    }

    #[rstest]
    #[case(&["--name", "n", "--message", "m"])]
    #[case(&["--name", "n", "--every", "1m"])]
    #[case(&["--name", "n", "--every", "1m", "--at", "1m", "--message", "m"])]
    #[case(&["--name", "n", "--every", "1m", "--tz", "UTC", "--message", "m"])]
    #[case(&["--name", "n", "--every", "1m", "--message", "m", "--system-event", "t"])]
    #[case(&["--every", "1m", "--message", "m"])]
    fn a_job_has_a_name_one_schedule_and_one_payload(#[case] flags: &[&str]) {
        assert!(Add::try_parse_from(["gantry"].iter().chain(flags)).is_err());
    }

    #[test]
    fn only_what_is_given_is_changed() {
        let line = Edit::try_parse_from(["gantry", "news", "--name", "n"]).unwrap();
        assert_eq!(serde_json::to_value(line.args.patch(now()).unwrap()).unwrap(), json!({"name": "n"}));
        let line = Edit::try_parse_from(["gantry", "news"]).unwrap();
        assert!(line.args.patch(now()).is_err());
    }
}
