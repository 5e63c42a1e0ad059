//! `gantry routine create` and `edit`.

use chrono::{DateTime, Utc};
use clap::Args;
use protocol::{Routine, RoutinePreview, RoutineSaved, RoutineTrigger};
use serde_json::{Map, Value};

use super::{PATH, definition, describe, editor, fields, find, print_warnings};
use base::{Environment, Zone};

use crate::{
    client::{Client, zones},
    exit::CliError,
    input,
    output::{Format, Output, local_time, one_line},
};

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Name, unique among your routines (default: as in the file)
    name: Option<String>,
    /// YAML or JSON file with the body of POST /api/routines; flags take precedence; - reads standard input
    #[arg(long, short, value_name = "FILE")]
    file: Option<String>,
    #[command(flatten)]
    fields: fields::Fields,
    /// Create it disabled
    #[arg(long)]
    disabled: bool,
    /// Only check it, and show when it would fire
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub struct EditArgs {
    /// Name or id
    routine: String,
    /// New name
    #[arg(long)]
    name: Option<String>,
    /// Merge patch with the new values: JSON, @FILE, or - for standard input
    #[arg(long, value_name = "JSON")]
    patch: Option<String>,
    #[command(flatten)]
    fields: fields::Fields,
    /// Only if the routine has this revision
    #[arg(long, value_name = "N")]
    if_rev: Option<u64>,
}

pub(super) async fn create(
    client: &Client,
    args: CreateArgs,
    now: DateTime<Utc>,
    output: &mut Output,
) -> Result<(), CliError> {
    let mut body: Map<String, Value> = match &args.file {
        Some(file) => input::yaml(&one_line(file), &input::read(file)?)?,
        None => Map::new(),
    };
    let zone = zones::named(client, output).await?;
    let patch = args.fields.patch(&body, zone.unwrap_or(Zone::UTC), now)?;
    fields::merge(&mut body, patch);
    fields::name_zone(&mut body, zone, now);
    if let Some(name) = args.name {
        body.insert("name".to_owned(), Value::String(name));
    }
    if args.disabled {
        body.insert("enabled".to_owned(), Value::Bool(false));
    }
    if !body.contains_key("name") {
        return Err(CliError::Usage("no name: give one as the first argument, or in the file".to_owned()));
    }
    if !body.contains_key("action") {
        return Err(CliError::Usage("no action: add --prompt, --job or --text, or a file with --file".to_owned()));
    }
    body.entry("trigger").or_insert_with(|| serde_json::json!({"type": "manual"}));
    let name = body.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if args.dry_run {
        let preview: RoutinePreview =
            client.post_with_query(PATH, &[("dry_run", "true".to_owned())], &Value::Object(body)).await?;
        print_warnings(&preview.warnings, Some(&name), output);
        let zone = output.zone();
        return output.either(&preview, |_| describe_preview(&name, &preview, zone));
    }
    let saved: RoutineSaved = client.post(PATH, &Value::Object(body), None).await?;
    print_saved("created", &saved, now, output)
}

/// The next times, one in a line.
fn describe_preview(name: &str, preview: &RoutinePreview, zone: Zone) -> String {
    let times = preview.upcoming.iter().map(|time| format!("\n    {}", local_time(time.utc, zone)));
    let count = preview.count.filter(|count| *count > 0);
    let often = count.map(|count| format!("\n    {count} in the next 8 days")).unwrap_or_default();
    format!("{} is valid{}{often}", one_line(name), times.collect::<String>())
}

pub(super) async fn edit(
    client: &Client,
    args: EditArgs,
    environment: &Environment,
    now: DateTime<Utc>,
    output: &mut Output,
) -> Result<(), CliError> {
    let routine = find(client, &args.routine).await?;
    let current = definition::of_routine(&routine);
    let zone = zones::named(client, output).await?;
    let mut patch = args.fields.patch(&definition::json(&current)?, zone.unwrap_or(Zone::UTC), now)?;
    if let Some(json) = args.patch {
        let Value::Object(given) = input::json_argument("--patch", &json)? else {
            return Err(CliError::Usage("--patch: must be a JSON object".to_owned()));
        };
        fields::merge(&mut patch, given);
    }
    patch.extend(args.name.map(|name| ("name".to_owned(), Value::String(name))));
    let mut rev = args.if_rev;
    if patch.is_empty() {
        let Some(edited) = editor::edit(&current, environment)? else {
            return output.either(&routine, |_| format!("{} unchanged", one_line(&routine.name)));
        };
        patch = definition::patch_to(&routine, edited, zone.unwrap_or(Zone::UTC), now)?;
        // What the person saw is what they changed.
        rev = rev.or(Some(routine.rev));
    }
    // Another schedule without a zone keeps the one that is stored.
    if !matches!(routine.trigger, RoutineTrigger::Cron { .. }) {
        fields::name_zone(&mut patch, zone, now);
    }
    let saved: RoutineSaved = client.patch_if_version(&format!("{PATH}/{}", routine.id), &patch, rev).await?;
    let verb = if saved.routine.rev == routine.rev { "unchanged" } else { "updated" };
    print_saved(verb, &saved, now, output)
}

fn print_saved(verb: &str, saved: &RoutineSaved, now: DateTime<Utc>, output: &mut Output) -> Result<(), CliError> {
    if output.format == Format::Json {
        return output.json(saved);
    }
    let routine = &saved.routine;
    print_warnings(&saved.warnings, Some(&routine.name), output);
    let mut lines = vec![format!("{} {verb} ({})", one_line(&routine.name), routine.id)];
    if let Some(at) = routine.next_fire_at.filter(|_| routine.enabled) {
        lines.push(format!("next {} ({})", describe::local(at, output.zone(), now), describe::relative(at, now)));
    }
    lines.extend(secrets(routine));
    output.line(&lines.join("\n"))
}

/// Secrets that the server generated: they are shown once.
pub(super) fn secrets(routine: &Routine) -> Vec<String> {
    let mut lines = vec![];
    if let RoutineTrigger::Webhook(webhook) = &routine.trigger {
        if let (Some(path), Some(_)) = (&webhook.path, &webhook.secret) {
            lines.push(format!("POST /api/webhooks/{}", one_line(path)));
        }
        lines.extend(
            webhook.secret.as_ref().map(|secret| format!("webhook secret {} (shown only now)", one_line(secret))),
        );
    }
    lines.extend(
        routine
            .notify
            .webhook_secret
            .as_ref()
            .map(|secret| format!("notification secret {} (shown only now)", one_line(secret))),
    );
    lines
}
