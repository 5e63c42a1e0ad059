//! `gantry routine apply`: makes the caller's routines match a file.
//!
//! Owns the plan (pure) and its execution. Never touches a routine of another user, whatever the caller may see.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use clap::Args;
use protocol::{CreateRoutine, Routine, RoutineId, RoutinePatch, RoutinePreview, RoutineSaved, RoutineWarning};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{PATH, change, definition, print_warnings};
use crate::{
    client::{Client, pages, zones},
    exit::{CliError, Exit},
    input,
    output::{Format, Output, Paint, one_line},
};
use base::Zone;

#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// YAML or JSON file with a list of bodies of POST /api/routines; - reads standard input
    #[arg(long, short, value_name = "FILE")]
    file: String,
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
    /// Also delete your routines that are not in the file
    #[arg(long)]
    prune: bool,
}

/// A routine in the file.
#[derive(Debug, Clone, PartialEq)]
struct Wanted {
    definition: CreateRoutine,
    /// Whether the file says if it is enabled.
    says_enabled: bool,
}

/// What becomes of one routine.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Create(Box<CreateRoutine>),
    Update { id: RoutineId, rev: u64, name: String, patch: RoutinePatch },
    Keep { id: RoutineId, name: String },
    Delete { id: RoutineId, name: String },
}

/// The outcome of one routine.
#[derive(Debug, Serialize)]
struct Applied {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<RoutineId>,
    result: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changed: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<RoutineWarning>,
    /// The routine with its generated secrets, which are shown once.
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<Routine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(super) async fn apply(
    client: &Client,
    args: ApplyArgs,
    now: DateTime<Utc>,
    output: &mut Output,
) -> Result<Exit, CliError> {
    let user = client.user().ok_or_else(|| {
        CliError::Usage("cannot tell whose routines these are: GANTRY_TOKEN names no user".to_owned())
    })?;
    let wanted = parse(&one_line(&args.file), &input::read(&args.file)?)?;
    let zone = zones::named(client, output).await?;
    let stored = all_of(client, &user).await?;
    let mut applied = Vec::new();
    let mut exit = Exit::Success;
    for step in plan(wanted, &stored, args.prune, (zone, now))? {
        let (name, id) = step.subject();
        let result = if args.dry_run { preview(client, step).await } else { execute(client, step).await };
        let one = result.unwrap_or_else(|error| {
            exit = error.exit();
            Applied { error: Some(error.to_string()), ..Applied::new(name, id, "failed") }
        });
        print_warnings(&one.warnings, Some(&one.name), output);
        if output.format == Format::Text {
            let line = describe(output.paint, &one, args.dry_run);
            output.line(&line)?;
        }
        applied.push(one);
    }
    if output.format == Format::Json {
        output.json(&serde_json::json!({"dry_run": args.dry_run, "items": applied}))?;
    } else if applied.is_empty() {
        output.note("gantry: the file has no routines");
    }
    Ok(exit)
}

/// Reads the file: every body is checked before anything is changed.
fn parse(name: &str, text: &str) -> Result<Vec<Wanted>, CliError> {
    // An empty file is a mistake: with --prune it would delete everything.
    let items = input::yaml::<Option<Vec<Map<String, Value>>>>(name, text)?
        .ok_or_else(|| CliError::Usage(format!("{name}: must be a list of routines; [] for none")))?;
    let mut seen = BTreeMap::new();
    let mut wanted = Vec::with_capacity(items.len());
    for (index, item) in items.into_iter().enumerate() {
        let label = match item.get("name").and_then(Value::as_str) {
            Some(name) => format!("item {} ({})", index + 1, one_line(name)),
            None => format!("item {}", index + 1),
        };
        let says_enabled = item.contains_key("enabled");
        let mut definition: CreateRoutine = serde_path_to_error::deserialize(Value::Object(item)).map_err(|error| {
            CliError::Usage(one_line(&format!("{name}: {label}: {}: {}", error.path(), error.inner())))
        })?;
        definition.name = String::from(definition.name.trim());
        if let Some(first) = seen.insert(definition.name.clone(), index + 1) {
            return Err(CliError::Usage(format!("{name}: {label}: item {first} has the same name")));
        }
        wanted.push(Wanted { definition, says_enabled });
    }
    Ok(wanted)
}

/// All routines of a user by their names.
async fn all_of(client: &Client, user: &str) -> Result<BTreeMap<String, Routine>, CliError> {
    let mut all = BTreeMap::new();
    let add = |page: Vec<Routine>| {
        // The filter is the server's; a routine of another user must not pass even if it ignores the filter.
        let own = page.into_iter().filter(|routine| routine.user_id == user);
        all.extend(own.map(|routine| (routine.name.clone(), routine)));
        Ok(())
    };
    pages::for_each(client, (PATH, &[("user", user.to_owned())]), add).await?;
    Ok(all)
}

/// The steps that make the stored routines match the file: in the file's order, then deletions.
fn plan(
    wanted: Vec<Wanted>,
    stored: &BTreeMap<String, Routine>,
    prune: bool,
    (zone, now): (Option<Zone>, DateTime<Utc>),
) -> Result<Vec<Step>, CliError> {
    let mut rest: BTreeMap<&String, &Routine> = stored.iter().collect();
    let mut steps = Vec::with_capacity(wanted.len());
    for Wanted { mut definition, says_enabled } in wanted {
        let Some(routine) = rest.remove(&definition.name) else {
            definition::name_zone(&mut definition.trigger, zone, now);
            steps.push(Step::Create(Box::new(definition)));
            continue;
        };
        if !says_enabled {
            definition.enabled = routine.enabled;
        }
        let (id, rev, name) = (routine.id, routine.rev, definition.name.clone());
        let patch = definition::patch_to(routine, definition, zone.unwrap_or(Zone::UTC), now)?;
        steps.push(if patch.is_empty() { Step::Keep { id, name } } else { Step::Update { id, rev, name, patch } });
    }
    if prune {
        let unwanted = rest.into_values();
        steps.extend(unwanted.map(|routine| Step::Delete { id: routine.id, name: routine.name.clone() }));
    }
    Ok(steps)
}

impl Step {
    fn subject(&self) -> (String, Option<RoutineId>) {
        match self {
            Self::Create(definition) => (definition.name.clone(), None),
            Self::Update { id, name, .. } | Self::Keep { id, name } | Self::Delete { id, name } => {
                (name.clone(), Some(*id))
            }
        }
    }
}

impl Applied {
    const fn new(name: String, id: Option<RoutineId>, result: &'static str) -> Self {
        Self { name, id, result, changed: Vec::new(), warnings: Vec::new(), created: None, error: None }
    }
}

/// The server checks what would be created; a change of a stored routine is only compared.
async fn preview(client: &Client, step: Step) -> Result<Applied, CliError> {
    let (name, id) = step.subject();
    Ok(match step {
        Step::Create(definition) => {
            let query = [("dry_run", "true".to_owned())];
            let preview: RoutinePreview = client.post_with_query(PATH, &query, &definition).await?;
            Applied { warnings: preview.warnings, ..Applied::new(name, id, "created") }
        }
        Step::Update { patch, .. } => {
            Applied { changed: patch.keys().cloned().collect(), ..Applied::new(name, id, "updated") }
        }
        Step::Keep { .. } => Applied::new(name, id, "unchanged"),
        Step::Delete { .. } => Applied::new(name, id, "deleted"),
    })
}

async fn execute(client: &Client, step: Step) -> Result<Applied, CliError> {
    let (name, id) = step.subject();
    match step {
        Step::Create(definition) => {
            let saved: RoutineSaved = client.post(PATH, &definition, None).await?;
            let id = Some(saved.routine.id);
            Ok(Applied { warnings: saved.warnings, created: Some(saved.routine), ..Applied::new(name, id, "created") })
        }
        Step::Update { id, rev, patch, .. } => {
            let saved: RoutineSaved = client.patch_if_version(&format!("{PATH}/{id}"), &patch, Some(rev)).await?;
            // A secret is sent without knowing whether it is the stored one; the server compares it.
            let result = if saved.routine.rev == rev { "unchanged" } else { "updated" };
            let changed = if saved.routine.rev == rev { vec![] } else { patch.keys().cloned().collect() };
            Ok(Applied { changed, warnings: saved.warnings, ..Applied::new(name, Some(id), result) })
        }
        Step::Keep { .. } => Ok(Applied::new(name, id, "unchanged")),
        Step::Delete { id, .. } => {
            client.delete_if_version(&format!("{PATH}/{id}"), &[], None).await?;
            Ok(Applied::new(name, Some(id), "deleted"))
        }
    }
}

fn describe(paint: Paint, one: &Applied, dry_run: bool) -> String {
    let result = match one.result {
        "created" => paint.green("created"),
        "updated" => paint.yellow("updated"),
        "deleted" | "failed" => paint.red(one.result),
        other => paint.dim(other),
    };
    let is_dry = dry_run && one.result != "unchanged" && one.error.is_none();
    let dry = if is_dry { " (dry run)" } else { "" };
    let changed = if one.changed.is_empty() { String::new() } else { format!(": {}", one.changed.join(", ")) };
    let error = one.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    let mut lines = vec![format!("{} {result}{dry}{changed}{error}", one_line(&one.name))];
    let secrets = one.created.as_ref().map(change::secrets).unwrap_or_default();
    lines.extend(secrets.iter().map(|secret| format!("    {secret}")));
    lines.join("\n")
}
